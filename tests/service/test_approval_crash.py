"""``kill -9`` while an offer waits for a person: it waits on after the restart, and is made exactly once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from negotiation.catalogue import scenario_named
from negotiation.events import Approval, ConversationEvent, Offer
from negotiation.roles import Role
from pipelines.event_log import SqliteEventLog
from serving.auth import KeyStore

pytestmark = [pytest.mark.service, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
CONTEXT = scenario_named("telesales").generate(1)
FLOORS = CONTEXT.views[Role.AGENT]["floors"]
VEHICLE = next(iter(FLOORS))
PRICE = FLOORS[VEHICLE] // 100 + 250
WORDS = f"I have the {VEHICLE} {PRICE} here. [offer {VEHICLE} {PRICE}]"
MOVE = {"kind": "offer", "arguments": [VEHICLE, str(PRICE)]}
ASKED, NOTE = "What do you have?", "good customer"


class Shop:
    """A state directory and the services that run on it one after the other."""

    def __init__(self, state_dir: Path, database: str | None) -> None:
        self.state_dir, self.database = state_dir, database
        keys = KeyStore(state_dir / "keys.json")
        self.customer, self.boss = (
            {"Authorization": f"Bearer {keys.create_key('acme', scope)}"} for scope in ("tenant", "admin")
        )
        self.process: subprocess.Popen[str] | None = None
        self.http = httpx.Client(timeout=60)
        self.log = state_dir / "service.log"

    def start(self) -> None:
        line = [sys.executable, str(Path(__file__).with_name("scripted_service.py")), str(self.state_dir)]
        line += [WORDS, str(PRICE * 100), *([self.database] if self.database else [])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert self.process.stdout is not None
        url = self.process.stdout.readline().strip()
        assert url, self.log.read_text()[-3000:]
        self.http.base_url = httpx.URL(url)
        while self.http.get("/readyz").status_code != 200:
            assert self.process.poll() is None
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            assert self.process.wait(10) == -9
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def post(self, path: str, body: dict[str, Any], key: str, who: dict[str, str] | None = None) -> httpx.Response:
        headers = {**(who or self.customer), "Idempotency-Key": key}
        return self.http.post(f"/v1/conversations{path}", json=body, headers=headers)

    def held(self) -> tuple[str, httpx.Response]:
        """A conversation whose offer waits: its id, and what the customer was told."""
        views = {"agent": CONTEXT.views[Role.AGENT]}
        context = {"public": CONTEXT.public, "views": views, "first_speaker": "counterpart"}
        opened = self.post("", {"scenario": "telesales", "context": context}, "open")
        assert opened.status_code == 201, opened.text
        identity = opened.json()["id"]
        told = self.post(f"/{identity}/messages", {"text": ASKED}, "said")
        assert told.json()["state"] == "awaiting_approval"
        return identity, told

    def approve(self, identity: str) -> httpx.Response:
        """Always the same decision under the same key, so each call after the first is a retry."""
        return self.post(f"/{identity}/approval", {"approved": True, "note": NOTE}, "decision", self.boss)

    def waiting(self, identity: str) -> httpx.Response:
        return self.http.get(f"/v1/conversations/{identity}/approval", headers=self.boss)

    def shown(self, identity: str) -> dict[str, Any]:
        return dict(self.http.get(f"/v1/conversations/{identity}", headers=self.customer).json())

    def events(self, count: int) -> list[ConversationEvent]:
        """All that is in the log, once it has ``count`` events: they are published in the background."""
        log = SqliteEventLog(self.state_dir / "events.db")
        deadline = time.monotonic() + 20
        while len(events := [record.event for record in log.poll("test", 1000)]) < count:
            assert time.monotonic() < deadline, [event.payload.type for event in events]
            time.sleep(0.02)
        log.close()
        return events


@pytest.fixture(params=["sqlite", "postgres"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    database = request.getfixturevalue("database").url if request.param == "postgres" else None
    shop = Shop(tmp_path, database)
    try:
        shop.start()
        yield shop
    finally:
        shop.kill()
        shop.http.close()


def still_waits(shop: Shop, identity: str, told: httpx.Response) -> None:
    """The very offer waits, nobody was told of it, and the customer is asked to be patient."""
    seen = shop.waiting(identity)
    assert (seen.status_code, seen.json()) == (200, {"text": WORDS, "move": MOVE})
    shown = shop.shown(identity)
    assert (shown["state"], [turn["text"] for turn in shown["turns"]]) == ("awaiting_approval", [ASKED])
    assert shop.post(f"/{identity}/messages", {"text": ASKED}, "said").json() == told.json()
    impatient = shop.post(f"/{identity}/messages", {"text": "Hello?"}, "impatient")
    assert (impatient.status_code, impatient.json()["error"]["code"]) == (409, "awaiting_approval")
    assert int(impatient.headers["retry-after"]) > 0
    assert [event.payload.type for event in shop.events(2)] == ["opened", "message"]


def made_once(shop: Shop, identity: str, answer: dict[str, Any]) -> None:
    """One binding offer, with the approval noted: in the log, in the conversation, and for whoever asks again."""
    assert answer["reply"] == {"text": WORDS, "move": MOVE}
    assert shop.approve(identity).json() == answer
    late = shop.post(f"/{identity}/approval", {"approved": False, "note": ""}, "another", shop.boss)
    assert (late.status_code, late.json()["error"]["code"]) == (409, "nothing_to_approve")
    assert (shop.waiting(identity).status_code, shop.shown(identity)["state"]) == (409, "open")
    assert [turn["text"] for turn in shop.shown(identity)["turns"]] == [ASKED, WORDS]
    events = shop.events(4)
    assert [event.payload.type for event in events] == ["opened", "message", "message", "offer"]
    assert [event.sequence for event in events] == [0, 1, 2, 3]
    offer = events[-1].payload
    assert isinstance(offer, Offer)
    assert offer.move.model_dump(mode="json") == MOVE
    assert (offer.binding, offer.approval, offer.approval_note) == (True, Approval.APPROVED, NOTE)


def can_be_accepted(shop: Shop, identity: str) -> None:
    bought = shop.post(f"/{identity}/messages", {"text": "Good. [accept]"}, "accept").json()
    assert (bought["state"], bought["agreement"]) == ("closed", MOVE)


def test_the_offer_waits_across_a_kill_and_is_made_once(shop: Shop) -> None:
    identity, told = shop.held()
    shop.restart()
    still_waits(shop, identity, told)
    shop.restart()
    still_waits(shop, identity, told)
    answer = shop.approve(identity)
    assert answer.status_code == 200, answer.text
    made_once(shop, identity, answer.json())
    can_be_accepted(shop, identity)


def test_an_approval_that_was_acknowledged_survives_a_kill(shop: Shop) -> None:
    identity, _ = shop.held()
    answer = shop.approve(identity)
    assert answer.status_code == 200, answer.text
    shop.restart()
    made_once(shop, identity, answer.json())
    can_be_accepted(shop, identity)


@contextmanager
def log_taken(path: Path) -> Iterator[None]:
    """Nobody can write to the event log meanwhile."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_an_approval_that_was_acknowledged_but_not_published_survives_a_kill(shop: Shop) -> None:
    identity, _ = shop.held()
    shop.events(2)
    with log_taken(shop.state_dir / "events.db"):
        answer = shop.approve(identity)
        assert answer.status_code == 200, "customers do not wait for the event log"
        shop.kill()
    assert [event.payload.type for event in shop.events(2)] == ["opened", "message"]
    shop.start()
    assert [event.payload.type for event in shop.events(4)][2:] == ["message", "offer"], "published after the start"
    made_once(shop, identity, answer.json())
    can_be_accepted(shop, identity)
