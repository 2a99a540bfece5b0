"""The HTTP API over real connections: the ``openai`` client, curl, clients that go away, and a graceful end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from negotiation.catalogue import scenario_named
from negotiation.roles import Role
from serving.auth import KeyStore

pytestmark = [pytest.mark.service, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
MESSAGES: list[Any] = [
    {"role": "system", "content": "You sell vehicles."},
    {"role": "user", "content": "What is your best price?"},
]


class Running:
    """A service process: its address, its key, and what it prints."""

    def __init__(self, process: subprocess.Popen[str], url: str, key: str) -> None:
        self.process, self.url, self.key = process, url, key
        self.headers = {"Authorization": f"Bearer {key}"}

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(api_key=self.key, base_url=f"{self.url}/v1", max_retries=0)

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line


@contextmanager
def service(state_dir: Path, *trusted_proxies: str) -> Iterator[Running]:
    key = KeyStore(state_dir / "keys.json").create_key("acme")
    with (state_dir / "service.log").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("loopback_service.py")), str(state_dir), *trusted_proxies],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, (state_dir / "service.log").read_text()[-3000:]
            ready(url)
            yield Running(process, url, key)
        finally:
            process.kill()
            process.wait()


def ready(url: str) -> None:
    while httpx.get(f"{url}/readyz", trust_env=False).status_code != 200:
        time.sleep(0.1)


def opening() -> dict[str, Any]:
    context = scenario_named("telesales").generate(1)
    views = {"agent": context.views[Role.AGENT]}
    return {"scenario": "telesales", "context": {"public": context.public, "views": views, "first_speaker": "agent"}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "go").touch()
    with service(folder) as process:
        yield process


def test_the_openai_client_is_answered(running: Running) -> None:
    client = running.client()
    assert [model.id for model in client.models.list()] == ["agent@1", "sparring-agent"]
    raw = client.chat.completions.with_raw_response.create(
        model="sparring-agent", messages=MESSAGES, temperature=0, max_tokens=12, logprobs=True
    )
    assert raw.headers["x-sparring-binding"] == "false"
    whole = raw.parse()
    assert whole.model == "agent@1"
    assert whole.choices[0].logprobs is not None
    stream = client.chat.completions.create(
        model="agent@1",
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    with pytest.raises(openai.BadRequestError, match="stop is not supported"):
        client.chat.completions.create(model="agent@1", messages=MESSAGES, stop=["."])
    with pytest.raises(openai.NotFoundError, match="model_not_found"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)


def test_nobody_names_another_address_for_itself(running: Running) -> None:
    """The service allows three wrong keys a minute; a new X-Forwarded-For each time does not help."""
    assert guesses_from_many_addresses(running) == [401, 401, 401, 429, 429]
    assert httpx.get(f"{running.url}/v1/models", headers=running.headers, trust_env=False).status_code == 200


def test_a_trusted_proxy_names_the_addresses_of_its_clients(tmp_path: Path) -> None:
    with service(tmp_path, "127.0.0.1") as behind_proxy:
        assert guesses_from_many_addresses(behind_proxy) == [401] * 5


def guesses_from_many_addresses(service: Running) -> list[int]:
    with httpx.Client(base_url=service.url, headers={"Authorization": "Bearer sk-guess"}, trust_env=False) as http:
        return [
            http.get("/v1/models", headers={"X-Forwarded-For": f"192.0.2.{number}"}).status_code
            for number in range(5)
        ]


@pytest.mark.skipif(shutil.which("curl") is None, reason="install curl to run the examples of docs/api.md")
def test_the_examples_in_the_docs_work(running: Running, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "api.md").read_text("utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 6
    script = "set -euo pipefail\n" + "\necho; echo ---\n".join(blocks)
    script = script.replace("curl ", "curl -sS --fail-with-body --noproxy '*' ")
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "BASE": running.url, "KEY": running.key},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [part.strip() for part in done.stdout.split("---")]
    assert len(answers) == len(blocks)
    assert any(answer.endswith("data: [DONE]") for answer in answers)
    assert sum('"error"' in answer for answer in answers) == 0


def test_a_client_that_goes_away_ends_the_generation(tmp_path: Path) -> None:
    with service(tmp_path) as slow:
        for stream in (True, False):
            body = {"model": "sparring-agent", "messages": MESSAGES, "stream": stream}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{slow.url}/v1/chat/completions", json=body, headers=slow.headers, timeout=2, trust_env=False
                )
            slow.wait_for("begun")
            slow.wait_for("ended")
        assert "sparring_chat_completions_total{" not in httpx.get(f"{slow.url}/metrics", trust_env=False).text


@pytest.mark.parametrize("what", ["conversation", "completion", "stream"])
def test_a_graceful_end_finishes_what_is_in_flight(tmp_path: Path, what: str) -> None:
    with service(tmp_path) as slow:
        answers: list[httpx.Response] = []
        ask: dict[str, Callable[[], httpx.Response]] = {
            "conversation": lambda: post(slow, "/v1/conversations", opening()),
            "completion": lambda: post(slow, "/v1/chat/completions", completion(stream=False)),
            "stream": lambda: post(slow, "/v1/chat/completions", completion(stream=True)),
        }
        asking = threading.Thread(target=lambda: answers.append(ask[what]()))
        asking.start()
        slow.wait_for("begun")
        slow.process.send_signal(signal.SIGTERM)
        host, port = slow.url.removeprefix("http://").split(":")
        while accepts(host, int(port)):
            time.sleep(0.05)
        assert answers == [], "connections are refused while the reply is still being made"
        (tmp_path / "go").touch()
        asking.join()
        assert answers[0].status_code == (201 if what == "conversation" else 200)
        if what == "stream":
            assert answers[0].text.endswith("data: [DONE]\n\n")
        assert slow.process.wait(timeout=60) == 0
    log = [json.loads(line) for line in (tmp_path / "service.log").read_text().splitlines() if line.startswith("{")]
    done = [entry for entry in log if entry["message"] in ("step", "completion")]
    assert [entry["request_id"] for entry in done] == [answers[0].headers["x-request-id"]]


def completion(*, stream: bool) -> dict[str, Any]:
    return {"model": "sparring-agent", "messages": MESSAGES, "stream": stream, "max_tokens": 8}


def post(slow: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{slow.url}{path}", json=body, headers=slow.headers, timeout=60, trust_env=False)


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True
