"""What the page does with replies, streams and failures that have to be exact: they are put in on the way."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'").expect

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]

MESSAGES = re.compile(r"/v1/conversations/[^/]+/messages$")


def stream(*events: str) -> dict[str, Any]:
    return {"status": 200, "content_type": "text/event-stream", "body": "".join(f"{event}\n\n" for event in events)}


def data(value: object) -> str:
    return f"data: {json.dumps(value)}"


def answered(text: str, move: object = None, **more: Any) -> str:
    body = {"state": "open", "reason": None, "agreement": None, "reply": {"text": text, "move": move}}
    return data({**body, **more})


def refusal(status: int, code: str, **headers: str) -> dict[str, Any]:
    body = {"error": {"message": f"the service says {code}", "type": "t", "param": None, "code": code}}
    return {"status": status, "content_type": "application/json", "body": json.dumps(body), "headers": headers}


def test_what_is_said_stays_text(player: Any) -> None:
    hostile = '<img src=x onerror="document.title=1"><script>document.title=1</script> & <b>bold</b>'
    player.begin("Buy a vehicle")
    player.answering(stream(data({"delta": hostile}), answered(hostile), "data: [DONE]"))
    player.say(hostile)
    log = player.page.locator("#log")
    expect(log.get_by_text(hostile, exact=True)).to_have_count(2)
    expect(log.locator("img, script")).to_have_count(0)
    assert player.page.title().startswith("Sparring")


def test_only_what_the_service_lets_count_can_be_accepted(player: Any) -> None:
    player.begin("Buy a vehicle")
    page = player.page
    vehicle = page.locator(".stock th").first.evaluate("node => node.firstChild.textContent").lower()
    move = {"kind": "offer", "arguments": [vehicle, "9250"]}
    void = stream(answered(f"Yours for one. [offer {vehicle} 1]"), "data: [DONE]")
    good = stream(answered(f"Yours. [offer {vehicle} 9250]", move), "data: [DONE]")
    player.answering(good, void)
    player.say("Well?")
    expect(player.accept).to_contain_text("9,250")
    player.say("Less!")
    expect(page.locator(".turn.agent").last.locator(".void")).to_be_visible()
    expect(player.accept).to_contain_text("9,250")


def test_an_offer_that_a_colleague_confirms_is_waited_for(player: Any) -> None:
    player.begin("Buy a vehicle")
    turns = player.page.locator(".turn").count()
    player.answering(stream(answered("A colleague will confirm this.", state="awaiting_approval"), "data: [DONE]"))
    player.say("Give me your best price")
    remark = player.page.get_by_text("A colleague looks at the offer")
    expect(remark).to_be_visible()
    # The service knows of no such offer, which to the page is the same as one that was decided.
    expect(remark).to_have_count(0)
    expect(player.page.locator(".turn")).to_have_count(turns)


STREAM = """
window.pieces = [];
const real = window.fetch;
window.fetch = (url, options) => {
  if (!String(url).endsWith("/messages")) return real(url, options);
  const body = new ReadableStream({ start(controller) {
    window.piece = (text) => controller.enqueue(new TextEncoder().encode(text));
    window.end = () => controller.close();
  } });
  return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
};
"""


def test_a_reply_is_seen_while_it_is_written_and_read_out_when_whole(player: Any) -> None:
    page = player.page
    page.add_init_script(STREAM)
    player.begin("Buy a vehicle")
    vehicle = page.locator(".stock th").first.evaluate("node => node.firstChild.textContent").lower()
    page.get_by_label("Your message").fill("Well?")
    page.get_by_label("Your message").press("Enter")
    coming = page.locator(".agent.provisional")
    for piece, seen in (("I can ", "I can"), ("do it", "I can do it"), (f". [offer {vehicle}", "I can do it.")):
        # Cut in the middle of an event: networks do.
        event = data({"delta": piece}) + "\n\n"
        page.evaluate("piece => window.piece(piece)", event[:9])
        page.evaluate("piece => window.piece(piece)", event[9:])
        expect(coming).to_have_text(seen)
    expect(coming).to_have_attribute("aria-hidden", "true")
    assert page.locator("#log").get_attribute("aria-busy") == "true"
    assert page.locator("#log").get_attribute("aria-live") == "polite"
    whole = answered(f"I can do it. [offer {vehicle} 9000]", {"kind": "offer", "arguments": [vehicle, "9000"]})
    page.evaluate("piece => { window.piece(piece); window.end(); }", f"{whole}\n\ndata: [DONE]\n\n")
    player.settled()
    expect(page.locator(".turn.agent").last).to_contain_text("for 9,000")
    expect(page.locator(".turn.me")).to_have_count(1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(409, "conversation_busy", **{"Retry-After": "1"}), "still being answered"),
        (refusal(413, "message_too_long"), "Shorten it"),
        (refusal(422, "message_too_long"), "Shorten it"),
        (refusal(422, "control_tokens"), "Leave them out"),
        (refusal(429, "rate_limit_exceeded", **{"Retry-After": "1"}), "Too many requests"),
        (refusal(503, "overloaded", **{"Retry-After": "1"}), "was not taken"),
    ],
    ids=["409", "413", "422", "control", "429", "503"],
)
def test_a_refusal_is_explained_and_what_was_typed_is_kept(player: Any, answer: Any, words: str) -> None:
    player.refusals = True
    player.begin("Buy a vehicle")
    player.answering(answer)
    player.say("Dear agent, good day.")
    page = player.page
    expect(page.get_by_role("alert").filter(has_text=words)).to_be_visible()
    expect(page.get_by_label("Your message")).to_have_value("Dear agent, good day.")
    expect(page.locator(".turn.me")).to_have_count(0)
    # The button opens once the time that the service asked for has passed.
    page.get_by_role("button", name="Send again", exact=True).click()
    expect(page.locator(".turn.me")).to_have_count(1)
    expect(page.get_by_label("Your message")).to_have_value("")
    assert len(player.keys_sent) == 2
    assert len(set(player.keys_sent)) == 1


def test_a_refused_message_may_be_changed_and_is_then_another(player: Any) -> None:
    player.refusals = True
    player.begin("Buy a vehicle")
    player.answering(refusal(413, "message_too_long"), refusal(503, "overloaded"))
    player.say("A long one.")
    player.say("A long one.")
    player.say("Short.")
    expect(player.page.locator(".turn.me")).to_have_text(["You: Short."])
    first, second, third = player.keys_sent
    assert first == second != third


@pytest.mark.parametrize(
    "broken",
    [
        stream(data({"delta": "I can"})),
        stream(
            data({"delta": "I can"}), f"event: error\n{data({'error': {'message': 'm', 'code': 'internal_error'}})}"
        ),
        refusal(500, "internal_error"),
    ],
    ids=["cut off", "error event", "500"],
)
def test_a_lost_answer_is_asked_for_again_and_counts_once(player: Any, broken: Any) -> None:
    player.refusals = True
    player.begin("Buy a vehicle")
    page = player.page
    taken: list[str] = []

    def handle(route: Any) -> None:
        if taken:
            route.continue_()
            return
        # The service takes the message, its answer is lost on the way.
        taken.append(route.fetch().text())
        route.fulfill(**broken)

    page.route(MESSAGES, handle)
    page.get_by_label("Your message").fill("Hello there.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="counts once")).to_be_visible()
    # Nothing else can be said in between.
    page.get_by_label("Your message").fill("And more.")
    page.get_by_label("Your message").press("Enter")
    assert len(player.keys_sent) == 1
    page.get_by_role("button", name="Send again").click()
    player.settled()
    expect(page.locator(".turn.me")).to_have_text(["You: Hello there."])
    expect(page.get_by_label("Your message")).to_have_value("And more.")
    assert len(set(player.keys_sent)) == 1


def test_a_retry_that_is_refused_does_not_free_the_message(player: Any) -> None:
    player.refusals = True
    player.begin("Buy a vehicle")
    page = player.page
    page.route(MESSAGES, lambda route: (route.fetch(), route.fulfill(**refusal(500, "internal_error"))), times=1)
    page.get_by_label("Your message").fill("Hello there.")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="counts once")).to_be_visible()
    page.route(MESSAGES, lambda route: route.fulfill(**refusal(429, "rate_limit_exceeded")), times=1)
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("alert").filter(has_text="Too many")).to_be_visible()
    expect(page.get_by_label("Your message")).to_have_value("")
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".turn.me")).to_have_text(["You: Hello there."])
    player.settled()
    assert len(player.keys_sent) == 3
    assert len(set(player.keys_sent)) == 1


def test_a_revoked_key_is_asked_for_and_the_talk_goes_on(player: Any) -> None:
    player.refusals = True
    player.begin("Buy a vehicle")
    player.answering(refusal(401, "invalid_api_key"))
    page = player.page
    page.get_by_label("Your message").fill("Are you there?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#key-problem")).to_contain_text("sparring keys create")
    page.get_by_label("API key").fill(player.key)
    page.get_by_role("button", name="Continue").click()
    player.settled()
    expect(page.get_by_label("Your message")).to_have_value("Are you there?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".turn.me")).to_have_count(1)


def test_an_unknown_key_is_refused_in_words(player: Any) -> None:
    player.refusals = True
    player.page.goto(player.address)
    player.page.get_by_label("API key").fill("sk-tenant-nonsense")
    player.page.get_by_role("button", name="Continue").click()
    expect(player.page.locator("#key-problem")).to_contain_text("not known")
    assert player.page.evaluate("sessionStorage.getItem('sparring.key')") is None


def test_a_reload_takes_the_talk_up_again(player: Any) -> None:
    player.begin("Deal or no deal")
    page = player.page
    page.locator("#offer-toggle").click()
    page.get_by_role("button", name="Send proposal").click()
    player.settled()
    card = page.locator("#card-body").text_content()
    said = page.locator("#log").inner_text()
    assert "Your proposal" in said
    page.reload()
    player.settled()
    expect(page.locator("#log")).to_have_text(said, use_inner_text=True)
    assert page.locator("#card-body").text_content() == card
    assert page.evaluate("localStorage.length") == 0


def test_a_reload_loses_neither_a_draft_nor_a_message_under_way(player: Any) -> None:
    player.begin("Buy a vehicle")
    page = player.page
    page.get_by_label("Your message").fill("Half a thought")
    page.reload()
    player.settled()
    expect(page.get_by_label("Your message")).to_have_value("Half a thought")
    page.route(MESSAGES, lambda route: None)
    page.get_by_label("Your message").press("Enter")
    expect(page.locator(".me.provisional")).to_have_text("Half a thought")
    page.reload()
    page.unroute(MESSAGES)
    page.get_by_role("button", name="Send again").click()
    player.settled()
    expect(page.locator(".turn.me")).to_have_text(["You: Half a thought"])
    assert len(player.keys_sent) == 2
    assert len(set(player.keys_sent)) == 1
