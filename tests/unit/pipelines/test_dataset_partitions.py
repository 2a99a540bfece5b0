"""A dataset out of a log with several partitions, whose offsets are the same numbers."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet

from negotiation.catalogue import scenario_named
from negotiation.event_log import Record
from negotiation.events import Closed, ConversationEvent, Opened, OutcomeReported
from negotiation.scenario import CloseReason
from pipelines.dataset import DatasetLimits, DatasetWriter
from pipelines.event_log import SqliteEventLog


class TwoPartitions(SqliteEventLog):
    """Hands out one conversation a poll, each from a partition of its own at offsets 0 to 2."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waiting = [self.conversation(partition) for partition in (0, 1)]

    def conversation(self, partition: int) -> list[Record]:
        payloads = (
            Opened(context=scenario_named("telesales").generate(1), adapter="agent@1"),
            Closed(reason=CloseReason.ABANDONED),
            OutcomeReported(agreed=False, success=False),
        )
        return [
            Record(
                number,
                ConversationEvent(tenant="t", conversation_id=f"c{partition}", sequence=number, payload=payload),
                partition,
            )
            for number, payload in enumerate(payloads)
        ]

    def poll(self, group: str, limit: int) -> list[Record]:
        return self.waiting.pop() if self.waiting else []

    def commit(self, group: str, handled: object) -> None: ...


def test_conversations_at_equal_offsets_of_two_partitions_are_both_kept(tmp_path: Path) -> None:
    writer = DatasetWriter(TwoPartitions(tmp_path / "events.db"), tmp_path / "dataset", DatasetLimits(part_rows=1))
    assert writer.consume().conversations == 2
    writer.close()
    tables = [parquet.ParquetFile(part).read() for part in (tmp_path / "dataset").glob("parts/*/*.parquet")]
    assert sorted(name for table in tables for name in table["conversation_id"].to_pylist()) == ["c0", "c1"]
