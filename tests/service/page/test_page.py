"""Whole negotiations at the page, by mouse, by keyboard and on a phone.

What the agent says is the model's affair, so these go by what the page shows.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'").expect

pytestmark = [pytest.mark.service, pytest.mark.timeout(300)]

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def number_after(label: str, text: str) -> int:
    found = re.search(rf"{label}\s+([\d,]+)", text)
    assert found, text
    return int(found[1].replace(",", ""))


def bargain(player: Any) -> bool:
    """Play one talk to its end, taking the first offer there is; whether it ended in a deal by taking it."""
    for _ in range(9):
        if player.over:
            return False
        if player.accept.is_visible():
            player.accept.click()
            return True
        player.page.locator("#offer-toggle").click()
        player.page.locator("#offer button[type=submit]").click()
        player.settled()
    raise AssertionError("the talk did not end within the scenario's turns")


def test_a_vehicle_is_bought_with_the_mouse(player: Any) -> None:
    player.begin("Buy a vehicle")
    page = player.page
    expect(page.locator("#adapter")).to_have_text("agent@1")
    page.locator("#suggestions button").first.click()
    page.get_by_role("button", name="Send", exact=True).click()
    player.settled()
    while not bargain(player):
        # A talk that ran out of turns is an end too, but not the one to be shown.
        player.figure()
        player.again()
    budget = number_after("Your budget", page.locator("#card-body").inner_text())
    figure = player.figure()
    outcome = page.locator("#outcome").inner_text()
    paid = number_after("You pay", outcome)
    assert "agent@1" in outcome
    if "wrong vehicle" in figure:
        assert re.search(r"Meets your needs\s+No", outcome)
    else:
        side = "under" if paid < budget else "over"
        assert figure == ("Exactly your budget" if paid == budget else f"{abs(budget - paid):,} {side} your budget")
    assert "[" not in page.locator("#log").inner_text(), "moves are shown in words"


def test_a_split_is_agreed_with_the_mouse(player: Any) -> None:
    player.begin("Deal or no deal")
    page = player.page
    page.locator("#offer-toggle").click()
    page.get_by_role("button", name="One book more").click(force=True)
    page.get_by_role("button", name="One book less").click()
    page.get_by_role("button", name="Send proposal").click()
    player.settled()
    # An agent that agrees at once is as good as one who has to be agreed with: then comes the statement.
    while not page.get_by_role("button", name="State this share").is_visible():
        if player.over:
            player.again()
        elif player.accept.is_visible():
            player.accept.click()
            player.settled()
        else:
            player.say("Can you give me more?")
    expect(page.get_by_label("Your message")).to_be_hidden()
    worth = re.match(r"\d+ of 10 points", page.locator("#offer .note").inner_text())[0]
    page.get_by_role("button", name="State this share").click()
    figure = player.figure()
    outcome = page.locator("#outcome").inner_text()
    agreed = page.locator("#outcome h2").inner_text() == "Deal"
    assert figure == (worth if agreed else "0 of 10 points")
    assert ("Both sides agreed" in outcome) == agreed
    page.get_by_role("button", name="Choose another").click()
    expect(page.get_by_role("heading", name="What shall we negotiate?")).to_be_visible()


def test_the_keyboard_suffices(player: Any) -> None:
    page = player.page

    def tab_to(target: Any) -> None:
        for _ in range(40):
            if target.evaluate("node => node === document.activeElement"):
                style = target.evaluate("node => getComputedStyle(node).outlineStyle")
                assert style != "none" or target.get_attribute("type") == "radio", "the focus is not seen"
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {target}")

    page.goto(player.address)
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type(player.key)
    page.keyboard.press("Enter")
    tab_to(page.get_by_role("button", name="Buy a vehicle"))
    page.keyboard.press("Enter")
    player.settled()
    tab_to(page.get_by_label("Your message"))
    page.keyboard.type("Good day.")
    page.keyboard.press("Enter")
    player.settled()
    expect(page.locator(".turn.me")).to_have_count(1)
    if not player.over:
        expect(page.get_by_label("Your message")).to_be_focused()
        tab_to(page.locator("#offer-toggle"))
        page.keyboard.press("Enter")
        expect(page.locator("#offer input:checked")).to_be_focused()
        page.keyboard.press("ArrowRight")
        tab_to(page.get_by_role("button", name="250 more"))
        page.keyboard.press("Space")
        tab_to(page.get_by_role("button", name="Send offer"))
        page.keyboard.press("Enter")
        player.settled()
        expect(page.locator(".turn.me .chip")).to_have_count(1)
    if not player.over:
        tab_to(page.get_by_role("button", name="Walk away"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(page.locator("#outcome")).to_be_hidden()
        tab_to(page.get_by_role("button", name="Walk away"))
        page.keyboard.press("Enter")
        tab_to(page.get_by_role("dialog").get_by_role("button", name="Walk away"))
        page.keyboard.press("Enter")
    player.figure()
    expect(page.locator("#outcome-title")).to_be_focused()
    tab_to(page.get_by_role("button", name="Negotiate again"))


@pytest.mark.parametrize("player", [PHONE], indirect=True, ids=["phone"])
def test_a_phone_has_room_for_all_of_it(player: Any) -> None:
    page = player.page

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        for target in page.locator("button:visible, input:visible, textarea:visible, summary:visible").all():
            box = target.bounding_box()
            assert box["height"] >= 44, f"{target.evaluate('node => node.outerHTML')} is {box['height']} px high"
            assert box["width"] >= 44
            assert box["x"] >= 0

    page.goto(player.address)
    fits()
    player.enter()
    expect(page.get_by_role("button", name="Deal or no deal")).to_be_visible()
    fits()
    page.get_by_role("button", name="Deal or no deal").tap()
    player.settled()
    expect(page.locator("#card-body")).to_be_hidden()
    page.locator("#card summary").tap()
    expect(page.locator("#card-body")).to_be_visible()
    fits()
    page.locator("#card summary").tap()
    page.locator("#offer-toggle").tap()
    fits()
    page.locator("#offer-toggle").tap()
    page.get_by_role("button", name="Walk away").tap()
    page.get_by_role("dialog").get_by_role("button", name="Walk away").tap()
    assert player.figure() == "0 of 10 points"
    fits()
