"""Settings of Kafka: what goes together, what kafka-python is given, and that the password is shown nowhere."""

from __future__ import annotations

import logging
import re
import tomllib
import traceback
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from pydantic import ValidationError

from negotiation.event_log import EventLogUnavailable
from pipelines.config import KafkaSettings, PipelineSettings
from pipelines.kafka_connection import administration, client_options, consumer_options, producer_options
from sparring.commands.options import log_plainly
from sparring.settings import SettingsError, load_settings

LOGIN = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "sparring", "sasl_password": "open sesame"}
STREAMING = Path(__file__).resolve().parents[3] / "docs" / "streaming.md"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).touch()


def kafka(**settings: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({"bootstrap_servers": "localhost:9092", **settings})


@pytest.mark.parametrize("servers", ["kafka:9092", "10.0.0.1:1, kafka-2.example.com:65535", "[::1]:9092"])
def test_servers_are_host_and_port(servers: str) -> None:
    assert kafka(bootstrap_servers=servers).bootstrap_servers == servers.replace(" ", "")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"bootstrap_servers": "kafka"}, "'kafka' is not host:port with a port from 1 to 65535"),
        ({"bootstrap_servers": "kafka:9092,"}, "'' is not host:port"),
        ({"bootstrap_servers": "kafka:70000"}, "'kafka:70000' is not host:port"),
        ({"bootstrap_servers": "http://kafka:9092"}, "is not host:port"),
        ({"security_protocol": "TLS"}, "'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ({"security_protocol": "SSL", "ssl_cafile": "gone.pem"}, "there is no file gone.pem: mount it, or correct"),
        (
            {"ssl_cafile": "ca.pem"},
            "ssl_cafile is set, but security_protocol PLAINTEXT does not encrypt: set it to SSL",
        ),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": "ca.pem", **LOGIN}, "does not encrypt"),
        ({"security_protocol": "SSL", "ssl_certfile": "cert.pem"}, "go together: set both or neither"),
        ({"sasl_username": "me"}, "sasl_username is set, but security_protocol PLAINTEXT does not log in: set it to"),
        ({"security_protocol": "SSL", **LOGIN}, "does not log in"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism, sasl_username, sasl_password too"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "'SCRAM-SHA-256' or 'SCRAM-SHA-512'"),
        ({"delivery_timeout_seconds": 0}, "greater than or equal to 1"),
        ({"partitions": 0}, "greater than or equal to 1"),
        ({"replication_factor": 0}, "greater than or equal to 1"),
        ({"retention_days": 0}, "greater than 0"),
        ({"retention": 3}, "Extra inputs are not permitted"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(complaint)):
        kafka(**settings)


def test_kafka_python_is_told_servers_and_how_to_be_let_in() -> None:
    plain = client_options(kafka(bootstrap_servers="a:1, b:2", delivery_timeout_seconds=10))
    assert plain["bootstrap_servers"] == ["a:1", "b:2"]
    assert plain["security_protocol"] == "PLAINTEXT"
    assert not [name for name in plain if name.startswith(("ssl", "sasl"))]
    files = {"ssl_cafile": "ca.pem", "ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}
    secured = client_options(kafka(security_protocol="SASL_SSL", **files, **LOGIN))
    assert {name: value for name, value in secured.items() if name.startswith(("ssl", "sasl", "security"))} == {
        **files,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "sparring",
        "sasl_plain_password": "open sesame",
    }


@pytest.mark.parametrize("seconds", [1, 15, 600])
def test_producers_are_idempotent_acknowledged_by_all_and_end_in_time(seconds: float) -> None:
    options = producer_options(kafka(delivery_timeout_seconds=seconds))
    assert (options["acks"], options["enable_idempotence"]) == ("all", True)
    assert options["delivery_timeout_ms"] == options["max_block_ms"] == 1000 * seconds
    assert options["request_timeout_ms"] + options["linger_ms"] < options["delivery_timeout_ms"]
    assert not options["allow_auto_create_topics"]


def test_consumers_commit_only_when_told_and_begin_at_the_beginning() -> None:
    options = consumer_options(kafka(delivery_timeout_seconds=1), "g")
    assert (options["enable_auto_commit"], options["auto_offset_reset"]) == (False, "earliest")
    assert options["request_timeout_ms"] > KafkaConsumer.DEFAULT_CONFIG["fetch_max_wait_ms"]
    assert "session_timeout_ms" not in consumer_options(kafka(), None)


def test_kafka_python_knows_every_option() -> None:
    settings = kafka(security_protocol="SASL_SSL", ssl_cafile="ca.pem", **LOGIN)
    assert not set(client_options(settings)) - set(KafkaAdminClient.DEFAULT_CONFIG)
    assert not set(producer_options(settings)) - set(KafkaProducer.DEFAULT_CONFIG)
    assert not set(consumer_options(settings, "g")) - set(KafkaConsumer.DEFAULT_CONFIG)


def test_the_password_is_in_no_text_of_the_settings() -> None:
    settings = PipelineSettings(kafka=kafka(security_protocol="SASL_SSL", **LOGIN))
    for text in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert "sesame" not in text
    assert settings.event_log_place == "sparring.conversations.v1 at localhost:9092"


@pytest.mark.parametrize(
    "text",
    [
        "sasl_password = 'open sesame'",
        "bootstrap_servers = 'a:1'\nsasl_password = 'open sesame'",
        "bootstrap_servers = 'a:1'\nsecurity_protocol = 'SASL_SSL'\nsasl_password = 'open sesame'",
        "bootstrap_servers = 'a:1'\nsasl_password = ['open sesame']",
        "bootstrap_servers = 'a:1'\nunknown = 1\nsasl_password = 'open sesame'",
    ],
)
def test_the_password_is_in_no_error_of_the_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f"[pipelines.kafka]\n{text}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert "pipelines.kafka" in str(caught.value)
    assert "sesame" not in everything_said(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPARRING_PIPELINES", '{"kafka": {"sasl_password": "open sesame"'),
        ("SPARRING_PIPELINES__KAFKA", '{"sasl_password": "open sesame"}'),
        ("SPARRING_PIPELINES__KAFKA__SASL_PASSWORD", "open sesame"),
    ],
)
def test_nor_in_one_of_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "sesame" not in everything_said(caught.value)


@pytest.mark.parametrize("password", ["open sesame", ["open sesame"], {"open sesame": 1}, b"open sesame"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"security_protocol": "SASL_SSL"}, {"bootstrap_servers": "a:1", "unknown": 1}, {"sasl_username": "me"}],
)
def test_nor_in_one_of_the_model_itself(settings: dict[str, Any], password: Any) -> None:
    table = {**settings, "sasl_password": password}
    for model, given in ((KafkaSettings, table), (PipelineSettings, {"kafka": table})):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(given)
        assert "sesame" not in everything_said(caught.value)


def everything_said(error: BaseException) -> str:
    """By the error and by those that it came from: text, traceback, and what they keep."""
    said = "".join(traceback.format_exception(error))
    chain: list[BaseException | None] = [error]
    while chain:
        each = chain.pop()
        if each is not None:
            said += repr(each) + str(vars(each)) + (repr(each.errors()) if isinstance(each, ValidationError) else "")
            chain += [each.__cause__, each.__context__]
    return said


def test_kafka_python_never_logs_at_debug(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it writes the password, and the values of records."""
    library = logging.getLogger("kafka")
    monkeypatch.setattr(library, "level", library.level)
    caplog.set_level(logging.DEBUG)
    settings = kafka(bootstrap_servers="127.0.0.1:9", security_protocol="SASL_PLAINTEXT", **LOGIN)
    log_plainly(logging.DEBUG)
    logging.getLogger("pipelines").debug("ours is heard")
    with (
        pytest.raises(EventLogUnavailable),
        administration(settings.model_copy(update={"delivery_timeout_seconds": 0.02})),
    ):
        pass
    assert "ours is heard" in caplog.text
    assert "Unable to bootstrap" in caplog.text
    assert "sesame" not in caplog.text


def test_mistakes_in_the_file_name_the_key(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[pipelines.kafka]\npartition = 3\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert "pipelines.kafka.bootstrap_servers: is not set, and has no default" in str(caught.value)
    assert "pipelines.kafka.partition: unknown key, did you mean partitions?" in str(caught.value)


def test_the_environment_alone_can_choose_kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARRING_PIPELINES__KAFKA__BOOTSTRAP_SERVERS", "kafka-1:9092,kafka-2:9092")
    kafka = load_settings().pipelines.kafka
    assert kafka is not None
    assert kafka.bootstrap_servers == "kafka-1:9092,kafka-2:9092"


def test_the_example_in_the_docs_is_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", STREAMING.read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    (named,) = re.findall(r'"/etc/sparring/([\w.-]+)"', blocks[0])
    (tmp_path / named).touch()
    text = blocks[0].replace("/etc/sparring", str(tmp_path))
    assert "sasl_password" not in tomllib.loads(text)["pipelines"]["kafka"]
    path = tmp_path / "sparring.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="SASL_SSL needs sasl_password too"):
        load_settings(path)
    monkeypatch.setenv("SPARRING_PIPELINES__KAFKA__SASL_PASSWORD", "open sesame")
    kafka = load_settings(path).pipelines.kafka
    assert kafka is not None
    assert client_options(kafka)["sasl_plain_password"] == "open sesame"
