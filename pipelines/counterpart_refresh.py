"""The counterpart's warm start, refreshed before co-training: it learns to speak as real customers lately did.

From the champion's weights, by supervised fine-tuning on the customers' own words (``training.supervised``: nobody
else's tokens carry loss), stopped early on conversations held out by a hash of their ids, which puts one on the same
side in every round. What is trained is kept only if the held-out perplexity fell.

The prompt is the scenario's for the counterpart, of the public part and a private view of the customer. Who a real
customer was is unknown: unless the outcome told it, the view is drawn by ``Scenario.complete``, as calibration does.
A prompt without a view would be another one than co-training and the gate give this adapter, and what is learned
under it need not show under theirs. The price: a customer's figures go with a budget that was not theirs, so figures
are learned as noise, and co-training has to tie them to the view again. The agent's view is taken out of the context
before the prompt is made.

Left out on purpose: learning what the agent said to real customers. Only rewards teach the agent.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer

from negotiation.adapter import AdapterName
from negotiation.roles import Role
from negotiation.scenario import Scenario, ScenarioError
from negotiation.transcript import ChatFormat, Transcript
from pipelines.config import RefreshSettings
from pipelines.round_state import RefreshRecord
from training.artifacts import BaseModelRef
from training.config import TrainingSettings
from training.methods import plan_of
from training.recorded import Recorded, role_views
from training.supervised import SupervisedProgress, SupervisedSettings, own_row, supervise

_MOST_EPOCHS = 10


def refresh(
    conversations: Iterable[Recorded],
    champion: Path,
    base: BaseModelRef,
    scenario: Scenario,
    settings: RefreshSettings,
    training: TrainingSettings,
    name: AdapterName,
    output: Path,
    progress: Callable[[SupervisedProgress], None] = lambda _: None,
) -> RefreshRecord:
    """Train ``output/<name>`` from the ``champion`` adapter; the folder is there afterwards iff it was applied.

    What an interrupted try left there is removed: nobody has seen it. The same conversations, in any order, give the
    same adapter. Raises ValueError if the champion's adapter has another shape than the settings ask for.
    """
    if not settings.enabled:
        return RefreshRecord(False, "switched off by [pipelines.refresh] enabled", turns=0)
    plan = plan_of(training.method)
    if Role.COUNTERPART not in (roles[0] for roles in plan.adapters) and plan.partner != "frozen":
        return RefreshRecord(False, f"the method {training.method} has no counterpart of its own", turns=0)
    directory = output / str(name)
    if directory.exists():
        shutil.rmtree(directory)
    views, turns = customer_views(conversations, scenario, settings, base)
    if turns < settings.min_turns:
        return RefreshRecord(False, f"skipped: {turns} turns of real customers, {settings.min_turns} needed", turns)
    train, held_out = split(views, settings)
    if not train or not held_out:
        sides = f"{len(train)} conversations to learn from and {len(held_out)} held out"
        return RefreshRecord(False, f"skipped: {sides}, both are needed", turns)
    record = RefreshRecord(False, "", turns, len(train), len(held_out))
    learn, check = ([own_row(transcript) for transcript in side] for side in (train, held_out))
    chosen = _supervised(len(train), settings, training)
    try:
        report = supervise(base, name, learn, check, chosen, output, progress, start=champion)
    except FloatingPointError as error:
        return replace(record, reason=f"not applied, training broke off: {error}")
    before, after = report.perplexity_before, report.perplexity_after
    record = replace(record, perplexity_before=before, perplexity_after=after)
    figures = f"held-out perplexity {before:.3f} before, {after:.3f} after {report.best_epoch} epochs"
    if report.best_epoch == 0:
        shutil.rmtree(directory)
        return replace(record, reason=f"not applied, the champion stays: no epoch was better ({figures})")
    return replace(record, applied=True, reason=f"applied: {figures}")


def customer_views(
    conversations: Iterable[Recorded], scenario: Scenario, settings: RefreshSettings, base: BaseModelRef
) -> tuple[dict[str, Transcript], int]:
    """By conversation id the customer's transcript, and how many turns they hold together.

    Left out are conversations in which the customer said nothing, that are longer than the model's context, or whose
    context the scenario no longer takes.
    """
    chat = ChatFormat(AutoTokenizer.from_pretrained(base.path))
    context_length = int(AutoConfig.from_pretrained(base.path).max_position_embeddings)
    views: dict[str, Transcript] = {}
    turns = 0
    for one in sorted(conversations, key=lambda recorded: recorded.dialogue):
        try:
            seen = _as_the_customer_saw(one, scenario, settings.seed)
        except ScenarioError:
            continue
        for transcript in role_views([seen], Role.COUNTERPART, scenario, chat, context_length).transcripts:
            views[one.dialogue] = transcript
            turns += sum(turn.role is Role.COUNTERPART for turn in one.turns)
    return views, turns


def _as_the_customer_saw(recorded: Recorded, scenario: Scenario, seed: int) -> Recorded:
    """With a view of the customer, drawn unless it is known, and without the agent's."""
    context = recorded.context
    scenario.validate(context)
    if Role.COUNTERPART not in context.views:
        context = scenario.complete(context, _number(f"view:{seed}:{recorded.dialogue}"))
    own = {Role.COUNTERPART: context.views[Role.COUNTERPART]}
    return replace(recorded, context=context.model_copy(update={"views": own}))


def split(
    views: dict[str, Transcript], settings: RefreshSettings
) -> tuple[Sequence[Transcript], Sequence[Transcript]]:
    """Transcripts to learn from, and held out: by a hash of the id, so that others make no difference to one."""
    limit = settings.held_out_share * 2**63
    sides: tuple[list[Transcript], list[Transcript]] = ([], [])
    for identity, transcript in views.items():
        sides[_number(f"held out:{settings.seed}:{identity}") < limit].append(transcript)
    return sides


def _number(text: str) -> int:
    """A number under 2^63 of its own for every text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _supervised(conversations: int, settings: RefreshSettings, training: TrainingSettings) -> SupervisedSettings:
    """Whole epochs within the most steps, or one that is cut short."""
    steps = math.ceil(conversations / settings.batch_size)
    return SupervisedSettings(
        seed=settings.seed,
        epochs=max(1, min(_MOST_EPOCHS, settings.max_steps // steps)),
        epoch_views=min(conversations, settings.max_steps * settings.batch_size),
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        threads=training.threads,
        adapter=training.adapter,
    )
