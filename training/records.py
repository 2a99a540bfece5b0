"""What a training run writes down: one record a step, and the price of the whole.

Records are plain data, so that a checkpoint can hold them and a resumed run goes on with the same list. No torch
here: whoever reads a result need not load it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from negotiation.adapter import AdapterManifest
from negotiation.roles import Role


@dataclass(frozen=True)
class UpdateMetrics:
    """One optimizer step of one learner. Log-probabilities are in nats per own token.

    ``reward`` is NaN where the role never spoke; ``zero_variance_groups`` is the share of groups that were left out
    for lack of spread; ``logprob_gap`` is |sampler - trainer|; ``base_nll`` is the negative log-likelihood of the own
    tokens under the frozen base; ``own_tokens`` is per dialogue.
    """

    step: int
    reward: float
    reward_std: float
    zero_variance_groups: float
    loss: float
    kl: float
    entropy: float
    grad_norm: float
    logprob_gap_mean: float
    logprob_gap_max: float
    base_nll: float
    own_tokens: float
    tokens_trained: int
    adapter_sha256: str


@dataclass(frozen=True)
class StepMetrics:
    """One step. Success, agreement and reward are over the dialogues that the learning role had views of.

    ``tokens_sampled`` counts every token that a model sampled in that chair, a frozen partner's included.
    ``joint_reward`` is the mean sum of both roles' rewards where two models met (NaN: nowhere). ``success_against``
    is the agent's success by partner; ``validation_success`` against the validation counterparts, where played.
    """

    step: int
    success: dict[Role, float]
    agreement: dict[Role, float]
    reward: dict[Role, float]
    joint_reward: float
    tokens_sampled: dict[Role, int]
    dialogues: int
    dropped: int
    overflowed: int
    rollout_seconds: float
    success_against: dict[str, float] = field(default_factory=dict)
    validation_success: float | None = None
    validation_talks: int = 0
    updates: dict[Role, UpdateMetrics] = field(default_factory=dict)

    def of_role(self, role: Role) -> dict[str, float]:
        """One learning role's numbers, by name."""
        update = {k: float(v) for k, v in asdict(self.updates[role]).items() if isinstance(v, int | float)}
        figures = {
            **update,
            "success": self.success[role],
            "agreement": self.agreement[role],
            "reward": self.reward[role],
            "tokens_sampled": float(self.tokens_sampled[role]),
            "dropped": float(self.dropped),
            "overflowed": float(self.overflowed),
            "rollout_seconds": self.rollout_seconds,
        }
        if role is Role.AGENT and self.validation_success is not None:
            figures["validation_success"] = self.validation_success
        return figures


@dataclass(frozen=True)
class RoundProgress:
    """Reported when a step is complete; ``metrics`` by learning role and name."""

    step: int
    of: int
    metrics: dict[Role, dict[str, float]]


@dataclass(frozen=True)
class Price:
    """What a run cost. ``seconds`` by phase (they add up to nearly the wall time); memory in bytes, at most.

    ``tokens_trained`` are the own tokens that took part in an update. Of a run that was interrupted the price is
    that of its steps, the lost ones not counted.
    """

    tokens_sampled: dict[Role, int]
    tokens_trained: dict[Role, int]
    dialogues: int
    seconds: dict[str, float]
    peak_memory_bytes: int
    peak_gpu_memory_bytes: int

    def lines(self) -> list[str]:
        """For a person to read."""
        tokens = [
            f"{role}: {sampled:,} tokens sampled, {self.tokens_trained.get(role, 0):,} trained"
            for role, sampled in self.tokens_sampled.items()
        ]
        phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        return [*tokens, f"{self.dialogues:,} dialogues; {phases}; {self.peak_memory_bytes / 1e9:.2f} GB at most"]

    def figures(self) -> dict[str, float]:
        """All of it as flat numbers, by name."""
        return {
            **{f"{role}/tokens_sampled": float(count) for role, count in self.tokens_sampled.items()},
            **{f"{role}/tokens_trained": float(count) for role, count in self.tokens_trained.items()},
            **{f"seconds/{phase.replace(' ', '_')}": seconds for phase, seconds in self.seconds.items()},
            "dialogues": float(self.dialogues),
            "peak_memory_bytes": float(self.peak_memory_bytes),
            "peak_gpu_memory_bytes": float(self.peak_gpu_memory_bytes),
        }


@dataclass(frozen=True)
class CotrainResult:
    """The trained adapters (of the learning roles) and how they came to be."""

    adapters: dict[Role, Path]
    manifests: dict[Role, AdapterManifest]
    steps: list[StepMetrics]
    price: Price

    @property
    def tokens_sampled(self) -> dict[Role, int]:
        return self.price.tokens_sampled

    @property
    def tokens_trained(self) -> dict[Role, int]:
        return self.price.tokens_trained

    @property
    def seconds(self) -> float:
        return sum(self.price.seconds.values())

    @property
    def metrics(self) -> dict[Role, list[dict[str, float]]]:
        """Each learning role's numbers, one row a step."""
        return {role: [step.of_role(role) for step in self.steps] for role in self.adapters}


def dump_steps(steps: list[StepMetrics]) -> list[dict[str, object]]:
    return [asdict(step) for step in steps]


def load_steps(rows: list[dict[str, object]]) -> list[StepMetrics]:
    return TypeAdapter(list[StepMetrics]).validate_python(rows)


def dump_result(result: CotrainResult) -> str:
    """The result as JSON, with the adapters' folders by name."""
    manifests = {role: manifest.model_dump(mode="json") for role, manifest in result.manifests.items()}
    return json.dumps({"manifests": manifests, "steps": dump_steps(result.steps), "price": asdict(result.price)})


def load_result(text: str, output: Path) -> CotrainResult:
    """What :func:`dump_result` wrote, for adapters under ``output``."""
    data = json.loads(text)
    manifests = {Role(role): AdapterManifest.model_validate(found) for role, found in data["manifests"].items()}
    return CotrainResult(
        adapters={role: output / manifest.name for role, manifest in manifests.items()},
        manifests=manifests,
        steps=load_steps(data["steps"]),
        price=TypeAdapter(Price).validate_python(data["price"]),
    )
