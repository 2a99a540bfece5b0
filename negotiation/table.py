"""What both scenarios share about turns: whose turn it is, when talk ends, and what the words of a turn are."""

from __future__ import annotations

from collections.abc import Mapping

from negotiation.moves import Move, ParsedMessage, parse_message
from negotiation.roles import Role
from negotiation.scenario import CloseReason, NegotiationState, Turn


def require_turn(state: NegotiationState, role: Role) -> None:
    """Raise ValueError unless the negotiation is open and it is this role's turn."""
    if state.closed is not None:
        raise ValueError(f"the negotiation is closed ({state.closed}): no further message can be taken")
    if role is not state.next_speaker:
        raise ValueError(f"it is the {state.next_speaker}'s turn, not the {role}'s")


def take_turn(
    state: NegotiationState,
    role: Role,
    parsed: ParsedMessage,
    *,
    move: Move | None,
    rejected: str | None,
    shown: str | None = None,
    blocked: bool = False,
    max_turns: int,
    changes: Mapping[str, object] | None = None,
) -> NegotiationState:
    """Append a turn, hand the floor over, close at the turn limit, then apply ``changes``."""
    turn = Turn(
        role=role,
        text=parsed.text,
        shown=parsed.text if shown is None else shown,
        move=move,
        rejected=rejected or parsed.malformed,
        blocked=blocked,
    )
    turns = (*state.turns, turn)
    update: dict[str, object] = {"turns": turns, "next_speaker": role.other}
    if len(turns) >= max_turns:
        update["closed"] = CloseReason.TURN_LIMIT
    update.update(changes or {})
    return state.model_copy(update=update)


def spoken_words(turn: Turn) -> str:
    """The words of a turn without its move. Brackets that hold no move that counts are read as words."""
    if turn.move is not None:
        return parse_message(turn.text).speech
    return turn.text.replace("[", " ").replace("]", " ")
