"""What curation reads of a real dataset, and the conversations that it chose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from negotiation.catalogue import scenario_named
from negotiation.events import Closed, ConversationEvent, Message, Opened, OutcomeReported
from negotiation.roles import Role
from negotiation.scenario import CloseReason
from pipelines.config import CurationSettings
from pipelines.curated_conversations import contexts_of, curated, live_conversations, signed_outcomes
from pipelines.curation import Rule
from pipelines.dataset import DatasetWriter
from pipelines.event_log import SqliteEventLog

SCENARIO = scenario_named("telesales")
SETTINGS = CurationSettings(quarantine_hours=0, max_near_duplicates=2)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Six conversations of the same customer's words: five live, of which one without consent, one simulated."""
    log = SqliteEventLog(tmp_path / "events.db")
    for number in range(6):
        source: Literal["live", "simulated"] = "simulated" if number == 5 else "live"
        payloads = (
            Opened(context=SCENARIO.generate(number), adapter="agent@1", source=source),
            Message(role=Role.AGENT, text=f"One of {'x' * number} kind.", shown="hello"),
            Message(role=Role.COUNTERPART, text=f"I pay {number} euros today.", shown="I pay."),
            Closed(reason=CloseReason.ABANDONED),
            OutcomeReported(agreed=False, success=True),
        )
        log.append(
            [
                ConversationEvent(
                    tenant="t", conversation_id=f"c{number}", sequence=n, payload=payload, consent=number != 0
                )
                for n, payload in enumerate(payloads)
            ]
        )
    writer = DatasetWriter(log, tmp_path / "data")
    writer.consume()
    writer.close()
    log.close()
    return tmp_path / "data"


def test_the_customers_words_make_near_duplicates_and_not_the_agents(dataset: Path) -> None:
    found = curated(dataset, "telesales", SETTINGS, datetime.now(UTC) + timedelta(minutes=1), room=10)
    assert len(found.kept) == 2
    assert (found.left_out[Rule.CONSENT], found.left_out[Rule.NEAR_DUPLICATE]) == (1, 3)
    assert curated(dataset, "deal-or-no-deal", SETTINGS, datetime.now(UTC), room=10).kept == ()


def test_the_chosen_come_whole_in_their_order_and_one_that_is_gone_is_left_out(dataset: Path) -> None:
    contexts = contexts_of(dataset, "telesales", ["c4", "gone", "c1"])
    assert [context.seed for context in contexts] == [4, 1]
    found = {one.dialogue: one for one in live_conversations(dataset, "telesales", ["c1", "c5", "gone"])}
    assert set(found) == {"c1"}
    assert [(turn.role, turn.text) for turn in found["c1"].turns] == [
        (Role.AGENT, "One of x kind."),
        (Role.COUNTERPART, "I pay 1 euros today."),
    ]


def test_an_outcome_that_nobody_signed_is_no_evidence(dataset: Path) -> None:
    assert signed_outcomes(dataset, "telesales", "agent@1", datetime(2000, 1, 1, tzinfo=UTC)) == (0, 0)
