"""The agent's next message: generated, checked before anybody sees it, and shown early only where that is safe.

A reply that oversteps (``Scenario.overstep``) is generated once more, and then replaced by the safe reply, which
carries no move and promises nothing. With a listener, sentences that commit to nothing go out as soon as they are
whole; from the first other one on, everything waits for the check. What went out stays true: a second try goes on
from those very tokens, and the safe reply is put behind them.

Left out on purpose: judging moves. The scenario does that when the message is taken (``serving.flow``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict

from negotiation.authority import SAFE_REPLY
from negotiation.events import Guarded
from negotiation.generation import Engine, GenerationRequest, Sampling
from negotiation.scenario import Context, NegotiationState, Scenario
from negotiation.transcript import Transcript

TRIES = 2
_SENTENCE_ENDS = (".", "!", "?", "…")

Release = Callable[[str], object]


class SpokenReply(BaseModel):
    """A message of the agent and how it came to be.

    ``token_ids`` and ``logprobs`` are what was sampled of it; ``released`` is what the customer has been shown, and
    ``released_tokens`` how many of the tokens that is. ``replaced``: the rest of ``text`` is the safe reply, which
    nobody sampled. The counts are of all tries.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    released: str = ""
    released_tokens: int = 0
    replaced: bool = False
    guarded: Guarded | None = None

    def made_safe(self) -> SpokenReply:
        """What was released of it, and then the safe reply."""
        kept = self.released_tokens
        return self.model_copy(
            update={
                "text": after(self.released, SAFE_REPLY),
                "token_ids": self.token_ids[:kept],
                "logprobs": self.logprobs[:kept],
                "replaced": True,
            }
        )

    def write(self, transcript: Transcript) -> None:
        """Append it to the agent's transcript: sampled tokens as such, the safe reply as words put there."""
        if self.token_ids:
            transcript.speak(self.token_ids, self.logprobs)
        if self.replaced:
            transcript.put(f" {SAFE_REPLY}" if self.token_ids else SAFE_REPLY)


def after(released: str, rest: str) -> str:
    """``rest`` behind what the customer has been shown."""
    return f"{released} {rest}" if released else rest


@dataclass
class _Words:
    """Tokens of one reply so far, and how much of them has gone out."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    released: str = ""
    released_tokens: int = 0

    def cut(self) -> None:
        """Back to what went out."""
        del self.ids[self.released_tokens :], self.logprobs[self.released_tokens :]


@dataclass(frozen=True)
class _LetOut:
    """Shows the customer whole sentences that commit to nothing."""

    release: Release
    harmless: Callable[[str], bool]

    def __call__(self, text: str, words: _Words) -> bool:
        """Show what of ``text`` has not been shown; False if it must wait. The last token belongs to the next."""
        piece = text[len(words.released) :]
        if piece:
            if not self.harmless(piece):
                return False
            words.released, words.released_tokens = text, len(words.ids) - 1
            self.release(piece)
        return True


class Speaker:
    """Has the pinned adapter reply. One instance serves all conversations."""

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self._engine = engine
        self._sampling = sampling

    async def speak(
        self,
        ids: tuple[int, ...],
        adapter: str,
        scenario: Scenario,
        context: Context,
        state: NegotiationState,
        release: Release | None,
    ) -> SpokenReply:
        """The reply to the transcript ``ids``. ``release`` is called with each piece that may be shown early."""
        words = _Words()
        let_out = None
        if release is not None:
            let_out = _LetOut(release, lambda piece: scenario.harmless(context, state, piece))
        prompt_tokens = completion_tokens = 0
        for number in range(TRIES):
            sampling = replace(self._sampling, max_tokens=self._sampling.max_tokens - len(words.ids))
            if number:
                # Greedily, the same words would come again.
                sampling = replace(sampling, temperature=max(1.0, sampling.temperature))
            request = GenerationRequest((*ids, *words.ids), adapter, sampling)
            before = len(words.ids)
            await self._sample(request, words, let_out)
            prompt_tokens += len(request.prompt_ids)
            completion_tokens += len(words.ids) - before
            reply = SpokenReply(
                text=self._decode(words.ids).strip(),
                token_ids=tuple(words.ids),
                logprobs=tuple(words.logprobs),
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                released=words.released,
                released_tokens=words.released_tokens,
                guarded=Guarded.REGENERATED if number else None,
            )
            if scenario.overstep(context, state, reply.text) is None:
                return reply
            words.cut()
            if len(words.ids) >= self._sampling.max_tokens:
                break
        return reply.made_safe().model_copy(update={"guarded": Guarded.REPLACED})

    async def _sample(self, request: GenerationRequest, words: _Words, let_out: _LetOut | None) -> None:
        if let_out is None:
            result = await self._engine.generate_async(request)
            words.ids += result.token_ids
            words.logprobs += result.logprobs
            return
        holding, before = False, self._decode(words.ids)
        async for chunk in self._engine.stream(request):
            for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True):
                words.ids.append(token)
                words.logprobs.append(logprob)
                # The last part is shown with the whole, once that has passed.
                if holding or chunk.finish_reason is not None:
                    continue
                text = self._decode(words.ids)
                # Whole is a sentence when white space follows: "12." may go on as "12.000".
                if before.endswith(_SENTENCE_ENDS) and text.startswith(before) and text[len(before) :][:1].isspace():
                    holding = not let_out(before.lstrip(), words)
                before = text

    def _decode(self, ids: list[int]) -> str:
        return str(self._engine.tokenizer.decode(ids, skip_special_tokens=True))
