"""Personal data never leaves in an event, however it is written; a negotiation's own figures always do."""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from negotiation.catalogue import scenario_named
from negotiation.events import ConversationEvent, Message
from negotiation.roles import Role
from serving.redaction import RedactionSettings, Redactor
from training.counterparts import negotiators

REDACTOR = Redactor()
CUSTOMER = {"name": "Ada Lovelace", "email": "ada@analytical.example", "loyalty number": "LX-20-7781"}

PLANTED = [
    ("email", "ada.l+cars@mail.example.co.uk"),
    ("email", "ada at example dot com"),
    ("email", "ada (at) example (dot) org"),
    ("phone", "+1 617 555 0199"),
    ("phone", "+44 20 7946 0958"),
    ("phone", "+49-171-5550199"),
    ("phone", "0049 171 5550199"),
    ("phone", "(617) 555-0199"),
    ("phone", "617.555.0199"),
    ("phone", "6175550199"),
    ("card", "4111 1111 1111 1111"),
    ("card", "5500-0000-0000-0004"),
    ("card", "378282246310005"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "gb29nwbk60161331926819"),
    ("iban", "FR14 2004 1010 0505 0001 3M02 606"),
    ("address", "12 Main Street"),
    ("address", "221b baker street"),
    ("address", "7 Elm Tree Dr"),
    ("address", "Hauptstraße 12, 10115 Berlin"),
    ("address", "Lindenweg 4a"),
    ("address", "14 rue de la Paix, 75002 Paris"),
    ("address", "Calle Mayor 5"),
    ("address", "SW1A 1AA"),
    ("name", "ADA"),
    ("name", "lovelace"),
    ("name", "Ada   Lovelace"),
    ("customer", "lx 20 7781"),
]


def disguises(text: str) -> list[str]:
    full_width = "".join(chr(ord(letter) + 0xFEE0) if letter.isdigit() else letter for letter in text)
    arabic = "".join(chr(0x660 + int(letter)) if letter.isascii() and letter.isdigit() else letter for letter in text)
    return [text, full_width, arabic, "\u200b".join(text), "\u00ad".join(text)]


@pytest.mark.parametrize(("kind", "secret"), PLANTED)
def test_planted_data_is_gone_and_its_kind_named(kind, secret):
    for written in disguises(secret):
        for sentence in (
            "{}",
            "Reach me: {}, thanks.",
            "I can do 7,500. {} is where I am. [offer van 7500]",
            "({})!",
        ):
            text, kinds = REDACTOR.text(sentence.format(written), CUSTOMER)
            assert kind in kinds, (sentence, written, text)
            assert written not in text
            assert f"[{kind}]" in text
            assert "[offer van 7500]" in text or "[offer" not in sentence


def dialogue(scenario_name: str, split: str, seed: int) -> list[str]:
    """What two scripted negotiators say to each other."""
    scenario, rng = scenario_named(scenario_name), random.Random(seed)
    context = scenario.generate(seed)
    state = scenario.begin(context)
    sides = {role: rng.choice(list(negotiators(scenario_name, role, split))) for role in Role}
    texts = [scenario.system_prompt(role, context) for role in Role]
    while state.closed is None:
        role = state.next_speaker
        text = sides[role].reply(context, state, rng)
        texts.append(text)
        state = scenario.advance(context, state, role, text)
        texts.append(state.turns[-1].shown)
    return texts


@pytest.mark.parametrize("scenario", ["telesales", "deal-or-no-deal"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_a_negotiation_without_personal_data_is_left_as_it_is(scenario, split):
    for seed in range(60):
        for text in dialogue(scenario, split, seed):
            assert REDACTOR.text(text, {}) == (text, set())


@given(
    price=st.integers(1, 99_999_999),
    other=st.integers(1000, 999_999),
    form=st.sampled_from(["{}", "{:,}", "${:,}.50", "{} EUR"]),
)
@example(price=1_800_000, other=17_250, form="{}")
@example(price=1_000_000, other=1000, form="{}")
@example(price=99_999_999, other=999_999, form="{}")
def test_prices_and_moves_are_left_as_they_are(price, other, form):
    amount = form.format(price)
    for text in (
        f"I could do {amount} or {other}.",
        f"{amount} {other}",
        f"From {other} to {amount}, 3 vans, 24 months",
        f"The BMW X5 4WD for {amount}, 1 off road van. [offer suv {price}]",
        f"[propose {price % 10} {other % 10} 2]",
    ):
        assert REDACTOR.text(text, {}) == (text, set())


def test_a_customer_called_like_a_vehicle_leaves_the_move_whole():
    text, _ = REDACTOR.text("Van here. [offer van 7500]", {"name": "Van Morris"})
    assert text == "[name] here. [offer van 7500]"


def test_a_redacted_message_has_no_tokens_and_others_keep_theirs():
    def event(text: str) -> ConversationEvent:
        payload = Message(role=Role.AGENT, text=text, shown=text, token_ids=(1, 2), logprobs=(-0.1, -0.2))
        return ConversationEvent(tenant="t", conversation_id="c", sequence=0, payload=payload)

    plain = event("Good day.")
    assert REDACTOR.event(plain, {}) is plain
    changed = REDACTOR.event(event("Write to ada@mail.example"), {}).payload
    assert isinstance(changed, Message)
    assert (changed.text, changed.shown) == ("Write to [email]", "Write to [email]")
    assert (changed.token_ids, changed.logprobs, changed.redacted) == ((), (), ("email",))


def test_kinds_and_the_whole_can_be_switched_off():
    text = "ada@mail.example, +1 617 555 0199"
    assert Redactor(RedactionSettings(kinds=("phone",))).text(text, {})[0] == "ada@mail.example, [phone]"
    payload = Message(role=Role.AGENT, text=text, shown=text)
    event = ConversationEvent(tenant="t", conversation_id="c", sequence=0, payload=payload)
    assert Redactor(RedactionSettings(enabled=False)).event(event, {}) is event


async def test_canary_secrets_reach_no_event_log_line_or_metric(make_shop, caplog):
    caplog.set_level(logging.DEBUG, logger="serving")
    secrets = ["zq-canary@mail.example", "+1 617 555 0142", "4111 1111 1111 1111", "Zephyrine", "99 Canary Street"]
    words = " / ".join(secrets)
    async with make_shop() as shop:
        shop.engine.say = lambda request: f"Noted, {secrets[3]}: {secrets[0]}"
        customer = {"name": "Zephyrine Quux", "note": "prefers mornings"}
        opened = await shop.open(customer=customer, labels={"who": secrets[0]}, training_consent=True)
        assert secrets[3] in opened["message"]["text"], "the customer is shown what was said"
        shop.engine.say = lambda request: "Good day."
        assert (await shop.say(opened["id"], f"I am {words}")).status_code == 200
        await shop.say(opened["id"], "[quit]")
        report = {"agreed": False, "note": words, "success": False}
        reported = await shop.client.post(f"/v1/conversations/{opened['id']}/outcome", json=report)
        assert reported.status_code == 201, reported.text
        events = await shop.logged(opened["id"])
        metrics = (await shop.client.get("/metrics")).text
        shown = (await shop.client.get(f"/v1/conversations/{opened['id']}")).text
        assert secrets[3] in shown
    written = "".join(event.model_dump_json() for event in events)
    assert {event.payload.type for event in events} >= {"opened", "message", "closed", "outcome"}
    for place in (written, caplog.text, metrics):
        for secret in (*secrets, "Quux", "prefers mornings"):
            assert secret.lower() not in place.lower()
    assert 'sparring_redacted_total{kind="name"} 2.0' in metrics
    assert all(event.consent and event.adapter == "agent@1" for event in events)


@pytest.mark.parametrize(
    ("more", "consent"),
    [({}, False), ({"training_consent": True}, True), ({"source": "simulated"}, True)],
)
async def test_training_needs_consent_unless_nobody_is_there_to_give_it(shop, more, consent):
    opened = await shop.open(**more)
    assert {event.consent for event in await shop.logged(opened["id"])} == {consent}


async def test_a_person_who_practises_has_not_consented(shop):
    drawn = await shop.client.post("/v1/scenarios/telesales/draw")
    identity = drawn.json()["conversation"]["id"]
    assert {event.consent for event in await shop.logged(identity)} == {False}


async def test_tokens_in_events_are_those_that_were_sampled(shop):
    opened = await shop.open()
    await shop.say(opened["id"], "Hello")
    record = await shop.app.state.service.conversations._checkpoints.read(opened["id"])
    sampled = [token for token, own in zip(record.ids, record.sampled, strict=True) if own]
    messages = [e.payload for e in await shop.logged(opened["id"]) if e.payload.type == "message"]
    told = [token for message in messages for token in message.token_ids]
    assert told == sampled
    for message in messages:
        assert len(message.token_ids) == len(message.logprobs)
        assert bool(message.token_ids) == (message.role is Role.AGENT)
        if message.token_ids:
            decoded = shop.engine.tokenizer.decode(list(message.token_ids), skip_special_tokens=True)
            assert decoded.strip() == message.text
