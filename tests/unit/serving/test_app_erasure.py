"""Erasing a conversation: its text is gone from every file, its id stays taken, a crash in between is made good."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from negotiation.roles import Role
from serving.client import NotFound, SparringClient
from serving.store import ConversationStore, sqlite_engine

SECRET = "violet-submarine"


def files_with(folder: Path, text: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file() and text.encode() in path.read_bytes())


async def erase(shop, identity: str, who: str = "acme") -> int:
    return (await shop.client.delete(f"/v1/conversations/{identity}", headers=shop.headers(who))).status_code


async def test_the_text_is_gone_from_every_file_and_the_log_has_a_tombstone(shop):
    shop.engine.say = lambda request: f"No {SECRET} today."
    kept = await shop.open(2)
    opened = await shop.open(1)
    for number in range(3):
        await shop.say(opened["id"], f"A {SECRET}, please.", key=f"m{number}")
    folder = shop.settings.state_dir
    await shop.app.state.service.conversations.upkeep()
    assert any(name.startswith("checkpoints.db") for name in files_with(folder, SECRET))
    assert any(name.startswith("serving.db") for name in files_with(folder, SECRET))
    assert await erase(shop, kept["id"]) == 204
    assert await erase(shop, opened["id"]) == 204
    assert files_with(folder, SECRET) == []
    events = await shop.logged(opened["id"])
    assert events[-1].payload.type == "erased"
    assert [event.sequence for event in events] == list(range(len(events)))
    assert shop.slots.pinned == {"agent@1": 0}
    assert "sparring_conversations_erased_total 2.0" in (await shop.client.get("/metrics")).text


async def test_afterwards_it_is_as_if_there_had_been_none(shop):
    headers = {"Idempotency-Key": "open-1"}
    opened = (await shop.client.post("/v1/conversations", json=shop.opening(), headers=headers)).json()
    await shop.say(opened["id"], "[quit]", key="m-1")
    assert await erase(shop, opened["id"]) == 204
    assert await erase(shop, opened["id"]) == 204
    path = f"/v1/conversations/{opened['id']}"
    assert (await shop.client.get(path)).status_code == 404
    assert (await shop.say(opened["id"], "[quit]", key="m-1")).status_code == 404
    assert (await shop.client.post(f"{path}/outcome", json={"agreed": False})).status_code == 404
    again = await shop.client.post("/v1/conversations", json=shop.opening(), headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "conversation_erased")
    assert [event.payload.type for event in await shop.logged(opened["id"])].count("erased") == 1


async def test_an_open_one_is_not_closed_later(make_shop):
    async with make_shop(conversation_ttl_seconds=0.001) as shop:
        opened = await shop.open()
        assert await erase(shop, opened["id"]) == 204
        await asyncio.sleep(0.01)
        assert await shop.app.state.service.conversations.expire() == 0
        assert (await shop.logged(opened["id"]))[-1].payload.type == "erased"


async def test_while_a_message_is_answered_it_is_409(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.engine.gate.clear()
    saying = asyncio.create_task(shop.say(opened["id"], "Hello"))
    while not shop.engine.requests:
        await asyncio.sleep(0)
    response = await shop.client.delete(f"/v1/conversations/{opened['id']}")
    assert (response.status_code, response.headers["retry-after"]) == (409, "1")
    shop.engine.gate.set()
    assert (await saying).status_code == 200
    assert await erase(shop, opened["id"]) == 204


@pytest.mark.parametrize("restart", [True, False])
async def test_an_erasure_cut_short_is_finished(make_shop, restart):
    async with make_shop() as before:
        opened = await before.open()
        before.cut_off(True)
        assert await erase(before, opened["id"]) == 500
        assert (await before.client.get(f"/v1/conversations/{opened['id']}")).status_code == 404
        before.cut_off(False)
        if not restart:
            await before.app.state.service.conversations.upkeep()
            assert (await before.logged(opened["id"]))[-1].payload.type == "erased"
            assert await erase(before, opened["id"]) == 204
            return
    async with make_shop(sink=before.sink) as after:
        events = await after.logged(opened["id"])
        assert [event.payload.type for event in events] == ["opened", "message", "erased"]
        assert after.slots.pinned == {"agent@1": 0}
        assert await erase(after, opened["id"]) == 204


async def test_what_was_not_published_yet_never_is(shop):
    opened = await shop.open()
    await shop.logged()
    shop.sink.failure = OSError("gone")
    assert (await shop.say(opened["id"], "A secret")).status_code == 200
    shop.cut_off(True)
    assert (await shop.say(opened["id"], "Hello")).status_code == 500
    shop.cut_off(False)
    assert await erase(shop, opened["id"]) == 204
    shop.sink.failure = None
    events = await shop.logged(opened["id"])
    assert [event.payload.type for event in events] == ["opened", "message", "erased"]
    assert [event.sequence for event in events] == [0, 1, 6], "behind all that was ever said"


async def test_our_client_can_erase(shop):
    import httpx

    opened = await shop.open()
    transport = httpx.ASGITransport(shop.app, raise_app_exceptions=False)
    async with SparringClient("http://shop", shop.keys["acme"], transport=transport) as client:
        await client.erase_conversation(opened["id"])
        with pytest.raises(NotFound):
            await client.get_conversation(opened["id"])
        with pytest.raises(NotFound):
            await client.erase_conversation("conv_0")


async def test_a_file_of_an_earlier_version_gets_the_new_columns(tmp_path):
    old = sqlite3.connect(tmp_path / "serving.db")
    old.executescript(
        "CREATE TABLE conversations (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, adapter TEXT NOT NULL,"
        " open INTEGER NOT NULL, pending INTEGER NOT NULL, touched REAL NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE answers (tenant TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL,"
        " body TEXT NOT NULL, given REAL NOT NULL, PRIMARY KEY (tenant, key)) WITHOUT ROWID;"
        "INSERT INTO conversations VALUES ('conv_1', 'acme', 'agent@1', 1, 0, 5.0);"
        "INSERT INTO answers VALUES ('acme', 'k', 'f', '{}', 5.0);"
    )
    old.close()
    for _ in range(2):
        store = ConversationStore(sqlite_engine(tmp_path / "serving.db"))
        row, answer = await store.begin("conv_1", "acme", "k")
        assert row is not None
        assert (row.open, row.erased) == (True, False)
        assert answer is not None
        store.close()
