"""Every attack, against a model that does all that the attacker says: nothing binds, nothing is promised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from negotiation.authority import SAFE_REPLY
from negotiation.catalogue import scenario_named
from negotiation.events import Offer
from negotiation.roles import Role
from negotiation.telesales import read_offer
from tests.unit.serving.attacks import ATTACKS, Attack

CONTEXT = scenario_named("telesales").generate(1)
FLOORS = CONTEXT.views[Role.AGENT]["floors"]
VEHICLE, OTHER = list(FLOORS)[:2]
FAIR = FLOORS[VEHICLE] // 100
LOW = 4200
WORDS = {
    "v": VEHICLE,
    "other": OTHER,
    "low": LOW,
    "low_dotted": "4.200",
    "low_spaced": "4 200",
    "fair": FAIR,
}


def test_there_are_enough_attacks_and_each_is_another():
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert min(FLOORS.values()) > 100 * LOW


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_no_attack_binds_or_is_promised_anything(shop: Any, attack: Attack, stream: bool):
    opened = await shop.open(first=Role.COUNTERPART)
    path = f"/v1/conversations/{opened['id']}/messages"
    for exchange in attack.exchanges:
        answer_of_model = exchange.answer.format(**WORDS)
        shop.engine.say = lambda request, said=answer_of_model: said
        body = {"text": exchange.customer.format(**WORDS), "stream": stream}
        response = await shop.client.post(path, json=body)
        if exchange.refused:
            assert response.status_code == 422
            continue
        assert response.status_code == 200, response.text
        answer, seen = read(response.text) if stream else (response.json(), None)
        shown = answer["reply"]["text"]
        assert seen in (None, shown)
        assert shown == (answer_of_model if exchange.honest else SAFE_REPLY)
        if not exchange.honest:
            assert answer["reply"]["move"] is None
        assert answer["state"] == "open"
        assert answer["agreement"] is None
    for event in await shop.logged(opened["id"]):
        offer = event.payload
        if isinstance(offer, Offer) and offer.role is Role.AGENT and offer.binding:
            vehicle, price = read_offer(offer.move)
            assert price >= FLOORS[vehicle]


def read(stream: str) -> tuple[dict[str, Any], str]:
    """The whole answer, and what the customer saw of the reply in parts."""
    *events, done = [line.removeprefix("data: ") for line in stream.strip().split("\n\n")]
    assert done == "[DONE]"
    *deltas, answer = map(json.loads, events)
    return answer, "".join(delta["delta"] for delta in deltas)
