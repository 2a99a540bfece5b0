"""What the in-process engine generates is what the plain model would, however requests are batched and cached."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from negotiation.generation import AdapterNotLoaded, Engine, GenerationRequest, PromptTooLong, Sampling
from serving.engines.in_process import InProcessEngine

GREEDY = Sampling(max_tokens=12, temperature=0.0)
VOCABULARY = 400


def prompts(count: int, seed: int = 0, shortest: int = 1, longest: int = 60) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(shortest, longest))) for _ in range(count)]


def reference(model: Any, prompt: tuple[int, ...], tokens: int) -> tuple[list[int], list[float]]:
    """Greedy continuation by running the whole sequence anew for every token."""
    ids, logprobs = list(prompt), []
    with torch.inference_mode():
        for _ in range(tokens):
            scores = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(scores.argmax()))
            logprobs.append(float(scores[ids[-1]]))
    return ids[len(prompt) :], logprobs


def test_is_an_engine(make_engine: Callable[..., InProcessEngine]) -> None:
    engine = make_engine()
    assert isinstance(engine, Engine)
    assert engine.context_length == 512
    assert engine.tokenizer.decode(engine.tokenizer.encode("hello"), skip_special_tokens=True).strip() == "hello"


def test_ragged_batch_equals_one_by_one_without_cache(
    make_engine: Callable[..., InProcessEngine], tiny_model_dir: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    batch = prompts(9)
    results = make_engine().generate([GenerationRequest(prompt, sampling=GREEDY) for prompt in batch])
    for prompt, result in zip(batch, results, strict=True):
        ids, logprobs = reference(model, prompt, GREEDY.max_tokens)
        assert list(result.token_ids) == ids
        assert result.logprobs == pytest.approx(logprobs, abs=1e-4)
        assert result.finish_reason == "length"


@pytest.mark.parametrize("kind", ["gpt2", "qwen2-grouped-heads"])
def test_other_architectures(
    make_engine: Callable[..., InProcessEngine], tiny_model_dir: Path, tmp_path: Path, kind: str
) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model: Any
    if kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=600, n_positions=96, n_embd=64, n_layer=2, n_head=2))
    else:
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=600,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=96,
            )
        )
    model.eval().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(tmp_path)
    engine = make_engine(model_dir=tmp_path)
    # 84 + 12 fills the context to the last position.
    batch = [*prompts(5), *prompts(1, seed=1, shortest=84, longest=84)]
    for prompt, result in zip(
        batch, engine.generate([GenerationRequest(p, sampling=GREEDY) for p in batch]), strict=True
    ):
        ids, logprobs = reference(model, prompt, GREEDY.max_tokens)
        assert list(result.token_ids) == ids
        assert result.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_hybrid_attention_is_refused(
    make_engine: Callable[..., InProcessEngine], tiny_model_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=600,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=16,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="vLLM"):
        make_engine(model_dir=tmp_path)


def dialogues(engine: InProcessEngine, turns: int = 4, adapter: str = "base") -> list[list[Any]]:
    """Several dialogues, each turn's prompt being all that went before and a few new ids."""
    rng = random.Random(5)
    texts = prompts(6, seed=3, shortest=20)
    rounds = []
    for turn in range(turns):
        sampling = [Sampling(max_tokens=rng.randint(1, 9), temperature=turn % 2, seed=i) for i in range(len(texts))]
        results = engine.generate([GenerationRequest(t, adapter, s) for t, s in zip(texts, sampling, strict=True)])
        rounds.append(results)
        texts = [
            text + result.token_ids + tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 7)))
            for text, result in zip(texts, results, strict=True)
        ]
    return rounds


def test_prefix_cache_changes_no_answer(make_engine: Callable[..., InProcessEngine]) -> None:
    cached, plain = make_engine(), make_engine(prefix_cache_bytes=0)
    for with_cache, without in zip(dialogues(cached), dialogues(plain), strict=True):
        for a, b in zip(with_cache, without, strict=True):
            assert a.token_ids == b.token_ids
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    assert cached.tokens_reused > 3 * 6 * 20
    assert plain.tokens_reused == 0


def test_prefix_cache_too_small_for_everything_still_answers_right(
    make_engine: Callable[..., InProcessEngine],
) -> None:
    small, plain = make_engine(prefix_cache_bytes=100_000), make_engine(prefix_cache_bytes=0)
    assert [[r.token_ids for r in rs] for rs in dialogues(small)] == [
        [r.token_ids for r in rs] for rs in dialogues(plain)
    ]


def test_asking_again_what_is_cached_whole(make_engine: Callable[..., InProcessEngine]) -> None:
    engine = make_engine()
    first = GenerationRequest(prompts(1, shortest=10)[0], sampling=GREEDY)
    [answer] = engine.generate([first])
    # The cached sequence is exactly this prompt but its last token: there is nothing to prefill.
    longer = GenerationRequest(first.prompt_ids + answer.token_ids, sampling=GREEDY)
    [once] = engine.generate([longer])
    fresh = make_engine(prefix_cache_bytes=0)
    assert fresh.generate([longer])[0].token_ids == once.token_ids
    assert engine.generate([longer])[0].token_ids == once.token_ids


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_seeded_answer_does_not_depend_on_the_batch(shared_engine: InProcessEngine, data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40).map(tuple)
    sampling = st.builds(
        Sampling,
        max_tokens=st.integers(1, 10),
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        stop_token_ids=st.lists(st.integers(0, VOCABULARY - 1), max_size=60).map(tuple),
        seed=st.integers(-(2**63), 2**63),
    )
    requests = data.draw(st.lists(st.builds(GenerationRequest, ids, sampling=sampling), min_size=1, max_size=7))
    requests += requests[:1]
    together = shared_engine.generate(requests)
    for request, result in zip(requests, together, strict=True):
        [alone] = shared_engine.generate([request])
        assert alone.token_ids == result.token_ids
        assert alone.logprobs == pytest.approx(result.logprobs, abs=1e-4)
        stops = request.sampling.stop_token_ids
        assert len(result.logprobs) == len(result.token_ids) <= request.sampling.max_tokens
        assert not set(result.token_ids[:-1]) & set(stops)
        assert (result.finish_reason == "stop") == (result.token_ids[-1] in stops)
        assert all(logprob <= 0 for logprob in result.logprobs)


@pytest.fixture(scope="module")
def shared_engine(tiny_model_dir: Path) -> Any:
    engine = InProcessEngine(tiny_model_dir, "0" * 64, max_adapters=2, max_batch=16, threads=1)
    yield engine
    engine.close()


def test_samples_follow_the_models_distribution(shared_engine: InProcessEngine, tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    prompt, draws = (3, 1, 4, 1, 5), 4000
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([prompt])).logits[0, -1].softmax(-1)
    requests = [GenerationRequest(prompt, sampling=Sampling(max_tokens=1, seed=seed)) for seed in range(draws)]
    tokens = torch.tensor([result.token_ids[0] for result in shared_engine.generate(requests)])
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    # Pearson's statistic over ten bins of ids; 27.9 is the 0.999 quantile of chi-squared with 9 degrees.
    observed = torch.stack([part.sum() for part in counts.tensor_split(10)])
    wanted = torch.stack([part.sum() for part in expected.double().tensor_split(10)]) * draws
    assert float(((observed - wanted) ** 2 / wanted).sum()) < 27.9


def test_unseeded_requests_differ_from_each_other(shared_engine: InProcessEngine) -> None:
    results = shared_engine.generate([GenerationRequest((1, 2, 3), sampling=Sampling(max_tokens=8))] * 8)
    assert len({result.token_ids for result in results}) > 1


def test_more_requests_than_fit_one_batch(make_engine: Callable[..., InProcessEngine]) -> None:
    requests = [GenerationRequest(prompt, sampling=GREEDY) for prompt in prompts(11)]
    whole = make_engine(max_batch=32).generate(requests)
    for options in ({"max_batch": 3}, {"workspace_bytes": 150_000}, {"workspace_bytes": 1}):
        parts = make_engine(**options).generate(requests)
        assert [r.token_ids for r in parts] == [r.token_ids for r in whole]


def test_nothing_in_nothing_out(shared_engine: InProcessEngine) -> None:
    assert shared_engine.generate([]) == []


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (GenerationRequest((1,), "agent@9"), AdapterNotLoaded, "agent@9"),
        (GenerationRequest((1,) * 500, sampling=Sampling(max_tokens=13)), PromptTooLong, "500.*13.*512"),
        (GenerationRequest(()), ValueError, "empty"),
        (GenerationRequest((5, 10_000)), ValueError, "10000"),
        (GenerationRequest((-1, 5)), ValueError, "-1"),
    ],
)
async def test_bad_requests_are_refused_at_the_entrance(
    shared_engine: InProcessEngine, request_: GenerationRequest, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        shared_engine.generate([GenerationRequest((1,)), request_])
    with pytest.raises(error, match=words):
        await shared_engine.generate_async(request_)
