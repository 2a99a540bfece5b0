"""Conversations on a real Postgres, and the same on SQLite: restarts, outages, replicas, pruning, retention.

Wants Postgres on 127.0.0.1:5432 with a user ``postgres`` that may create databases without a password.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import psycopg
import pytest

from negotiation.roles import Role

pytestmark = pytest.mark.service


@dataclass(frozen=True)
class Kept:
    """Where a service under test keeps conversations: its settings, and how many rows are in which table."""

    settings: dict[str, Any]
    tables: tuple[str, ...]
    rows: Callable[[str], int]


@pytest.fixture(params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "postgres":
        database = request.getfixturevalue("database")
        tables = ("checkpoints", "checkpoint_writes", "checkpoint_blobs")
        return Kept({"checkpoints_url": database.url}, tables, database.rows)

    def rows(table: str) -> int:
        file = "serving.db" if table in ("conversations", "answers") else "checkpoints.db"
        connection = sqlite3.connect(tmp_path / file)
        [(count,)] = connection.execute(f"SELECT count(*) FROM {table}")
        connection.close()
        return count

    return Kept({}, ("checkpoints", "writes"), rows)


@pytest.fixture
async def replicas(make_shop: Any, tmp_path: Path, database: Any):
    """Two services on one database, one log and one set of keys."""
    shared = {"checkpoints_url": database.url, "keys_file": tmp_path / "keys.json"}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(make_shop(state_dir=tmp_path / "a", **shared))
        second = await stack.enter_async_context(make_shop(sink=first.sink, state_dir=tmp_path / "b", **shared))
        yield first, second


async def started(shop: Any, requests: int = 1) -> None:
    """Until the engine has been asked that often."""
    while len(shop.engine.requests) < requests:
        await asyncio.sleep(0.001)


def refused(answer: Any, status: int, *codes: str) -> bool:
    return (answer.status_code, answer.headers.get("retry-after")) == (status, "1") and answer.json()["error"][
        "code"
    ] in codes


def whole(events: Any) -> list[str]:
    """The messages of a conversation, whose events must be numbered without gap or repeat."""
    assert [event.sequence for event in events] == list(range(len(events)))
    return [event.payload.text for event in events if event.payload.type == "message"]


async def test_a_conversation_goes_on_after_a_restart(make_shop, kept):
    async with make_shop(**kept.settings) as before:
        opened = await before.open(first=Role.COUNTERPART)
        assert (await before.say(opened["id"], "One", key="m-1")).status_code == 200
        shown = (await before.client.get(f"/v1/conversations/{opened['id']}")).json()
    async with make_shop(sink=before.sink, **kept.settings) as after:
        assert after.slots.pinned == {"agent@1": 1}
        assert (await after.client.get(f"/v1/conversations/{opened['id']}")).json() == shown
        assert (await after.say(opened["id"], "One", key="m-1")).status_code == 200
        assert after.engine.requests == [], "the answer was kept"
        assert (await after.say(opened["id"], "Two")).status_code == 200
        assert whole(await after.logged(opened["id"])) == ["One", "Good day.", "Two", "Good day."]


async def test_two_messages_at_once_one_is_409(make_shop, kept):
    async with make_shop(**kept.settings) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        shop.engine.gate.clear()
        first = asyncio.create_task(shop.say(opened["id"], "One"))
        await started(shop)
        assert refused(await shop.say(opened["id"], "Two"), 409, "conversation_busy")
        shop.engine.gate.set()
        assert (await first).status_code == 200
        assert whole(await shop.logged(opened["id"])) == ["One", "Good day."]


async def test_a_step_that_is_cancelled_leaves_the_conversation_free(make_shop, kept):
    async with make_shop(**kept.settings) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        shop.engine.gate.clear()
        for number in range(1, 4):
            hanging = asyncio.create_task(shop.say(opened["id"], "One"))
            await started(shop, number)
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)
        shop.engine.gate.set()
        assert (await shop.say(opened["id"], "Two")).status_code == 200
        assert whole(await shop.logged(opened["id"])) == ["Two", "Good day."]


async def test_only_the_newest_checkpoint_of_a_conversation_stays(make_shop, kept):
    async with make_shop(**kept.settings) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        sizes = []
        for number in range(4):
            await shop.say(opened["id"], f"Message {number}")
            assert kept.rows("checkpoints") > 1
            await shop.app.state.service.conversations.upkeep()
            sizes.append([kept.rows(table) for table in kept.tables])
        assert sizes[0][0] == 1
        assert sizes == [sizes[0]] * 4, "rows do not grow with the turns"
        assert len(whole(await shop.logged(opened["id"]))) == 8


async def test_retention_erases_closed_conversations_and_never_open_ones(make_shop, kept):
    changes = {"conversation_retention_seconds": 0.001, "idempotency_ttl_seconds": 0.001, **kept.settings}
    async with make_shop(**changes) as shop:
        opening = {"json": shop.opening(1, Role.COUNTERPART), "headers": {"Idempotency-Key": "open-1"}}
        closed = (await shop.client.post("/v1/conversations", **opening)).json()["id"]
        still_open = (await shop.open(2, Role.COUNTERPART))["id"]
        await shop.say(closed, "[quit]")
        logged = len(await shop.logged())
        await asyncio.sleep(0.01)
        await shop.app.state.service.conversations.upkeep()
        assert (await shop.client.get(f"/v1/conversations/{closed}")).status_code == 404
        assert (await shop.client.get(f"/v1/conversations/{still_open}")).status_code == 200
        assert kept.rows("checkpoints") == 1
        again = await shop.client.post("/v1/conversations", **opening)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "conversation_erased")
        assert len(await shop.logged()) == logged, "the event log is not this setting's matter"
        assert (await shop.say(still_open, "Hello")).status_code == 200


async def test_an_erased_conversation_leaves_its_id_alone(make_shop, kept):
    async with make_shop(**kept.settings) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        assert (await shop.say(opened["id"], "My name is Ann", key="m-1")).status_code == 200
        assert (await shop.client.delete(f"/v1/conversations/{opened['id']}")).status_code == 204
        assert (await shop.client.get(f"/v1/conversations/{opened['id']}")).status_code == 404
        assert [kept.rows(table) for table in (*kept.tables, "answers")] == [0] * (len(kept.tables) + 1)
        assert kept.rows("conversations") == 1
        assert (await shop.logged(opened["id"]))[-1].payload.type == "erased"


async def test_a_failed_opening_leaves_nothing(make_shop, kept):
    async with make_shop(**kept.settings) as shop:
        shop.engine.failure = RuntimeError("no reply")
        assert (await shop.client.post("/v1/conversations", json=shop.opening())).status_code == 500
        assert [kept.rows(table) for table in (*kept.tables, "conversations")] == [0] * (len(kept.tables) + 1)
        assert shop.slots.pinned == {"agent@1": 0}


async def test_an_outage_is_503_and_no_acknowledged_turn_is_lost(make_shop, database):
    async with make_shop(checkpoints_url=database.url, checkpoints_timeout_seconds=0.5) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        assert (await shop.say(opened["id"], "One", key="m-1")).status_code == 200
        database.shut()
        for _ in range(2):
            assert refused(await shop.say(opened["id"], "Two", key="m-2"), 503, "storage_unavailable", "storage_busy")
        assert refused(
            await shop.client.post("/v1/conversations", json=shop.opening(2)),
            503,
            "storage_unavailable",
            "storage_busy",
        )
        database.open()
        assert (await shop.say(opened["id"], "Two", key="m-2")).status_code == 200
        assert whole(await shop.logged(opened["id"])) == ["One", "Good day.", "Two", "Good day."]
        assert len(shop.engine.requests) == 2


async def test_connections_killed_in_mid_step_are_replaced(make_shop, database):
    async with make_shop(checkpoints_url=database.url) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        assert (await shop.say(opened["id"], "One", key="m-1")).status_code == 200
        shop.engine.gate.clear()
        running = asyncio.create_task(shop.say(opened["id"], "Two", key="m-2"))
        await started(shop, 2)
        database.kill()
        shop.engine.gate.set()
        answer = await running
        assert answer.status_code == 200
        assert (await shop.say(opened["id"], "Two", key="m-2")).json() == answer.json()
        assert whole(await shop.logged(opened["id"])) == ["One", "Good day.", "Two", "Good day."]


async def test_connections_killed_all_the_time_lose_and_repeat_nothing(make_shop, database):
    async with make_shop(checkpoints_url=database.url) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        talking = True

        async def disturb() -> None:
            while talking:
                await asyncio.to_thread(database.kill)
                await asyncio.sleep(0.05)

        disturbing = asyncio.create_task(disturb())
        statuses = set()
        for number in range(6):
            for _ in range(100):
                answer = await shop.say(opened["id"], f"Message {number}", key=f"m-{number}")
                statuses.add(answer.status_code)
                if answer.status_code == 200:
                    break
                await asyncio.sleep(0.03)
            else:
                pytest.fail("never answered")
        talking = False
        await disturbing
        assert statuses <= {200, 503}
        said = [text for text in whole(await shop.logged(opened["id"])) if text != "Good day."]
        assert said == [f"Message {number}" for number in range(6)]


async def test_an_exhausted_pool_says_which_setting(make_shop, database):
    async with make_shop(
        checkpoints_url=database.url, checkpoints_pool_size=1, checkpoints_timeout_seconds=0.2
    ) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        pool = shop.app.state.service.conversations._checkpoints._saver._pool
        async with pool.connection():
            answer = await shop.say(opened["id"], "Hello")
        assert refused(answer, 503, "storage_busy")
        assert "checkpoints_pool_size" in answer.json()["error"]["message"]
        assert (await shop.say(opened["id"], "Hello")).status_code == 200


async def test_many_conversations_share_few_connections(make_shop, database):
    async with make_shop(checkpoints_url=database.url, checkpoints_pool_size=2) as shop:
        opened = await asyncio.gather(*(shop.open(seed, Role.COUNTERPART) for seed in range(12)))
        answers = await asyncio.gather(*(shop.say(each["id"], "Hello", key=each["id"]) for each in opened))
        assert {answer.status_code for answer in answers} == {200}


async def test_of_two_replicas_one_answers_and_the_other_says_409(replicas):
    first, second = replicas
    opened = await first.open(first=Role.COUNTERPART)
    first.engine.gate.clear()
    running = asyncio.create_task(first.say(opened["id"], "One"))
    await started(first)
    assert refused(await second.say(opened["id"], "Two"), 409, "conversation_busy")
    first.engine.gate.set()
    assert (await running).status_code == 200
    assert (await second.say(opened["id"], "Two")).status_code == 200
    assert whole(await first.logged(opened["id"])) == ["One", "Good day.", "Two", "Good day."]


async def test_one_key_on_two_replicas_opens_one_conversation(replicas):
    headers = {"Idempotency-Key": "open-1"}
    first, second = replicas
    answers = await asyncio.gather(
        *(shop.client.post("/v1/conversations", json=first.opening(), headers=headers) for shop in replicas)
    )
    again = await second.client.post("/v1/conversations", json=first.opening(), headers=headers)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.json()["id"] for answer in answers if answer.status_code == 201} == {again.json()["id"]}
    assert len(await first.logged(again.json()["id"])) == 2


async def test_a_lost_lease_lets_nobody_fork_the_conversation(replicas, database):
    first, second = replicas
    opened = await first.open(first=Role.COUNTERPART)
    first.engine.gate.clear()
    running = asyncio.create_task(first.say(opened["id"], "One"))
    await started(first)
    database.kill("sparring leases")
    assert (await second.say(opened["id"], "Two")).status_code == 200
    first.engine.gate.set()
    assert refused(await running, 409, "conversation_busy")
    assert (await first.say(opened["id"], "Three")).status_code == 200
    assert whole(await first.logged(opened["id"])) == ["Two", "Good day.", "Three", "Good day."]


async def test_a_replica_holds_the_adapters_of_conversations_that_others_opened(replicas):
    first, second = replicas
    opened = await first.open(first=Role.COUNTERPART)
    upkeep = second.app.state.service.conversations.upkeep
    for _ in range(2):
        await upkeep()
        assert second.slots.pinned == {"agent@1": 1}
    await first.say(opened["id"], "[quit]")
    await upkeep()
    assert second.slots.pinned == {"agent@1": 0}


async def test_what_a_dead_replica_left_is_logged_by_another(make_shop, database, tmp_path):
    shared = {"checkpoints_url": database.url, "keys_file": tmp_path / "keys.json"}
    async with make_shop(state_dir=tmp_path / "a", **shared) as first:
        opened = await first.open(first=Role.COUNTERPART)
        async with make_shop(state_dir=tmp_path / "b", reply_timeout_seconds=0.001, **shared) as second:
            first.cut_off(True)
            assert (await first.say(opened["id"], "One")).status_code == 500
            await second.app.state.service.conversations.upkeep()
            assert [event.sequence for event in await second.logged(opened["id"])] == [1, 2]


async def test_replicas_that_start_together_on_an_empty_database(make_shop, database, tmp_path):
    async def serve(name: str) -> int:
        async with make_shop(state_dir=tmp_path / name, checkpoints_url=database.url) as shop:
            return (await shop.client.get("/readyz")).status_code

    assert await asyncio.gather(*(serve(name) for name in "abc")) == [200, 200, 200]


async def test_checkpoints_hold_plain_values_and_run_no_code(make_shop, database, tmp_path):
    marker = tmp_path / "ran"
    async with make_shop(checkpoints_url=database.url) as shop:
        opened = await shop.open(first=Role.COUNTERPART)
        attack = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {marker}"))))
        with psycopg.connect(database.url) as connection:
            connection.execute("UPDATE checkpoint_blobs SET blob = %s WHERE channel = 'conversation'", (attack,))
        assert (await shop.client.get(f"/v1/conversations/{opened['id']}")).status_code == 500
    assert not marker.exists()


async def test_a_schema_of_its_own_can_be_named_in_the_url(make_shop, database):
    with psycopg.connect(database.url) as connection:
        connection.execute("CREATE SCHEMA shop")
    url = f"{database.url}?options=-csearch_path%3Dshop"
    async with make_shop(checkpoints_url=url) as shop:
        await shop.open()
    assert database.rows("shop.conversations") == 1
