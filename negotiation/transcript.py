"""A dialogue as one role's model sees it: token ids that only ever grow.

The trap this avoids: encoding the whole text again every turn (or through a chat template that rewrites
its prefix) gives ids that differ from the ones that were sampled. Here the system prompt and each message
of the other side are encoded once, the model's own tokens are appended as sampled, and the mask says who
sampled what. The chat template is only asked for the text *around* messages, and must keep its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from negotiation.generation import Tokenizer

_SYSTEM, _THEIRS, _OURS = "\u0001S\u0001", "\u0001T\u0001", "\u0001O\u0001"


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot be appended to turn by turn."""


class ChatFormat:
    """The text a tokenizer's chat template puts around messages, found once by rendering probes.

    Raises ChatTemplateError for a template that does not keep its prefix when messages are added.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        system = {"role": "system", "content": _SYSTEM}
        theirs = {"role": "user", "content": _THEIRS}
        ours = {"role": "assistant", "content": _OURS}

        def render(*messages: dict[str, str], generate: bool) -> str:
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generate)
            return str(text)

        opening = render(system, generate=True)
        first = render(system, theirs, generate=True)
        second = render(system, theirs, ours, theirs, generate=True)
        ours_first = render(system, ours, theirs, generate=True)
        if not second.startswith(first) or not ours_first.startswith(opening) or _SYSTEM not in opening:
            raise ChatTemplateError(
                "the chat template rewrites earlier text when a message is added, so sampled tokens would not "
                "match trained tokens; use a tokenizer whose template only appends"
            )
        self._opening = opening
        self._system_only = first[: first.index(_THEIRS)]
        self._user_tail = first[first.index(_THEIRS) + len(_THEIRS) :]
        after_ours = second[len(first) + len(_OURS) :]
        self._between = after_ours[: after_ours.index(_THEIRS)]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _encode_words(self, text: str) -> list[int]:
        """Ids of words said by somebody: control tokens written in them are letters, and command nothing."""
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def words(self, text: str) -> list[int]:
        """Ids of words alone, with nothing of the template around them."""
        return self._encode_words(text)

    def _around(self, text: str, marker: str, words: str) -> list[int]:
        before, after = text.split(marker)
        return [*self._encode(before), *self._encode_words(words), *self._encode(after)]

    def opening(self, system_prompt: str) -> list[int]:
        """Ids of the system prompt up to where our side begins to speak first."""
        return self._around(self._opening, _SYSTEM, system_prompt)

    def opening_with(self, system_prompt: str, message: str) -> list[int]:
        """Ids when the other side speaks first: system prompt, their message, our turn."""
        system = self._around(self._system_only, _SYSTEM, system_prompt)
        return [*system, *self._encode_words(message), *self._encode(self._user_tail)]

    def reply(self, message: str, *, turn_ended: bool) -> list[int]:
        """Ids to append after our own turn: its end (unless we sampled it), their message, our turn again."""
        between = self._between
        if turn_ended and self._end_of_turn and between.startswith(self._end_of_turn):
            between = between[len(self._end_of_turn) :]
        return [*self._encode(between), *self._encode_words(message), *self._encode(self._user_tail)]

    def dialogue(self, system_prompt: str, turns: Sequence[str], *, ours_first: bool) -> list[int]:
        """Ids of a dialogue known as text only, up to our turn: both sides' words in turn, the last one theirs.

        For a dialogue whose tokens nobody kept. Where they were sampled here, :class:`Transcript` has the true ones.
        """
        ids: list[int] = []
        for place, words in enumerate(turns):
            if (place % 2 == 0) == ours_first:
                ids = [*(ids or self.opening(system_prompt)), *self._encode_words(words)]
            elif not ids:
                ids = self.opening_with(system_prompt, words)
            else:
                ids += self.reply(words, turn_ended=False)
        return ids

    def holds_control_tokens(self, text: str) -> bool:
        """Whether a text holds tokens that mark turns for the model: it could speak in another role's name."""
        ids = self._encode(text)
        plain = self.tokenizer.decode(ids, skip_special_tokens=True)
        return bool(plain != self.tokenizer.decode(ids, skip_special_tokens=False))

    @cached_property
    def _end_of_turn(self) -> str:
        return str(self.tokenizer.decode([self.end_of_turn_id], skip_special_tokens=False))

    @cached_property
    def end_of_turn_id(self) -> int:
        """The token that ends our turn: the first special token the template writes after our words."""
        first = self._encode(self._between)[:1]
        return first[0] if first else int(self.tokenizer.eos_token_id)


@dataclass
class Transcript:
    """One role's token view of a dialogue. ``ids``, ``sampled`` and ``logprobs`` have equal length.

    ``sampled[i]`` is 1 only where this role's own model sampled token i; ``logprobs[i]`` is 0.0 elsewhere.
    """

    chat: ChatFormat
    system_prompt: str
    ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def hear(self, message: str) -> None:
        """Append the other side's message, and open our turn."""
        if not self.ids:
            self._append(self.chat.opening_with(self.system_prompt, message))
        else:
            ended = self.ids[-1] == self.chat.end_of_turn_id
            self._append(self.chat.reply(message, turn_ended=ended))

    def open(self) -> None:
        """Begin with our own turn: we speak first."""
        if self.ids:
            raise ValueError("this transcript has begun already")
        self._append(self.chat.opening(self.system_prompt))

    def speak(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> str:
        """Append what our model sampled; returns its text."""
        if len(token_ids) != len(logprobs):
            raise ValueError(f"{len(token_ids)} tokens but {len(logprobs)} log-probabilities")
        self.ids.extend(token_ids)
        self.sampled.extend([1] * len(token_ids))
        self.logprobs.extend(logprobs)
        return str(self.chat.tokenizer.decode(list(token_ids), skip_special_tokens=True)).strip()

    def put(self, words: str) -> None:
        """Append words put in our model's mouth: part of its turn, but nothing that it sampled or may be taught."""
        self._append(self.chat.words(words))

    def _append(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.sampled.extend([0] * len(ids))
        self.logprobs.extend([0.0] * len(ids))
