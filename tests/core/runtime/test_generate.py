"""Chunked prefill, decoding, sampling, stopping and the limits of inputs."""

from __future__ import annotations

import pytest
import torch

from kt_core import load, prefill_and_generate
from kt_core.errors import KernelError, UsageError
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.runtime.generate import Generation, end_tokens, stream
from kt_core.runtime.sampling import Sampler, Sampling
from kt_core.runtime.text import TextStream
from kt_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    original = write_tiny_llama(file)
    return load(file, rules=None, dtype="float32", device="cpu"), original


PROMPT = torch.arange(3, 30)[None]


def no_ends(loaded, ids, count, **options):
    result = Generation()
    list(
        stream(
            loaded.model,
            loaded.tokenizer,
            ids,
            max_new_tokens=count,
            stop_tokens=(),
            result=result,
            **options,
        )
    )
    return result


def test_greedy_tokens_equal_transformers(tiny):
    loaded, original = tiny
    with torch.inference_mode():
        expected = original.generate(PROMPT, max_new_tokens=16, do_sample=False, eos_token_id=10**6)
    assert no_ends(loaded, PROMPT, 16).tokens == expected[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("chunk", [1, 2, 7, 26, 27, 28, 1000])
def test_chunks_do_not_change_the_answer(tiny, chunk):
    loaded, _ = tiny
    whole = no_ends(loaded, PROMPT, 8)
    assert no_ends(loaded, PROMPT, 8, chunk_size=chunk).tokens == whole.tokens


def test_the_signature_of_the_seed_works_positionally(tiny):
    loaded, _ = tiny
    result = prefill_and_generate(loaded.model, loaded.tokenizer, PROMPT, 5, False, "normal")
    assert len(result) <= 5
    assert list(result) == result.tokens
    assert result.timings.prefill_tokens == PROMPT.shape[1]
    assert result.timings.decode_tokens == len(result) - 1
    assert result.timings.prefill_tokens_per_s > 0


def test_callback_and_iterator_see_every_token(tiny):
    loaded, _ = tiny
    seen = []
    result = loaded.generate("hello", 6, on_token=seen.append)
    assert [step.token for step in seen] == result.tokens
    assert "".join(step.text for step in seen) == result.text
    steps = loaded.stream("hello", 6)
    assert [step.token for step in steps] == result.tokens


def test_an_abandoned_stream_stops(tiny):
    loaded, _ = tiny
    steps = loaded.stream("hello", 1000, stop_tokens=())
    next(steps)
    steps.close()
    assert list(steps) == []


@pytest.mark.parametrize(
    ("inputs", "options", "code"),
    [
        (torch.zeros(1, 0, dtype=torch.long), {}, "KT722"),
        (torch.zeros(2, 3, dtype=torch.long), {}, "KT722"),
        (torch.zeros(1, 3), {}, "KT722"),
        (torch.tensor([[-1]]), {}, "KT722"),
        (torch.tensor([[259]]), {}, "KT722"),
        (torch.ones(1, 257, dtype=torch.long), {}, "KT722"),
        (PROMPT, {"max_new_tokens": -1}, "KT723"),
        (PROMPT, {"chunk_size": 0}, "KT723"),
        (PROMPT, {"max_new_tokens": 2.5}, "KT723"),
        (PROMPT, {"max_new_tokens": float("inf")}, "KT723"),
        (PROMPT, {"max_new_tokens": None}, "KT723"),
        (PROMPT, {"chunk_size": 2.5}, "KT723"),
        ([[1, 2]], {}, "KT722"),
        ("hello", {}, "KT722"),
        (PROMPT > 1, {}, "KT722"),
        (PROMPT + 0j, {}, "KT722"),
        (PROMPT.to("meta"), {}, "KT722"),
        (PROMPT, {"static_cache": []}, "KT724"),
        (PROMPT, {"static_cache": object()}, "KT724"),
        (PROMPT, {"mode": "long_context"}, "KT724"),
        (PROMPT, {"draft_model": object()}, "KT724"),
        (PROMPT, {"use_flashinfer_mla": True}, "KT724"),
        (PROMPT, {"temperature": -1.0}, "KT721"),
        (PROMPT, {"temperature": float("nan")}, "KT721"),
        (PROMPT, {"top_p": 2.0}, "KT721"),
        (PROMPT, {"top_k": 0}, "KT721"),
        (PROMPT, {"seed": 1 << 63}, "KT721"),
    ],
)
def test_bad_calls_are_refused_by_code(tiny, inputs, options, code):
    loaded, _ = tiny
    with pytest.raises(UsageError) as caught:
        prefill_and_generate(loaded.model, loaded.tokenizer, inputs, **options)
    assert caught.value.code == code


def test_a_single_stop_string_is_not_taken_apart(tiny):
    loaded, _ = tiny
    text = no_ends(loaded, PROMPT, 12).text
    with_stop = no_ends(loaded, PROMPT, 12, stop=text[0] + "never")
    assert with_stop.text == text


def test_zero_new_tokens_is_an_empty_answer(tiny):
    loaded, _ = tiny
    assert loaded.generate("hello", 0).tokens == []


def test_a_seed_repeats_and_another_differs(tiny):
    loaded, _ = tiny
    first, again, other = (
        no_ends(loaded, PROMPT, 12, sampling=Sampling(temperature=1.5, seed=seed)).tokens
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_temperature_one_draws_from_the_distribution():
    logits = torch.log(torch.tensor([0.5, 0.25, 0.25]))
    sampler = Sampler(Sampling(temperature=1.0, seed=3))
    drawn = [sampler(torch.zeros(1, 1, dtype=torch.long), logits) for _ in range(4000)]
    shares = torch.bincount(torch.tensor(drawn), minlength=3) / 4000
    # Five standard deviations of a share of one half in 4,000 draws.
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.25, 0.25]), rtol=0, atol=0.04)


def test_top_k_one_is_greedy():
    sampler = Sampler(Sampling(temperature=5.0, top_k=1, seed=0))
    logits = torch.tensor([0.1, 0.3, 0.2])
    assert {sampler(torch.zeros(1, 1, dtype=torch.long), logits) for _ in range(50)} == {1}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error(bad):
    logits = torch.tensor([0.0, bad, 1.0])
    with pytest.raises(KernelError, match="KT504"):
        Sampler(Sampling())(torch.zeros(1, 1, dtype=torch.long), logits)


def test_end_tokens_take_lists_and_the_tokenizer(tiny):
    loaded, _ = tiny
    loaded.model.config.eos_token_id = [7, 8]
    try:
        assert {0, 2, 7, 8} <= set(end_tokens(loaded.model, loaded.tokenizer))
    finally:
        loaded.model.config.eos_token_id = 2


class Spelled:
    """A tokenizer whose token n is the n-th byte of a text."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()

    def decode(self, ids, **_):
        return bytes(self.data[i] for i in ids).decode(errors="replace")


@pytest.mark.parametrize(
    "text", ["plain words here", "naïve café 😀 end", "日本語のテキスト", "a" * 300, "x " * 100]
)
def test_streamed_pieces_add_up_to_the_text(text):
    tokenizer = Spelled(text)
    out = TextStream(tokenizer)
    pieces = [out.push(i) for i in range(len(tokenizer.data))]
    assert "".join(pieces) + out.finish() == text
    assert not any("�" in piece for piece in pieces)


def test_a_stop_string_never_shows_even_when_split():
    out = TextStream(Spelled("say STOP now"), ["STOP"])
    shown = "".join(out.push(i) for i in range(12))
    assert out.stopped
    assert shown == "say "


def test_text_that_only_begins_like_a_stop_string_is_shown():
    out = TextStream(Spelled("STO it"), ["STOP"])
    assert "".join(out.push(i) for i in range(6)) + out.finish() == "STO it"


def test_the_context_ends_an_answer(tiny):
    loaded, _ = tiny
    limit = loaded.model.config.max_position_embeddings
    prompt = torch.arange(3, 13).repeat(limit)[None, : limit - 5]
    result = no_ends(loaded, prompt, 100)
    assert len(result.tokens) == 6  # the last is never read again
    assert result.finish_reason == "length"
    with pytest.raises(UsageError, match="KT722"):
        no_ends(loaded, prompt, 1, cache=filled(loaded, 6))


def filled(loaded, tokens):
    cache = dynamic_cache(loaded.model)
    forward_logits(loaded.model, torch.arange(3, 3 + tokens)[None], cache)
    return cache
