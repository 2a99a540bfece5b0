"""What /metrics exposes is what docs/metrics.md says, and no label can grow with what clients send."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from negotiation.catalogue import scenario_named
from negotiation.generation import GenerationRequest
from negotiation.roles import Role
from serving.engines import ReplicaStatus

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(sparring_\w+)` \| (\w+) \| ([\w, ]*) ?\|", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    return {
        name: (kind, frozenset(labels.replace(",", " ").split()))
        for name, kind, labels in _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))
    }


def exposed(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name, type and labels of each family that has samples."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            found[name] = (family.type, frozenset(sample.labels) - {"le"})
    return found


async def test_the_table_in_the_docs_is_what_is_exposed(shop):
    shop.engine.replicas = (ReplicaStatus("http://one", "up", "", 0),)
    vehicle = next(iter(scenario_named("telesales").generate(1).views[Role.AGENT]["floors"]))
    shop.engine.say = lambda request: f"Nearly free. [offer {vehicle} 1]"
    opened = await shop.open()
    await shop.say(opened["id"], "[quit]")
    report = await shop.client.post(
        f"/v1/conversations/{opened['id']}/outcome", json={"success": False, "agreed": False}
    )
    assert report.status_code == 201, report.text
    request = shop.engine.requests[-1]
    engine = shop.app.state.service._engine
    async for _ in engine.stream(request):
        pass
    asked = {"model": "sparring-agent", "messages": [{"role": "user", "content": "Hello"}]}
    assert (await shop.client.post("/v1/chat/completions", json=asked)).status_code == 200
    shop.engine.failure = RuntimeError("broken")
    assert (await shop.client.post("/v1/conversations", json=shop.opening(2))).status_code == 500
    for name in ("agent@2", "counterpart@3"):
        shop.source.name = name
        await shop.client.post("/admin/reconcile", headers=shop.headers("root"))
    shop.app.state.service.metrics.background_failures.labels("upkeep").inc()
    text = (await shop.client.get("/metrics")).text
    assert exposed(text) == documented()


async def test_labels_do_not_grow_with_what_clients_send(shop):
    opened = await shop.open(first=Role.COUNTERPART)
    await shop.say(opened["id"], "Well. [gibberish 12]")
    await shop.client.request("BREW", "/v1/conversations")
    await shop.client.get("/v1/conversations/chatter")
    engine = shop.app.state.service._engine
    with pytest.raises(LookupError):
        await engine.generate_async(GenerationRequest((1, 2), "made-up@1"))
    text = (await shop.client.get("/metrics")).text
    for word in ("gibberish", "BREW", "chatter", "made-up", opened["id"]):
        assert word not in text
    assert 'sparring_offers_total{adapter="agent@1",binding="false",kind="other",role="counterpart"} 1.0' in text
    assert 'sparring_http_requests_total{method="other",route="/v1/conversations",status="405"} 1.0' in text
    assert 'sparring_reply_failures_total{adapter="unknown",reason="adapter_not_loaded"} 1.0' in text


async def test_offers_are_counted_by_whether_they_bind(shop):
    context = scenario_named("telesales").generate(1)
    vehicle, floor = next(iter(context.views[Role.AGENT]["floors"].items()))
    shop.engine.say = lambda request: f"Take it. [offer {vehicle} {floor // 100 + 1}]"
    opened = await shop.open(first=Role.COUNTERPART)
    await shop.say(opened["id"], "Your price?")
    shop.engine.say = lambda request: f"Then for nothing. [offer {vehicle} 1]"
    await shop.say(opened["id"], "Too much.")
    text = (await shop.client.get("/metrics")).text
    for binding in ("true", "false"):
        line = f'sparring_offers_total{{adapter="agent@1",binding="{binding}",kind="offer",role="agent"}} 1.0'
        assert line in text
    assert 'sparring_blocked_offers_total{adapter="agent@1"} 1.0' in text


async def test_swaps_are_timed_with_their_result(shop):
    for name in ("agent@2", "counterpart@3", "counterpart@3"):
        shop.source.name = name
        await shop.client.post("/admin/reconcile", headers=shop.headers("root"))
    text = (await shop.client.get("/metrics")).text
    assert 'sparring_adapter_swap_seconds_count{result="switched"} 2.0' in text
    assert 'sparring_adapter_swap_seconds_count{result="failed"}' in text


async def test_checkpoints_are_timed(shop):
    before = shop.app.state.service.metrics.registry.get_sample_value
    name, write = "sparring_checkpoint_seconds_count", {"operation": "write"}
    assert not before(name, write)
    await shop.open()
    assert before(name, write) > 1
    assert before(name, {"operation": "read"}) >= 1
