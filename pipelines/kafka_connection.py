"""From our settings to kafka-python's clients, and from its errors to ours.

The one place that knows kafka-python's configuration names. Left out on purpose: SASL by Kerberos or OAuth, and
transactions (event ids make repeats harmless).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient

from negotiation.event_log import EventLogUnavailable
from pipelines.config import KafkaSettings

CLIENT_ID = "sparring"
MAX_RECORD_BYTES = 1_000_000
"""Largest event that is sent: under the 1,048,588 bytes that brokers accept by default, headers included."""
SESSION_MILLISECONDS, HEARTBEAT_MILLISECONDS = 15_000, 3_000
"""After a consumer died, its partitions are given to others within the first."""
_UNKNOWN_TOPIC = 3
_C = TypeVar("_C")


class TopicMissing(EventLogUnavailable):
    """A topic that the brokers do not have."""


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """What every kafka-python client is given: where the brokers are, and how to be let in."""
    timeout = round(1000 * settings.delivery_timeout_seconds)
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "client_id": CLIENT_ID,
        "security_protocol": settings.security_protocol,
        "bootstrap_timeout_ms": timeout,
        # Half, so that a request that got lost is sent again within the timeout.
        "request_timeout_ms": max(600, min(30_000, timeout // 2)),
        "reconnect_backoff_max_ms": 1000,
    }
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(settings, name)
        if path is not None:
            options[name] = str(path)
    if settings.sasl_mechanism is not None:
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        assert settings.sasl_password is not None
        options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def producer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Acknowledged by all in-sync replicas, once each and in order within a partition."""
    timeout = round(1000 * settings.delivery_timeout_seconds)
    return {
        **client_options(settings),
        "acks": "all",
        "enable_idempotence": True,
        "delivery_timeout_ms": timeout,
        "max_block_ms": timeout,
        # Requests of many records: a batch goes when it is full, or this many milliseconds after its first record.
        "linger_ms": 5,
        "batch_size": 256 * 1024,
        "max_request_size": 1_048_576,
        "allow_auto_create_topics": False,
    }


def consumer_options(settings: KafkaSettings, group: str | None) -> dict[str, Any]:
    """From the beginning where nothing is committed; commits only when told. Without a group: reads by position."""
    options = {
        **client_options(settings),
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
    }
    if group is not None:
        options |= {"session_timeout_ms": SESSION_MILLISECONDS, "heartbeat_interval_ms": HEARTBEAT_MILLISECONDS}
    return options


@contextmanager
def telling(settings: KafkaSettings, what: str) -> Iterator[None]:
    """Turn what kafka-python raises into EventLogUnavailable, naming brokers, what was tried and the remedy."""
    try:
        yield
    except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError) as error:
        raise EventLogUnavailable(
            f"Kafka at {settings.bootstrap_servers} did not let in user {settings.sasl_username!r} by "
            f"{settings.sasl_mechanism} ({type(error).__name__}): correct sasl_username, sasl_password or "
            "sasl_mechanism of [pipelines.kafka]"
        ) from error
    except AuthorizationError as error:
        user = "without a login" if settings.sasl_username is None else f"as user {settings.sasl_username!r}"
        raise EventLogUnavailable(
            f"Kafka at {settings.bootstrap_servers} could not {what} {user} ({type(error).__name__}): grant what "
            "docs/streaming.md lists to that user, or correct the login of [pipelines.kafka]"
        ) from error
    except KafkaError as error:
        raise EventLogUnavailable(
            f"Kafka at {settings.bootstrap_servers} could not {what} within "
            f"{settings.delivery_timeout_seconds:g} s ({type(error).__name__}: {error}): start the brokers, correct "
            "[pipelines.kafka], or raise its delivery_timeout_seconds"
        ) from error
    except OSError as error:
        # Certificates and keys are read when a client is made.
        raise EventLogUnavailable(
            f"Kafka at {settings.bootstrap_servers} could not {what} ({type(error).__name__}: {error}): check the "
            "ssl_ files of [pipelines.kafka]"
        ) from error


def _made(make: Callable[..., _C], options: dict[str, Any]) -> _C:
    # A constructor that fails leaves its network thread and sockets behind, and nothing to close them by.
    networks: list[KafkaNetClient] = []

    def network(**configs: Any) -> KafkaNetClient:
        networks.append(KafkaNetClient(**configs))
        return networks[-1]

    try:
        return make(**options, kafka_client=network)
    except BaseException:
        for each in networks:
            each.close()
        raise


def open_producer(settings: KafkaSettings) -> KafkaProducer:
    """A connected producer. Raises EventLogUnavailable."""
    with telling(settings, "be reached"):
        return _made(KafkaProducer, producer_options(settings))


def open_consumer(settings: KafkaSettings, group: str | None) -> KafkaConsumer:
    """A connected consumer that has subscribed to nothing. Raises EventLogUnavailable."""
    with telling(settings, "be reached"):
        return _made(KafkaConsumer, consumer_options(settings, group))


@contextmanager
def administration(settings: KafkaSettings) -> Iterator[KafkaAdminClient]:
    """A connected administration client. Raises EventLogUnavailable, also for what is raised inside."""
    with telling(settings, "be reached"):
        client = _made(KafkaAdminClient, client_options(settings))
    try:
        with telling(settings, "answer"):
            yield client
    finally:
        client.close()


def check_topics(settings: KafkaSettings, topics: Sequence[str]) -> None:
    """Raises TopicMissing naming those that the brokers do not have."""
    with administration(settings) as client:
        found = client.describe_topics(list(topics))
    missing = sorted({topic["name"] for topic in found if topic["error_code"] == _UNKNOWN_TOPIC})
    if missing:
        raise TopicMissing(
            f"Kafka at {settings.bootstrap_servers} has no topic {' and no topic '.join(missing)}: create what is "
            "missing with `sparring topics apply`"
        )
