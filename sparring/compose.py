"""Puts the parts together from the settings: the only place that knows which implementation stands behind a seam.

Heavy parts (torch, MLflow) are imported by the functions that need them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from negotiation.adapter import AdapterName
from sparring.errors import MisuseError
from sparring.models import ResolvedModel, resolve_base_model
from sparring.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from negotiation.event_log import EventLog
    from pipelines.config import KafkaSettings
    from pipelines.dataset import DatasetWriter
    from pipelines.registry import MlflowRegistry
    from pipelines.round_lease import HeldLease
    from pipelines.round_state import Progress, RoundResult
    from pipelines.triggers import Trigger
    from pipelines.worker import RunRound
    from serving.app import ServingEngine
    from serving.config import VllmSettings
    from training.artifacts import BaseModelRef

TRAINING_BATCH = 128
"""Dialogues generated together in training and evaluation, where nobody waits for a single reply."""


def open_event_log(settings: Settings) -> EventLog:
    """The event log that the settings choose. The caller closes it. Kafka is connected to on first use."""
    if settings.pipelines.kafka is not None:
        from pipelines.kafka_log import KafkaEventLog

        return KafkaEventLog(settings.pipelines.kafka)
    from pipelines.event_log import SqliteEventLog

    return SqliteEventLog(settings.pipelines.event_log_path)


def kafka_settings(settings: Settings) -> KafkaSettings:
    """Where Kafka is. Raises MisuseError if the events are not kept there."""
    if settings.pipelines.kafka is None:
        raise MisuseError(
            f"events are kept in {settings.pipelines.event_log_path}, which has no topics: to keep them in Kafka set "
            "bootstrap_servers of [pipelines.kafka]"
        )
    return settings.pipelines.kafka


def open_dataset_writer(settings: Settings, event_log: EventLog) -> DatasetWriter:
    """A writer of the dataset. The caller closes it. Raises MisuseError for a folder of an earlier release."""
    from pipelines.assembly import OutdatedDataset
    from pipelines.dataset import DatasetWriter
    from pipelines.worker import dataset_limits

    try:
        return DatasetWriter(event_log, settings.pipelines.datasets_dir, dataset_limits(settings.pipelines))
    except OutdatedDataset as error:
        raise MisuseError(str(error)) from error


def open_registry(settings: Settings, model: ResolvedModel) -> MlflowRegistry:
    """The registry, with a champion of each role: at first a fresh adapter, which changes nothing."""
    from pipelines.registry import MlflowRegistry

    registry = MlflowRegistry(settings.pipelines.resolved_tracking_uri, settings.pipelines.adapters_dir)
    registry.bootstrap(_fresh_adapter(settings, model))
    return registry


def base_reference(model: ResolvedModel) -> BaseModelRef:
    """The base model as training names it."""
    from training.artifacts import BaseModelRef

    return BaseModelRef(path=model.path, name=model.name, sha256=model.sha256)


def _fresh_adapter(settings: Settings, model: ResolvedModel) -> Callable[[AdapterName, Path], object]:
    def write(name: AdapterName, directory: Path) -> object:
        from training.artifacts import initialise_adapter

        training = settings.training
        return initialise_adapter(base_reference(model), name, training.adapter, training.seed, directory)

    return write


def open_engine(settings: Settings, model: ResolvedModel, *, training: bool = False) -> ServingEngine:
    """The engine that serves, or the one that plays rollouts. The caller closes it.

    Raises MisuseError if vLLM servers are configured and none can be used.
    """
    vllm = _rollout_servers(settings) if training else settings.serving.vllm
    if vllm is not None:
        return _vllm_engine(settings, model, vllm)
    import torch

    from serving.engines.in_process import InProcessEngine

    engine = settings.serving.engine
    wanted = settings.training.device if training else "cpu"
    return InProcessEngine(
        model.path,
        model.sha256,
        device="cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu",
        max_adapters=engine.max_adapters,
        max_batch=TRAINING_BATCH if training else engine.max_batch,
        threads=settings.training.threads if training else engine.threads,
        max_rank=engine.max_adapter_rank,
        max_waiting=settings.serving.max_waiting,
    )


def _rollout_servers(settings: Settings) -> VllmSettings | None:
    from serving.config import VllmSettings

    urls = settings.training.rollout_urls
    if not urls:
        return None
    served = settings.serving.vllm
    return VllmSettings(urls=urls) if served is None else served.model_copy(update={"urls": urls})


def _vllm_engine(settings: Settings, model: ResolvedModel, vllm: VllmSettings) -> ServingEngine:
    from serving.engines import EngineUnavailable
    from serving.engines.vllm import VllmEngine

    engine = settings.serving.engine
    try:
        return VllmEngine(
            model.path,
            model.sha256,
            vllm,
            max_adapters=engine.max_adapters,
            max_rank=engine.max_adapter_rank,
            max_waiting=settings.serving.max_waiting,
        )
    except EngineUnavailable as error:
        raise MisuseError(f"{error}. Start vLLM there, or take its address out of the settings") from error


@contextmanager
def application(settings: Settings) -> Iterator[FastAPI]:
    """The HTTP application with everything behind it, for as long as the context lasts."""
    from negotiation.roles import Role
    from serving.app import create_app
    from serving.slots import AdapterSlots

    model = resolve_base_model(settings.base_model)
    registry = open_registry(settings, model)
    event_log = open_event_log(settings)
    engine = open_engine(settings, model)
    try:
        yield create_app(settings.serving, engine, AdapterSlots(Role.AGENT), event_log, registry)
    finally:
        engine.close()
        event_log.close()


def run_worker(settings: Settings, stop: threading.Event, *, once: bool = False) -> int:
    """Work until ``stop`` is set (SIGTERM and SIGINT set it). Returns the number of finished rounds."""
    from pipelines.assembly import OutdatedDataset
    from pipelines.dataset_files import DatasetDamaged, DatasetInUse
    from pipelines.worker import Worker, stop_on_signals

    event_log = open_event_log(settings)
    try:
        with stop_on_signals(stop):
            return Worker(settings.pipelines, event_log, _round_runner(settings), stop).work(once=once)
    except (OutdatedDataset, DatasetDamaged, DatasetInUse) as error:
        raise MisuseError(str(error)) from error
    finally:
        event_log.close()


def train_once(settings: Settings, progress: Callable[[Progress], None]) -> RoundResult:
    """Take in what the log has, then run one round (or go on with the interrupted one).

    Raises MisuseError while another process runs one.
    """
    from pipelines.round_lease import LeaseTaken, LeaseUnavailable, round_lease
    from pipelines.triggers import Trigger

    event_log = open_event_log(settings)
    try:
        # Held for the whole round, so that no worker begins one beside it.
        writer = open_dataset_writer(settings, event_log)
        try:
            writer.consume()
            with round_lease(settings.pipelines).hold() as lease:
                return _round_runner(settings)(progress, trigger=Trigger.MANUAL, lease=lease)
        except (LeaseTaken, LeaseUnavailable) as error:
            raise MisuseError(str(error)) from error
        finally:
            writer.close()
    finally:
        event_log.close()


def _round_runner(settings: Settings) -> RunRound:
    def run(progress: Callable[[Progress], None], *, trigger: Trigger, lease: HeldLease) -> RoundResult:
        from negotiation.catalogue import scenario_named
        from pipelines.dataset_files import read_manifest
        from pipelines.round import run_round
        from pipelines.round_state import DatasetReference

        newest = read_manifest(settings.pipelines.datasets_dir)
        model = resolve_base_model(settings.base_model)
        return run_round(
            settings.pipelines,
            settings.training,
            registry=open_registry(settings, model),
            scenario=scenario_named(settings.pipelines.scenario),
            base=base_reference(model),
            engine_factory=lambda: open_engine(settings, model, training=True),
            progress=progress,
            lease=lease,
            trigger=trigger,
            dataset=DatasetReference(str(newest.version), newest.content_hash),
        )

    return run
