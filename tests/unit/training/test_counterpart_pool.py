"""The league: harder members are met more often, nobody is forgotten, and a restored one samples the same."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from negotiation.roles import Role
from training.counterparts import negotiators
from training.counterparts.pool import NEUTRAL_SUCCESS, League, PoolMember

NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
SUCCESS = st.floats(0, 1)
SETTINGS = st.fixed_dictionaries(
    {"power": st.floats(0, 8), "floor": st.floats(1e-3, 1), "decay": st.floats(0, 0.99)},
)


def member(name: str) -> PoolMember:
    return PoolMember(name, "boulware", 0, "scripted")


@st.composite
def leagues(draw: st.DrawFn) -> League:
    """A league in which some games were played."""
    names = draw(NAMES)
    league = League([member(name) for name in names], **draw(SETTINGS))
    for name, success in draw(st.lists(st.tuples(st.sampled_from(names), SUCCESS), max_size=20)):
        league.record(name, success)
    return league


@given(league=leagues())
def test_weights_are_positive_and_sum_to_one(league: League) -> None:
    weights = league.weights()
    assert set(weights) == set(league.names)
    assert all(weight > 0 for weight in weights.values())
    assert sum(weights.values()) == pytest.approx(1)


@given(league=leagues())
def test_a_harder_member_is_never_less_likely(league: League) -> None:
    weights = league.weights()
    ordered = sorted(league.names, key=league.success)
    for harder, easier in itertools.pairwise(ordered):
        assert weights[harder] >= weights[easier]


@given(league=leagues(), seed=st.integers(), more=st.lists(SUCCESS, max_size=5))
def test_a_saved_league_samples_bit_by_bit_the_same_and_goes_on_the_same(
    league: League, seed: int, more: list[float]
) -> None:
    other = League([member("of another run")], power=1, floor=0.3, decay=0)
    other.load_state_dict(json.loads(json.dumps(league.state_dict())))
    assert other.members == league.members
    for success in more:
        for each in (league, other):
            each.record(each.names[-1], success)
    assert other.weights() == league.weights()
    assert other.sample(random.Random(seed), 20) == league.sample(random.Random(seed), 20)
    assert other.state_dict() == league.state_dict()


def test_a_new_member_is_neutral_and_success_is_a_moving_average() -> None:
    league = League([member("a")], decay=0.5)
    assert (league.success("a"), league.games("a")) == (NEUTRAL_SUCCESS, 0)
    league.record("a", 1.0)
    assert (league.success("a"), league.games("a")) == (0.75, 1)
    league.record("a", 0.0)
    assert (league.success("a"), league.games("a")) == (0.375, 2)


def test_the_weighting_is_the_hard_one() -> None:
    league = League([member("hard"), member("easy")], power=2, floor=0.01, decay=0)
    league.record("hard", 0.0)
    league.record("easy", 0.9)
    assert league.weights()["hard"] / league.weights()["easy"] == pytest.approx(1.01 / 0.02)
    drawn = Counter(league.sample(random.Random(0), 4000))
    assert drawn["hard"] / 4000 == pytest.approx(league.weights()["hard"], abs=0.02)
    assert drawn["easy"]


def test_scripted_families_adapters_and_endpoints_are_members_alike() -> None:
    scripted = [PoolMember.scripted(n) for n in negotiators("telesales", Role.COUNTERPART, "train")]
    league = League([*scripted, PoolMember("counterpart@3", "counterpart", 7, "adapter", "runs/7/counterpart@3")])
    league.add(PoolMember("counterpart@3-step12", "counterpart", 7, "adapter"))
    league.add(PoolMember("judge", "endpoint", 0, "endpoint", "http://localhost:8000/v1"))
    assert league.names == ("conceder", "boulware", "anchor", "counterpart@3", "counterpart@3-step12", "judge")
    assert set(league.sample(random.Random(1), 300)) == set(league.names)
    assert league.member("counterpart@3").source == "runs/7/counterpart@3"
    league.record("anchor", 1.0)
    league.remove("anchor")
    assert "anchor" not in league.weights()
    league.add(member("anchor"))
    assert league.success("anchor") == NEUTRAL_SUCCESS


def test_an_unknown_name_is_a_key_error_that_names_the_members() -> None:
    league = League([member("anchor"), member("boulware")])
    for ask in (league.success, league.games, league.member, league.remove, lambda name: league.record(name, 1.0)):
        with pytest.raises(KeyError, match="no member 'agent@9' in the league; its members are anchor, boulware"):
            ask("agent@9")
    with pytest.raises(KeyError, match="none yet"):
        League().success("anchor")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: League([member("a"), member("a")]), "has a member 'a' already", id="twice"),
        pytest.param(lambda: League().sample(random.Random(0), 1), "no members to sample", id="empty"),
        pytest.param(lambda: League([member("a")]).sample(random.Random(0), -1), "k is -1", id="k"),
        pytest.param(lambda: League([member("a")]).record("a", 1.5), "success against 'a' is 1.5", id="success"),
        pytest.param(lambda: League([member("a")]).record("a", float("nan")), "is nan", id="nan"),
        pytest.param(lambda: League(power=-1), "power is -1", id="power"),
        pytest.param(lambda: League(floor=0), "floor is 0, must be over 0", id="floor"),
        pytest.param(lambda: League(decay=1), "decay is 1", id="decay"),
        pytest.param(lambda: PoolMember("a", "f", 0, "robot"), "kind 'robot'", id="kind"),  # type: ignore[arg-type]
        pytest.param(lambda: PoolMember("a", "", 0, "scripted"), "must be named", id="family"),
        pytest.param(lambda: PoolMember("a", "f", 0, "endpoint"), "pass its URL", id="no URL"),
        pytest.param(lambda: PoolMember("a", "f", 0, "scripted", "here"), "leave it out", id="source"),
    ],
)
def test_what_can_not_be_is_refused_by_name(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "version 9, this reads 1"),
        ({"members": [{"name": "a"}]}, "damaged"),
        ({"power": None}, "damaged"),
        ({"floor": -1}, "floor is -1"),
    ],
)
def test_a_state_that_can_not_be_read_changes_nothing(change: dict[str, object], message: str) -> None:
    league = League([member("a"), member("b")])
    league.record("a", 1.0)
    before = league.state_dict()
    with pytest.raises(ValueError, match=message):
        league.load_state_dict({**before, **change})
    assert league.state_dict() == before
