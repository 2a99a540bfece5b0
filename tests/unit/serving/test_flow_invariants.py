"""The flow under arbitrary replies and messages: numbering, authority, and what a failed step leaves."""

from __future__ import annotations

import asyncio
from itertools import cycle, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from negotiation.catalogue import NAMES, scenario_named
from negotiation.events import Closed, Message, Offer
from negotiation.roles import Role
from negotiation.telesales import read_offer
from serving.checkpoints import ConversationCheckpoints
from serving.flow import Flow
from serving.steps import ConversationClosed, Open, Say, Step

TEXTS = st.one_of(
    st.sampled_from(
        ["Hello.", "[accept]", "[quit]", "[agree]", "[select 1 0 0]", "[select none]", "[propose 1 1 0]", "[offer A"]
    ),
    st.builds(lambda v, p: f"Take it. [offer {v} {p}]", st.sampled_from("ABCZ"), st.integers(1, 40_000)),
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=30).filter(str.strip),
)


@settings(max_examples=25, deadline=None)
@given(
    scenario=st.sampled_from(NAMES),
    seed=st.integers(0, 200),
    theirs=st.lists(TEXTS, min_size=1, max_size=6),
    ours=st.lists(TEXTS, min_size=8, max_size=8),
)
def test_any_dialogue_is_numbered_whole_and_within_authority(tokenizer, scenario, seed, theirs, ours):
    asyncio.run(play(tokenizer, scenario, seed, theirs, ours))


async def play(tokenizer, scenario: str, seed: int, theirs: list[str], ours: list[str]) -> None:
    context = scenario_named(scenario).generate(seed)
    context = context.model_copy(update={"views": {Role.AGENT: context.views[Role.AGENT]}, "seed": None})
    replies = cycle(ours)  # a reply that oversteps is asked for again
    engine = _Engine(tokenizer, lambda request: next(replies))
    flow = Flow(engine, max_tokens=48, temperature=1.0, timeout_seconds=10)
    events, prompts = [], []
    with TemporaryDirectory() as folder:
        async with ConversationCheckpoints.open(Path(folder) / "c.db", flow.graph()) as checkpoints:
            command = Open(id="c", tenant="t", adapter="agent@1", context=context)
            record = await checkpoints.run("c", Step(command=command))
            events += record.events
            for text in theirs:
                if record.state.closed is not None:
                    with pytest.raises(ConversationClosed):
                        await checkpoints.run("c", Step(command=Say(text=text)))
                    break
                record = await checkpoints.run("c", Step(command=Say(text=text)))
                events += record.events
                prompts.append(tuple(record.ids))
            assert await checkpoints.read("c") == record
    assert [event.sequence for event in events] == list(range(len(events)))
    assert record.sequence == len(events)
    assert [e.payload.role for e in events if isinstance(e.payload, Message)] == [t.role for t in record.state.turns]
    assert sum(isinstance(e.payload, Closed) for e in events) == (record.state.closed is not None)
    assert len(record.ids) == len(record.sampled) == len(record.logprobs)
    assert all(b[: len(a)] == a for a, b in pairwise(prompts))
    if scenario == "telesales":
        floors = context.views[Role.AGENT]["floors"]
        for event in events:
            offer = event.payload
            if isinstance(offer, Offer) and offer.binding and offer.role is Role.AGENT and offer.move.kind == "offer":
                vehicle, price = read_offer(offer.move)
                assert price >= floors[vehicle]
        if record.state.agreement is not None:
            vehicle, price = read_offer(record.state.agreement)
            assert price >= floors[vehicle]


class _Engine:
    def __init__(self, tokenizer, say) -> None:
        self.tokenizer, self.say, self.context_length = tokenizer, say, 2048

    async def generate_async(self, request):
        from negotiation.generation import GenerationResult

        ids = self.tokenizer.encode(self.say(request) + "<|end|>", add_special_tokens=False)
        return GenerationResult(tuple(ids), tuple(-0.1 for _ in ids), "stop")


async def test_a_checkpoint_that_can_not_be_written_fails_the_step(tokenizer, tmp_path):
    context = scenario_named("telesales").generate(1)
    flow = Flow(_Engine(tokenizer, lambda request: "Hi."), max_tokens=48, temperature=1.0, timeout_seconds=10)
    async with ConversationCheckpoints.open(tmp_path / "c.db", flow.graph()) as checkpoints:
        command = Open(id="c", tenant="t", adapter="agent@1", context=context)
        opened = await checkpoints.run("c", Step(command=command))
        await checkpoints._saver.conn.execute("PRAGMA query_only=ON")
        with pytest.raises(Exception, match="readonly"):
            await checkpoints.run("c", Step(command=Say(text="Hello")))
        await checkpoints._saver.conn.execute("PRAGMA query_only=OFF")
        assert await checkpoints.read("c") == opened


async def test_checkpoints_hold_plain_values_and_run_no_code(tokenizer, tmp_path):
    import sqlite3

    import ormsgpack

    context = scenario_named("telesales").generate(1)
    flow = Flow(_Engine(tokenizer, lambda request: "Hi."), max_tokens=48, temperature=1.0, timeout_seconds=10)
    path, marker = tmp_path / "c.db", tmp_path / "ran"
    async with ConversationCheckpoints.open(path, flow.graph()) as checkpoints:
        await checkpoints.run("c", Step(command=Open(id="c", tenant="t", adapter="agent@1", context=context)))
        database = sqlite3.connect(path)
        newest = "SELECT type, checkpoint FROM checkpoints ORDER BY checkpoint_id DESC LIMIT 1"
        [(kind, blob)] = database.execute(newest)
        assert kind == "msgpack"
        plain = ormsgpack.unpackb(blob)  # no extension hook: fails on anything but plain values
        attack = ormsgpack.Ext(0, ormsgpack.packb(("os", "system", f"touch {marker}")))
        plain["channel_values"]["conversation"] = attack
        database.execute("UPDATE checkpoints SET checkpoint = ?", (ormsgpack.packb(plain),))
        database.commit()
        database.close()
        with pytest.raises(ValueError, match="validation error"):
            await checkpoints.read("c")
    assert not marker.exists()
