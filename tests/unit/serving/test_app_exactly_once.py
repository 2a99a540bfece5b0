"""Once in the log, once answered: retries, concurrency, lost events, restarts, expiry, swaps."""

from __future__ import annotations

import asyncio

import pytest

from negotiation.roles import Role


def sequence_is_whole(events) -> bool:
    return [event.sequence for event in events] == list(range(len(events)))


async def test_a_repeated_request_gets_the_same_answer_once(shop):
    headers = {"Idempotency-Key": "open-1"}
    first = await shop.client.post("/v1/conversations", json=shop.opening(), headers=headers)
    again = await shop.client.post("/v1/conversations", json=shop.opening(), headers=headers)
    assert first.json() == again.json()
    identity = first.json()["id"]
    said = await shop.say(identity, "Hello", key="m-1")
    assert (await shop.say(identity, "Hello", key="m-1")).json() == said.json()
    assert len(await shop.logged(identity)) == 4
    assert len(shop.engine.requests) == 2
    other = await shop.client.post("/v1/conversations", json=shop.opening(seed=2), headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert (await shop.say(identity, "Else", key="m-1")).status_code == 422
    assert (await shop.say(identity, "Hello", key="open-1")).status_code == 422


async def test_keys_of_tenants_do_not_meet(shop):
    headers = {"Idempotency-Key": "same"}
    mine = await shop.client.post("/v1/conversations", json=shop.opening(), headers=headers)
    theirs = await shop.client.post(
        "/v1/conversations", json=shop.opening(), headers={**headers, **shop.headers("rival")}
    )
    assert mine.json()["id"] != theirs.json()["id"]


async def test_a_second_message_at_once_is_409(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.engine.gate.clear()
    first = asyncio.create_task(shop.say(opened["id"], "One"))
    while not shop.engine.requests:
        await asyncio.sleep(0)
    second = await shop.say(opened["id"], "Two")
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conversation_busy")
    assert second.headers["retry-after"] == "1"
    shop.engine.gate.set()
    assert (await first).status_code == 200
    assert (await shop.say(opened["id"], "Two")).status_code == 200
    assert sequence_is_whole(await shop.logged(opened["id"]))


async def test_more_than_the_bound_in_progress_is_503(make_shop):
    async with make_shop(max_waiting=2) as shop:
        shop.engine.gate.clear()
        running = [asyncio.create_task(shop.open(seed)) for seed in (1, 2)]
        while len(shop.engine.requests) < 2:
            await asyncio.sleep(0)
        refused = await shop.client.post("/v1/conversations", json=shop.opening(3))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        shop.engine.gate.set()
        await asyncio.gather(*running)


async def test_events_that_could_not_be_logged_are_not_acknowledged_and_not_lost(shop):
    opened = await shop.open()
    shop.cut_off(True)
    assert (await shop.say(opened["id"], "Hello", key="m")).status_code == 500
    shop.cut_off(False)
    assert len(await shop.logged(opened["id"])) == 2
    retried = await shop.say(opened["id"], "Hello", key="m")
    assert retried.status_code == 200
    assert len(shop.engine.requests) == 2, "the kept reply is sent, no second one is made"
    assert len(await shop.logged(opened["id"])) == 4
    assert sequence_is_whole(await shop.logged(opened["id"]))


@pytest.mark.parametrize("retry_first", [True, False])
async def test_after_a_restart_the_kept_step_is_logged_and_its_answer_waits(make_shop, retry_first):
    async with make_shop() as before:
        ids = [(await before.open(seed))["id"] for seed in range(3)]
        before.cut_off(True)  # the crash comes between the checkpoint and the log
        for number, identity in enumerate(ids):
            assert (await before.say(identity, "Hello", key=f"m{number}")).status_code == 500
        lost = await before.client.post(
            "/v1/conversations", json=before.opening(9), headers={"Idempotency-Key": "open-9"}
        )
        assert lost.status_code == 500
        before.cut_off(False)
    async with make_shop(sink=before.sink) as after:
        assert after.slots.pinned == {"agent@1": 4}
        if retry_first:
            headers = {**after.headers("acme"), "Idempotency-Key": "open-9"}
            again = await after.client.post("/v1/conversations", json=after.opening(9), headers=headers)
            assert again.status_code == 201
            ids.append(again.json()["id"])
            for number, identity in enumerate(ids[:3]):
                assert (await after.say(identity, "Hello", key=f"m{number}")).status_code == 200
            assert after.engine.requests == []
        for identity in ids:
            assert (await after.say(identity, "And now?")).status_code == 200
            events = await after.logged(identity)
            assert sequence_is_whole(events)
        assert after.slots.pinned == {"agent@1": 4}


async def test_a_crash_before_the_checkpoint_leaves_nothing(make_shop):
    async with make_shop() as before:
        opened = await before.open(first=Role.COUNTERPART)
        before.engine.gate.clear()
        hanging = [
            asyncio.create_task(before.say(opened["id"], "Hello", key="m")),
            asyncio.create_task(before.client.post("/v1/conversations", json=before.opening(5))),
        ]
        while len(before.engine.requests) < 2:
            await asyncio.sleep(0)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
    async with make_shop(sink=before.sink) as after:
        assert after.slots.pinned == {"agent@1": 1}
        assert len(await after.logged()) == 1
        assert (await after.say(opened["id"], "Hello", key="m")).status_code == 200
        assert [event.payload.type for event in await after.logged()] == ["opened", "message", "message"]


async def test_a_conversation_stays_with_the_adapter_it_began_with(shop):
    old = await shop.open(1, Role.COUNTERPART)
    shop.source.name = "agent@2"
    answer = await shop.client.post("/admin/reconcile", headers=shop.headers("root"))
    assert answer.json()["current"] == "agent@2"
    new = await shop.open(2, Role.COUNTERPART)
    await shop.say(old["id"], "Hello")
    await shop.say(new["id"], "Hello")
    assert [request.adapter for request in shop.engine.requests] == ["agent@1", "agent@2"]
    assert shop.slots.pinned == {"agent@1": 1, "agent@2": 1}
    await shop.say(old["id"], "[quit]")
    answer = await shop.client.post("/admin/reconcile", headers=shop.headers("root"))
    assert answer.json()["loaded"] == ["agent@2"]


async def test_an_old_version_comes_back_after_a_restart_from_the_kept_copy(make_shop):
    async with make_shop() as before:
        old = await before.open(1, Role.COUNTERPART)
        before.source.name = "agent@2"
        await before.app.state.service.reconcile()
    for leftover in (before.source.directory / "agent@1").parent.iterdir():
        leftover.rmdir()
    async with make_shop(sink=before.sink) as after:
        assert (await after.say(old["id"], "Hello")).status_code == 200
        assert after.engine.requests[0].adapter == "agent@1"


async def test_an_open_conversation_whose_adapter_is_gone_is_503_and_others_go_on(make_shop):
    async with make_shop() as before:
        old = await before.open(1, Role.COUNTERPART)
    (before.settings.adapters_dir / "agent@1").rmdir()
    async with make_shop(sink=before.sink) as after:
        after.engine.unload_adapter("agent@1")
        response = await after.say(old["id"], "Hello")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "adapter_not_loaded")


async def test_idle_conversations_are_closed_as_abandoned(make_shop):
    async with make_shop(conversation_ttl_seconds=0.001) as shop:
        opened = await shop.open()
        await asyncio.sleep(0.01)
        service = shop.app.state.service
        assert await service.conversations.expire() == 1
        assert await service.conversations.expire() == 0
        last = (await shop.logged(opened["id"]))[-1].payload
        assert (last.type, last.reason) == ("closed", "abandoned")
        assert shop.slots.pinned == {"agent@1": 0}
        assert (await shop.say(opened["id"], "Still there?")).status_code == 409
        report = {"agreed": False}
        assert (await shop.client.post(f"/v1/conversations/{opened['id']}/outcome", json=report)).status_code == 201
        assert sequence_is_whole(await shop.logged(opened["id"]))


async def test_upkeep_keeps_conversations_usable(shop):
    opened = await shop.open()
    await shop.say(opened["id"], "Hello")
    await shop.app.state.service.conversations.upkeep()
    assert (await shop.say(opened["id"], "Hello again")).status_code == 200
    shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).json()
    assert len(shown["turns"]) == 5


async def test_one_state_directory_one_service(shop, make_shop):
    from serving.app import StateInUse

    with pytest.raises(StateInUse, match="in use"):
        async with make_shop():
            pass
    assert (await shop.client.get("/readyz")).status_code == 200


async def test_a_step_after_a_settled_one_is_unfinished_until_it_is_settled_itself(shop, monkeypatch):
    opened = await shop.open(first=Role.COUNTERPART)
    shop.cut_off(True)
    assert (await shop.say(opened["id"], "One", key="m-1")).status_code == 500
    shop.cut_off(False)
    store = shop.app.state.service.conversations._store
    finish, calls = store.finish, []

    async def fails_the_second_time(*values, **more) -> None:
        calls.append(values)
        if len(calls) == 2:
            raise OSError("gone")
        await finish(*values, **more)

    monkeypatch.setattr(store, "finish", fails_the_second_time)
    assert (await shop.say(opened["id"], "Two", key="m-2")).status_code == 500
    assert (await shop.say(opened["id"], "Two", key="m-2")).status_code == 200
    events = await shop.logged(opened["id"])
    assert sequence_is_whole(events)
    texts = [event.payload.text for event in events if event.payload.type == "message"]
    assert texts == ["One", "Good day.", "Two", "Good day."]
