"""The league: everybody that a role may meet in training, and how often it meets whom.

Members are scripted families, frozen adapters (earlier rounds, warm starts of other seeds) and endpoints, told apart
by name only. Sampling is prioritised fictitious self-play with the "hard" weighting f(x) = (1 - x)^p of AlphaStar
(Vinyals et al. 2019, doi 10.1038/s41586-019-1724-z): who is beaten always is hardly met, who is not is met often.
Pure Python; whoever owns the league decides where its state is kept.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from training.counterparts.negotiator import Negotiator

MemberKind = Literal["scripted", "adapter", "endpoint"]
NEUTRAL_SUCCESS = 0.5
"""What a new member's success is taken for: met more often than those who are beaten, and not instead of the rest."""
_STATE_VERSION = 1


@dataclass(frozen=True)
class PoolMember:
    """Somebody to play against; ``seed`` is that of the run which made an adapter.

    ``source`` is the URL of an endpoint, or the directory of an adapter whose name alone does not lead to it.
    """

    name: str
    family: str
    seed: int
    kind: MemberKind
    source: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.family:
            raise ValueError(f"pool member {self.name!r} of family {self.family!r}: both must be named")
        if self.kind not in get_args(MemberKind):
            kinds = ", ".join(get_args(MemberKind))
            raise ValueError(f"pool member {self.name!r} is of kind {self.kind!r}: choose one of {kinds}")
        if self.kind == "endpoint" and self.source is None:
            raise ValueError(f"pool member {self.name!r} is an endpoint without a source: pass its URL")
        if self.kind == "scripted" and self.source is not None:
            raise ValueError(f"pool member {self.name!r} is scripted and has source {self.source!r}: leave it out")

    @classmethod
    def scripted(cls, negotiator: Negotiator) -> PoolMember:
        """The member for a scripted negotiator."""
        return cls(negotiator.name, negotiator.family, 0, "scripted")


class League:
    """Members with a running estimate of the agent's success against each.

    ``decay`` is the weight of the past in the exponential moving average; ``floor`` keeps every member in play, also
    one that has not won for long, so that what was learned against it does not get lost unnoticed.
    """

    def __init__(
        self, members: Iterable[PoolMember] = (), *, power: float = 2.0, floor: float = 0.05, decay: float = 0.9
    ) -> None:
        _require(math.isfinite(power) and power >= 0, "power", power, "at least 0, where 0 weighs all alike")
        _require(
            math.isfinite(floor) and floor > 0, "floor", floor, "over 0, else a beaten member is never met again"
        )
        _require(0 <= decay < 1, "decay", decay, "from 0 to less than 1, else nothing is ever learned of a member")
        self.power, self.floor, self.decay = power, floor, decay
        self._members: dict[str, PoolMember] = {}
        self._success: dict[str, float] = {}
        self._games: dict[str, int] = {}
        for member in members:
            self.add(member)

    @property
    def members(self) -> tuple[PoolMember, ...]:
        """In the order in which they joined, which sampling depends on."""
        return tuple(self._members.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def member(self, name: str) -> PoolMember:
        """The member of that name. This and all else that takes a name raises KeyError for one that is not here."""
        return self._members[self._known(name)]

    def add(self, member: PoolMember) -> None:
        """Let a member join. Raises ValueError if the name is taken: adapters are immutable, and so are members."""
        if member.name in self._members:
            raise ValueError(f"the league has a member {member.name!r} already: give each version its own name")
        self._members[member.name] = member
        self._success[member.name] = NEUTRAL_SUCCESS
        self._games[member.name] = 0

    def remove(self, name: str) -> None:
        """Let a member leave, and forget what was recorded of it."""
        del self._members[self._known(name)], self._success[name], self._games[name]

    def success(self, name: str) -> float:
        """The agent's running success against a member."""
        return self._success[self._known(name)]

    def games(self, name: str) -> int:
        """How many results against a member were recorded."""
        return self._games[self._known(name)]

    def record(self, name: str, success: float) -> None:
        """Take a result into account: the agent's success against ``name``, or its mean over some games."""
        self._known(name)
        _require(0 <= success <= 1, f"success against {name!r}", success, "from 0 to 1")
        self._success[name] = self.decay * self._success[name] + (1 - self.decay) * success
        self._games[name] += 1

    def weights(self) -> dict[str, float]:
        """How likely each member is to be met next; they sum to 1."""
        raw = {name: max(0.0, 1 - success) ** self.power + self.floor for name, success in self._success.items()}
        total = math.fsum(raw.values())
        return {name: weight / total for name, weight in raw.items()}

    def sample(self, rng: random.Random, k: int) -> list[str]:
        """The names of ``k`` members, drawn independently. Raises ValueError for an empty league."""
        _require(k >= 0, "k", k, "at least 0")
        if not self._members:
            raise ValueError("the league has no members to sample: add() one first")
        return rng.choices(self.names, weights=list(self.weights().values()), k=k)

    def state_dict(self) -> dict[str, Any]:
        """Everything as JSON values; a league that loads it samples the same members from the same generator."""
        members = [
            {**asdict(member), "success": self._success[name], "games": self._games[name]}
            for name, member in self._members.items()
        ]
        settings = {"power": self.power, "floor": self.floor, "decay": self.decay}
        return {"version": _STATE_VERSION, **settings, "members": members}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the league that was saved. Raises ValueError for another state, and then changes nothing."""
        if state.get("version") != _STATE_VERSION:
            raise ValueError(f"league state has version {state.get('version')!r}, this reads {_STATE_VERSION}")
        try:
            loaded = League(power=state["power"], floor=state["floor"], decay=state["decay"])
            for entry in state["members"]:
                fields = dict(entry)
                success, games = fields.pop("success"), fields.pop("games")
                member = PoolMember(**fields)
                _require(0 <= success <= 1, f"success against {member.name!r}", success, "from 0 to 1")
                loaded.add(member)
                loaded._success[member.name], loaded._games[member.name] = success, games
        except (KeyError, TypeError) as error:
            raise ValueError(f"league state is damaged or of another version: {error!r}") from error
        self.__dict__.update(loaded.__dict__)

    def _known(self, name: str) -> str:
        if name not in self._members:
            known: Sequence[str] = sorted(self._members)
            raise KeyError(f"no member {name!r} in the league; its members are {', '.join(known) or 'none yet'}")
        return name


def _require(holds: bool, name: str, value: object, limit: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}, must be {limit}")
