"""Curation: each rule, what it counts, and that neither order nor a flood decides who is heard."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.curation import Candidate, Curated, CurationSettings, Rule, curate, shingles

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OPEN = CurationSettings(quarantine_hours=0, max_share_per_customer=1, max_per_tenant_share=1)


def spoke(identity: str, said: str = "", **changes: Any) -> Candidate:
    """A conversation closed two days ago, whose words are like nobody else's unless they are given."""
    given_ = {
        "tenant": "t",
        "customer": None,
        "source": "live",
        "consent": True,
        "closed_at": NOW - timedelta(days=2),
    }
    own = identity.translate(str.maketrans("0123456789", "qrstuvwxyz"))  # figures would all be alike
    words = said or " ".join(f"word{own}{'x' * place}" for place in range(12))
    return Candidate(conversation_id=identity, said=[words], **{**given_, **changes})


def curated(candidates: list[Candidate], rules: CurationSettings = OPEN, room: int = 1000) -> Curated:
    return curate(candidates, rules, NOW, room=room)


def test_only_consented_conversations_that_are_no_replay_are_kept() -> None:
    found = curated(
        [spoke("a"), spoke("b", consent=False), spoke("c", source="replay"), spoke("d", source="simulated")]
    )
    assert set(found.kept) == {"a", "d"}
    assert (found.left_out[Rule.CONSENT], found.left_out[Rule.REPLAY]) == (1, 1)


def test_quarantine_ends_with_its_last_hour() -> None:
    rules = OPEN.model_copy(update={"quarantine_hours": 24.0})
    day, later = NOW - timedelta(hours=24), NOW - timedelta(hours=23, minutes=59)
    found = curated([spoke("a", closed_at=day), spoke("b", closed_at=later)], rules)
    assert found.kept == ("a",)
    assert found.left_out[Rule.QUARANTINE] == 1


def test_of_a_flood_the_oldest_are_kept_whatever_figures_it_names() -> None:
    flood = [
        spoke(
            f"f{n:03}",
            f"Give me the car for {n * 137} euros or for {n},000.50 I leave at once!",
            closed_at=NOW - timedelta(days=2, seconds=-n),
        )
        for n in range(200)
    ]
    rules = OPEN.model_copy(update={"max_near_duplicates": 5})
    found = curated([*reversed(flood), spoke("other")], rules)
    assert set(found.kept) == {"f000", "f001", "f002", "f003", "f004", "other"}
    assert (found.floods, found.left_out[Rule.NEAR_DUPLICATE]) == (1, 195)


def test_a_flood_with_a_changed_word_is_still_one() -> None:
    words = ["w" * place for place in range(1, 61)]
    flood = [spoke(f"f{n}", " ".join([*words[:59], "x" * (n + 1)])) for n in range(50)]
    assert len(curated(flood, OPEN.model_copy(update={"max_near_duplicates": 3})).kept) == 3


def test_silent_conversations_are_near_duplicates_of_each_other() -> None:
    silent = [Candidate(f"s{n}", "t", None, "live", True, NOW - timedelta(days=2), ()) for n in range(9)]
    assert len(curated(silent, OPEN.model_copy(update={"max_near_duplicates": 4})).kept) == 4


def test_a_customer_counts_for_no_more_than_its_share_and_for_one_at_least() -> None:
    loud = [spoke(f"l{n}", customer="loud") for n in range(60)]
    quiet = [spoke(f"q{n}", customer=f"c{n}") for n in range(40)]
    by_share = curated([*loud, *quiet], OPEN.model_copy(update={"max_share_per_customer": 0.1}))
    assert by_share.left_out[Rule.CUSTOMER] == 50
    assert {f"q{n}" for n in range(40)} <= set(by_share.kept)
    by_count = curated([*loud, *quiet], OPEN.model_copy(update={"max_per_customer": 4}))
    assert by_count.left_out[Rule.CUSTOMER] == 56
    assert len(curated(loud[:3], OPEN.model_copy(update={"max_share_per_customer": 0.1})).kept) == 1


def test_the_same_pseudonym_at_two_tenants_is_two_customers() -> None:
    both = [spoke(f"{tenant}{n}", tenant=tenant, customer="c1") for tenant in ("a", "b") for n in range(3)]
    assert len(curated(both, OPEN.model_copy(update={"max_per_customer": 2})).kept) == 4


def test_unknown_customers_are_counted_and_not_held_back() -> None:
    found = curated(
        [spoke(f"s{n}", source="simulated") for n in range(50)], OPEN.model_copy(update={"max_per_customer": 1})
    )
    assert (len(found.kept), found.without_customer) == (50, 50)


def test_a_tenant_is_held_to_its_share_only_where_there_is_another() -> None:
    big = [spoke(f"a{n}", tenant="a") for n in range(90)]
    rules = OPEN.model_copy(update={"max_per_tenant_share": 0.3})
    assert len(curated(big, rules).kept) == 90
    kept = Counter(one[0] for one in curated([*big, *(spoke(f"b{n}", tenant="b") for n in range(10))], rules).kept)
    # Of two tenants each may have half, though the setting says less.
    assert kept == {"a": 50, "b": 10}


def test_a_flood_just_before_a_round_pushes_nobody_out_by_being_new() -> None:
    old = [spoke(f"o{n}", closed_at=NOW - timedelta(days=30)) for n in range(200)]
    new = [spoke(f"n{n}", closed_at=NOW - timedelta(days=2)) for n in range(200)]
    found = curated([*old, *new], room=100)
    kept = Counter(identity[0] for identity in found.kept)
    assert found.left_out[Rule.ROOM] == 300
    # Half of them, give or take five standard deviations of the hypergeometric distribution.
    assert 28 <= kept["o"] <= 72


def test_a_repeated_id_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' came up twice"):
        curated([spoke("a"), spoke("b"), spoke("a")])


def test_counts_of_all_rules_add_up_and_are_there_when_zero() -> None:
    found = curated([spoke("a"), spoke("b", consent=False)])
    assert set(found.left_out) == set(Rule)
    assert found.figures()["kept"] + sum(found.left_out.values()) == 2
    assert found.figures()["left_out.room"] == 0


WORDS = st.sampled_from(
    ["yes", "no", "a car please", "I pay 12000 today", "I pay 900 today", "that is too much for me"]
)
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        conversation_id=st.uuids().map(str),
        tenant=st.sampled_from(["a", "b", "c"]),
        customer=st.sampled_from([None, "x", "y"]),
        source=st.sampled_from(["live", "simulated", "replay"]),
        consent=st.booleans(),
        closed_at=st.integers(0, 90).map(lambda hours: NOW - timedelta(hours=hours)),
        said=st.lists(WORDS, max_size=4),
    ),
    max_size=30,
    unique_by=lambda one: one.conversation_id,
)
RULES = st.builds(
    CurationSettings,
    quarantine_hours=st.sampled_from([0, 24]),
    max_near_duplicates=st.integers(1, 4),
    max_per_customer=st.integers(1, 4),
    max_share_per_customer=st.sampled_from([0.1, 0.5, 1.0]),
    max_per_tenant_share=st.sampled_from([0.3, 0.5, 1.0]),
    seed=st.integers(0, 3),
)


@settings(max_examples=60, deadline=None)
@given(CANDIDATES, RULES, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_order_of_the_input_decides_nothing_and_every_limit_holds(
    candidates: list[Candidate], rules: CurationSettings, room: int, rng: Any
) -> None:
    found = curated(candidates, rules, room)
    shuffled = list(candidates)
    rng.shuffle(shuffled)
    assert curated(shuffled, rules, room) == found
    assert len(found.kept) == len(set(found.kept)) <= room
    assert len(found.kept) + sum(found.left_out.values()) == len(candidates)
    by_id = {one.conversation_id: one for one in candidates}
    kept = [by_id[identity] for identity in found.kept]
    assert all(one.consent and one.source != "replay" for one in kept)
    assert [one.closed_at for one in kept] == sorted(one.closed_at for one in kept)
    customers = Counter((one.tenant, one.customer) for one in kept if one.customer is not None)
    assert all(count <= rules.max_per_customer for count in customers.values())
    words = Counter(frozenset(shingles(one.said)) for one in kept)
    assert all(count <= rules.max_near_duplicates for count in words.values())


@settings(max_examples=50)
@given(st.text(), st.integers(0, 10**9), st.integers(0, 10**9))
def test_figures_case_and_width_make_no_difference(text: str, one: int, other: int) -> None:
    assert shingles([f"{text} {one}"]) == shingles([f"{text} {other}"])
    assert shingles(["I PAY 1,200.50 now"]) == shingles(["i pay 7 now"])
