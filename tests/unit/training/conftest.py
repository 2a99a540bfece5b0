"""Tiny co-training runs: a random model, calls of four turns, rewards made from what was said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from negotiation.generation import Engine, GenerationRequest, GenerationResult
from negotiation.roles import Role
from negotiation.scenario import Context, NegotiationState, Outcome
from negotiation.telesales import VehicleTelesales
from negotiation.transcript import ChatFormat
from serving.engines.in_process import InProcessEngine
from training.artifacts import BaseModelRef
from training.config import AdapterSettings, TrainingSettings
from training.cotrain import Cotraining
from training.records import CotrainResult, RoundProgress


class GradedCalls(VehicleTelesales):
    """Calls of four turns; a role's reward is ``scale * grade + shift``, its grade in [0, 1) made of the words.

    A random model never closes a deal, so the real rewards would all be equal and nobody would learn.
    """

    max_turns = 4

    def __init__(self, scale: Mapping[Role, float] | None = None, shift: Mapping[Role, float] | None = None) -> None:
        self.scale, self.shift = scale or {}, shift or {}

    def outcome(self, context: Context, state: NegotiationState) -> Outcome:
        said = "|".join(turn.text for turn in state.turns)

        def reward(role: Role) -> float:
            grade = int(hashlib.sha256(f"{role}:{said}".encode()).hexdigest()[:8], 16) / 2**32
            return self.scale.get(role, 1.0) * grade + self.shift.get(role, 0.0)

        real = super().outcome(context, state)
        return real.model_copy(update={"rewards": {role: reward(role) for role in Role}})


class SpyEngine:
    """An engine that keeps every request with its result."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batches: list[list[tuple[GenerationRequest, GenerationResult]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    @property
    def calls(self) -> list[tuple[GenerationRequest, GenerationResult]]:
        return [call for batch in self.batches for call in batch]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        results = self.engine.generate(requests)
        self.batches.append(list(zip(requests, results, strict=True)))
        return results


class ReciterEngine:
    """Says given words whatever its prompt holds: what it says cannot carry anything out of a prompt."""

    context_length = 512

    def __init__(self, tokenizer: Any, say: Callable[[GenerationRequest], str]) -> None:
        self.tokenizer, self.say = tokenizer, say
        self.end = ChatFormat(tokenizer).end_of_turn_id
        self.requests: list[GenerationRequest] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        self.requests.extend(requests)
        return [self._result(request) for request in requests]

    def _result(self, request: GenerationRequest) -> GenerationResult:
        ids = [*self.tokenizer.encode(self.say(request), add_special_tokens=False), self.end]
        cut = ids[: request.sampling.max_tokens]
        return GenerationResult(tuple(cut), (-1.0,) * len(cut), "stop" if cut == ids else "length")


@dataclass
class FinishedRun:
    """A run of two steps, what the engine sampled in it, and every batch that reached a trainer's loss."""

    cotraining: Cotraining
    result: CotrainResult
    engine: SpyEngine
    inputs: dict[Role, list[dict[str, torch.Tensor]]]
    progress: list[RoundProgress] = field(default_factory=list)


@pytest.fixture(scope="session")
def base(tiny_model_dir: Path) -> BaseModelRef:
    digest = hashlib.sha256((tiny_model_dir / "model.safetensors").read_bytes()).hexdigest()
    return BaseModelRef(tiny_model_dir, "tiny", digest)


@pytest.fixture(scope="session")
def tokenizer(tiny_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.fixture(scope="session")
def new_engine(base: BaseModelRef) -> Iterator[Callable[[], InProcessEngine]]:
    engines: list[InProcessEngine] = []

    def new() -> InProcessEngine:
        engine = InProcessEngine(
            base.path, base.sha256, max_adapters=4, max_batch=64, threads=1, prefix_cache_bytes=8 * 2**20
        )
        engines.append(engine)
        return engine

    yield new
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(new_engine: Callable[[], InProcessEngine]) -> InProcessEngine:
    return new_engine()


@pytest.fixture(scope="session")
def spy_on() -> Callable[[Engine], SpyEngine]:
    return SpyEngine


@pytest.fixture(scope="session")
def reciter(tokenizer: Any) -> Callable[[Callable[[GenerationRequest], str]], ReciterEngine]:
    return lambda say: ReciterEngine(tokenizer, say)


@pytest.fixture(scope="session")
def graded() -> type[GradedCalls]:
    return GradedCalls


@pytest.fixture(scope="session")
def tiny_settings() -> Callable[..., TrainingSettings]:
    def settings(**changes: Any) -> TrainingSettings:
        defaults: dict[str, Any] = {
            "steps": 1,
            "scenarios_per_step": 2,
            "group_size": 2,
            "max_message_tokens": 8,
            "threads": 1,
            "joint_share": 1.0,
            "validation_every": 0,
            "adapter": AdapterSettings(rank=4, alpha=8),
        }
        return TrainingSettings(**{**defaults, **changes})

    return settings


@pytest.fixture(scope="session")
def new_cotraining(
    base: BaseModelRef,
    new_engine: Callable[[], InProcessEngine],
    tiny_settings: Callable[..., TrainingSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Cotraining]:
    """``new_cotraining(scenario, steps=2, ...)``: a run not yet begun; ``engine`` defaults to a fresh one."""

    def new(
        scenario: VehicleTelesales | None = None,
        *,
        engine: Engine | None = None,
        start: dict[Role, Path | None] | None = None,
        version: int = 2,
        progress: Callable[[RoundProgress], None] = lambda _: None,
        output: Path | None = None,
        frozen: Sequence[Path] = (),
        **settings: Any,
    ) -> Cotraining:
        scenario = scenario or GradedCalls()
        return Cotraining(
            tiny_settings(**settings),
            engine or new_engine(),
            scenario,
            scenario.generate,
            start or {},
            version,
            output or tmp_path_factory.mktemp("run"),
            base,
            progress,
            frozen,
        )

    return new


@pytest.fixture(scope="session")
def finished(new_cotraining: Callable[..., Cotraining], new_engine: Callable[[], InProcessEngine]) -> FinishedRun:
    """One run of two steps that many tests look at: one group of joint dialogues a step, one against scripts."""
    spy, progress = SpyEngine(new_engine()), list[RoundProgress]()
    # With this seed the untrained model happens to end some of its turns, which tests rely on.
    run = new_cotraining(engine=spy, seed=3, steps=2, group_size=4, joint_share=0.5, progress=progress.append)
    inputs: dict[Role, list[dict[str, torch.Tensor]]] = {role: [] for role in Role}
    for role, learner in run.learners.items():
        _record_inputs(learner.trainer, inputs[role])
    return FinishedRun(run, run.run(), spy, inputs, progress)


def _record_inputs(trainer: Any, record: list[dict[str, torch.Tensor]]) -> None:
    compute = trainer._compute_loss

    def recording(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
        record.append({name: value.clone() for name, value in inputs.items()})
        return compute(model, inputs)

    trainer._compute_loss = recording
