"""What TRL's trainer is told for one learner: its settings, its place among several processes, its dataset.

Pure translation of :class:`~training.config.TrainingSettings`; nothing is trained here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import PartialState
from trl import GRPOConfig

from negotiation.roles import Role
from training.config import TrainingSettings


def group_prompts(settings: TrainingSettings, plays: tuple[Role, ...]) -> Iterator[str]:
    """What the trainer's dataset holds in place of prompts: whose dialogue, in which scenario."""
    for index in range(settings.steps * settings.scenarios_per_step):
        for role in plays:
            yield f"{role}:{index}"


def grpo_arguments(settings: TrainingSettings, role: Role, roles: int, output: Path) -> GRPOConfig:
    """The configuration of the learner of ``role`` whose adapter plays ``roles`` roles.

    Raises ValueError for a GPU that is not there and for scenarios that do not divide among the processes.
    """
    learner = settings.learner(role)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "training.device is 'cuda', but torch finds no GPU here: install a CUDA build of torch on a machine with "
            "an NVIDIA GPU, or set training.device to 'auto' or 'cpu'"
        )
    use_cpu = settings.device == "cpu" or not torch.cuda.is_available()
    processes = PartialState(cpu=use_cpu).num_processes
    share, rest = divmod(settings.dialogues_per_step * roles, processes)
    if rest or share % (settings.group_size * roles):
        raise ValueError(
            f"{settings.scenarios_per_step} scenarios_per_step do not divide among {processes} processes: choose a "
            f"multiple of {processes}"
        )
    micro = forward_batch(share, settings.micro_batch)
    return GRPOConfig(
        output_dir=str(output),
        seed=settings.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        num_generations=settings.group_size,
        max_completion_length=1_000_000,
        learning_rate=learner.learning_rate,
        lr_scheduler_type="linear",
        max_grad_norm=learner.max_grad_norm,
        beta=learner.kl_coefficient,
        epsilon=learner.clip_range,
        delta=learner.importance_cap,
        loss_type="dapo",
        scale_rewards="group",
        temperature=1.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=use_cpu,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
    )


def forward_batch(dialogues: int, bound: int) -> int:
    """Dialogues per forward pass: the largest equal share of a step's that stays within ``bound`` (0: all)."""
    return max(size for size in range(1, min(dialogues, bound or dialogues) + 1) if dialogues % size == 0)
