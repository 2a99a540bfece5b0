"""A person at the page: headless Chromium against a service with the bundled model.

Needs Chromium (``apt-get install chromium``). Each test fails on a console error, on a request to another host and on
a violation of the page's own policy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
expect = playwright.expect
expect.set_options(timeout=15_000)  # the machine may be busy; nothing here is about speed

MESSAGES = re.compile(r"/v1/conversations/[^/]+/messages$")
STARTING_SECONDS = 120


@pytest.fixture(scope="module")
def chromium() -> str:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, chromium: str) -> Iterator[tuple[str, str]]:
    """Address and a tenant's key of ``sparring serve`` in a folder of its own."""
    folder = tmp_path_factory.mktemp("page")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARRING_")}
    command = [sys.executable, "-m", "sparring.cli"]
    made = subprocess.run(
        [*command, "keys", "create", "--tenant", "acme", "--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    log = folder / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0"], cwd=folder, env=environment, stdout=output, stderr=output
        )
    try:
        yield _address(process, log), json.loads(made.stdout)["key"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    limit = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < limit:
        text = log.read_text(errors="replace")
        if (found := re.search(r"serving at (http://\S+)", text)) and "adapter in service" in text:
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.2)
    raise AssertionError(f"not serving within {STARTING_SECONDS} s: {log.read_text(errors='replace')}")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    # Ends with its module: while it is open an event loop runs here, in which no asynchronous test can.
    with playwright.sync_playwright() as driver:
        # Without its sandbox, which needs privileges that containers lack. Only our own page is loaded.
        launched = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


class Player:
    """A person at the page. ``refusals`` says that answers with an error status are part of the test."""

    def __init__(self, page: Any, address: str, key: str) -> None:
        self.page, self.address, self.key = page, address, key
        self.refusals = False
        self.complaints: list[str] = []
        self.keys_sent: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        refused = self.refusals and message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("data:", self.address)):
            self.complaints.append(f"a request to another host: {urlsplit(request.url).netloc}")
        if MESSAGES.search(request.url):
            self.keys_sent.append(request.headers["idempotency-key"])

    def enter(self) -> None:
        self.page.goto(self.address)
        self.page.get_by_label("API key").fill(self.key)
        self.page.get_by_role("button", name="Continue").click()

    def begin(self, title: str) -> None:
        self.enter()
        self.page.get_by_role("button", name=title).click()
        self.settled()

    def settled(self) -> None:
        """Until the last message is answered and shown."""
        expect(self.page.locator("#talk")).to_be_visible()
        expect(self.page.locator("#log")).to_have_attribute("aria-busy", "false")
        expect(self.page.locator(".provisional")).to_have_count(0)
        expect(self.page.locator(".turn, .remark").first).to_be_visible()

    def again(self) -> None:
        """Another talk after the one that has ended."""
        self.page.get_by_role("button", name="Negotiate again").click()
        expect(self.page.locator("#outcome")).to_be_hidden()
        self.settled()

    def say(self, text: str) -> None:
        self.page.get_by_label("Your message").fill(text)
        self.page.get_by_role("button", name="Send", exact=True).click()
        self.settled()

    @property
    def over(self) -> bool:
        return bool(self.page.locator("#outcome").is_visible())

    @property
    def accept(self) -> Any:
        return self.page.locator("#accept")

    def answering(self, *replies: dict[str, Any]) -> None:
        """Answer the next messages with these instead of asking the service; then ask it again."""
        waiting = list(replies)
        self.page.route(MESSAGES, lambda route: route.fulfill(**waiting.pop(0)) if waiting else route.continue_())

    def figure(self) -> str:
        expect(self.page.locator("#outcome .figure")).to_be_visible()
        return str(self.page.locator("#outcome .figure").inner_text())


@pytest.fixture
def player(browser: Any, service: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Player]:
    """At a desk, or on what the test is parametrized with."""
    context = browser.new_context(**getattr(request, "param", {"viewport": {"width": 1280, "height": 800}}))
    context.set_default_timeout(20_000)
    person = Player(context.new_page(), *service)
    yield person
    context.close()
    assert person.complaints == []
