"""Events go from the outbox to the log: in order, each at least once, whatever fails on the way."""

from __future__ import annotations

import asyncio
import random

import pytest

from negotiation.event_log import EventRefused
from negotiation.roles import Role
from serving.room import Room


def sequences(events) -> list[int]:
    return [event.sequence for event in events]


async def backlog(shop) -> int:
    await shop.app.state.service.relay._measure()
    page = (await shop.client.get("/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith("sparring_outbox_events ")]
    return int(float(line.split()[1]))


async def test_customers_are_answered_while_the_log_is_away(shop):
    shop.sink.failure = OSError("no broker")
    opened = await shop.open(first=Role.COUNTERPART)
    for number in range(3):
        assert (await shop.say(opened["id"], f"Message {number}")).status_code == 200
    assert await shop.logged(opened["id"]) == []
    assert await backlog(shop) == 7
    shop.sink.failure = None
    assert sequences(await shop.logged(opened["id"])) == list(range(7))
    assert await backlog(shop) == 0


async def test_what_waited_is_published_after_a_restart(make_shop):
    async with make_shop() as before:
        before.sink.failure = OSError("no broker")
        opened = await before.open()
        await before.say(opened["id"], "Hello")
    assert before.sink.events == []
    before.sink.failure = None
    async with make_shop(sink=before.sink) as after:
        assert sequences(await after.logged(opened["id"])) == list(range(4))


async def test_nobody_needs_to_ask_for_it(shop):
    opened = await shop.open()
    while len(shop.sink.of(opened["id"])) < 2:
        await asyncio.sleep(0.005)


async def test_a_log_that_fails_half_way_gets_every_event_once_and_in_order(make_shop):
    async with make_shop() as shop:
        dice, append = random.Random(5), shop.sink.append

        def torn(events) -> None:
            kept = dice.randrange(len(events) + 1)
            append(events[:kept])
            if dice.random() < 0.5:
                raise ConnectionError("the broker went away")
            append(events[kept:])

        shop.sink.append = torn
        talks = [await shop.open(seed, Role.COUNTERPART) for seed in range(4)]
        for number in range(4):
            await asyncio.gather(*(shop.say(talk["id"], f"Message {number}") for talk in talks))
        relay = shop.app.state.service.relay
        while relay.backlog or await relay._outbox.oldest(1):
            try:
                await relay.flush()
            except ConnectionError:
                continue
        for talk in talks:
            assert sequences(shop.sink.of(talk["id"])) == list(range(9))
        assert shop.sink.appended > len(shop.sink.events), "some were published again"


async def test_an_event_that_is_refused_for_good_blocks_nobody(shop, caplog):
    append, bad = shop.sink.append, []

    def picky(events) -> None:
        for event in events:
            if event.conversation_id in bad:
                raise EventRefused(event.event_id, "contradicts the log")
        append(events)

    refused, fine = await shop.open(1, Role.COUNTERPART), await shop.open(2, Role.COUNTERPART)
    await shop.logged()
    bad.append(refused["id"])
    shop.sink.append = picky
    for talk in (refused, fine):
        assert (await shop.say(talk["id"], "Hello")).status_code == 200
    assert sequences(await shop.logged(fine["id"])) == [0, 1, 2]
    assert sequences(await shop.logged(refused["id"])) == [0]
    assert "sparring_refused_events_total 2.0" in (await shop.client.get("/metrics")).text
    assert "Hello" not in caplog.text
    bad.clear()
    assert await backlog(shop) == 0, "and is not tried again"


@pytest.mark.parametrize(
    ("setting", "code", "names"),
    [
        ({"min_free_bytes": 2**60}, "storage_full", "min_free_bytes"),
        ({"max_outbox_events": 1}, "outbox_full", "limit is 1"),
    ],
)
async def test_without_room_a_message_is_refused_before_it_is_taken(make_shop, setting, code, names):
    async with make_shop() as before:
        opened = await before.open(first=Role.COUNTERPART)
        before.sink.failure = OSError("no broker")
        await before.say(opened["id"], "Hello")
    async with make_shop(sink=before.sink, **setting) as shop:
        await shop.app.state.service.relay._measure()
        for response in (
            await shop.say(opened["id"], "Hello again"),
            await shop.client.post("/v1/conversations", json=shop.opening(2)),
        ):
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (503, code)
            assert names in error["message"]
            assert "retry-after" in response.headers
        assert shop.engine.requests == []
        shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()
        assert len(shown["turns"]) == 2


def test_room_asks_the_disk_that_the_folder_is_on(tmp_path):
    asked = []
    room = Room(
        tmp_path,
        min_free_bytes=10,
        max_outbox_events=5,
        backlog=lambda: 5,
        free=lambda path: asked.append(path) or 10,
    )
    room.require()
    assert asked == [tmp_path]
