"""``prefill_and_generate``: the prompt in chunks, then one token at a time."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from kt_core.errors import UsageError
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators.decoder import prompt_chunks
from kt_core.runtime.decode import Decoder, decoder_for
from kt_core.runtime.sampling import Sampler, Sampling
from kt_core.runtime.text import TextStream

logger = logging.getLogger(__name__)


@dataclass
class Timings:
    """Seconds and tokens of the two phases. The first new token is the prefill's result."""

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens per second."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """New tokens per second after the first."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Step:
    """One generated token and the text that became complete with it (may be empty)."""

    token: int
    text: str


@dataclass
class Generation(Sequence[int]):
    """The result; as a sequence it is the list of new token ids, prompt excluded.

    ``finish_reason`` is ``"stop"`` (end token or stop string) or ``"length"``.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    timings: Timings = field(default_factory=Timings)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        return self.tokens[index]


def stream(
    model: nn.Module,
    tokenizer: Any,
    inputs: torch.Tensor,
    *,
    max_new_tokens: int = 10000,
    chunk_size: int = 16384,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[int] | None = None,
    cache: Any = None,
    use_cuda_graph: bool = True,
    result: Generation | None = None,
) -> Iterator[Step]:
    """Generate token by token.

    ``inputs`` are prompt ids ``(1, n)`` or ``(n,)``, int64. ``stop_tokens`` defaults to the model's
    and tokenizer's end tokens. ``result`` is filled as the stream runs. Closing the iterator stops
    the generation after the step in hand; a full context ends it too (``"length"``). A ``cache`` of
    the caller's is appended to, which rules out a captured graph.

    Raises:
        UsageError: KT722 for a prompt that is empty, batched or too long, KT723 for bad limits, KT724
            for a ``cache`` that is none.
    """
    prompt = _checked_prompt(model, inputs, max_new_tokens, chunk_size)
    result = result if result is not None else Generation()
    timings = result.timings
    sampler = Sampler(sampling or Sampling())
    ends = set(end_tokens(model, tokenizer) if stop_tokens is None else stop_tokens)
    text = TextStream(tokenizer, (stop,) if isinstance(stop, str) else stop)
    use_cuda_graph = use_cuda_graph and cache is None
    cache = _checked_cache(cache) if cache is not None else dynamic_cache(model)
    max_new_tokens = min(max_new_tokens, _room(model, prompt, cache))
    if max_new_tokens == 0:
        return
    started = time.perf_counter()
    logits = _prefill(model, prompt, cache, chunk_size)
    seen = prompt
    decoder: Decoder | None = None
    try:
        while True:
            token = sampler(seen, logits)
            now = time.perf_counter()
            if not result.tokens:
                timings.prefill_tokens = prompt.shape[1]
                timings.prefill_seconds = now - started
                started = now
            else:
                timings.decode_tokens += 1
                timings.decode_seconds = now - started
            result.tokens.append(token)
            ended = token in ends
            piece = "" if ended else text.push(token)
            if ended or text.stopped:
                result.finish_reason = "stop"
            last = ended or text.stopped or len(result.tokens) == max_new_tokens
            if last:
                piece += text.finish()
            result.text += piece
            yield Step(token, piece)
            if last:
                return
            step = torch.tensor([[token]], dtype=torch.int64, device=prompt.device)
            seen = torch.cat([seen, step], dim=1)
            if decoder is None:
                decoder = decoder_for(model, cache, max_new_tokens, graph=use_cuda_graph)
                cache = None  # a captured graph has its own copy
            logits = decoder.step(step)
    finally:
        if decoder is not None:
            decoder.close()


def prefill_and_generate(
    model: nn.Module,
    tokenizer: Any,
    inputs: torch.Tensor,
    max_new_tokens: int = 10000,
    use_cuda_graph: bool = True,
    mode: str = "normal",
    force_think: bool = False,
    chunk_size: int = 16384,
    use_flashinfer_mla: bool = False,
    num_heads: int | None = None,
    head_dim_ckv: int | None = None,
    head_dim_kpe: int | None = None,
    q_head_dim: int | None = None,
    static_cache: Any = None,
    draft_model: Any = None,
    draft_cache: Any = None,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    stop: Sequence[str] = (),
    on_token: Callable[[Step], Any] | None = None,
) -> Generation:
    """Run ``inputs`` ``(1, n)`` through the model in chunks, then decode one token at a time.

    The positional signature is KTransformers'. Of it, ``num_heads``, ``head_dim_*`` and
    ``q_head_dim`` are read from the model's configuration and need not be given; ``use_cuda_graph``
    matters where the whole model is on one GPU, see :mod:`kt_core.runtime.graph`. ``on_token`` sees every
    :class:`Step` as it is made. Greedy by default.

    Raises:
        UsageError: KT722/KT723 for inputs that cannot be run, KT724 for an argument kt does not
            support (``mode`` other than normal, draft models, FlashInfer MLA).
    """
    for name, given in (
        ("mode", mode if mode != "normal" else None),
        ("draft_model", draft_model),
        ("draft_cache", draft_cache),
        ("use_flashinfer_mla", use_flashinfer_mla or None),
    ):
        if given is not None:
            raise UsageError.of(
                "KT724", f"{name}={given!r:.60} is not supported", help=f"leave {name} out"
            )
    if force_think:
        thought = tokenizer("<think>\n", add_special_tokens=False, return_tensors="pt").input_ids
        inputs = torch.cat([inputs.reshape(1, -1), thought.to(inputs.device)], dim=1)
    result = Generation()
    steps = stream(
        model,
        tokenizer,
        inputs,
        max_new_tokens=max_new_tokens,
        chunk_size=chunk_size,
        sampling=Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed),
        stop=stop,
        cache=static_cache,
        use_cuda_graph=use_cuda_graph,
        result=result,
    )
    for step in steps:
        if on_token is not None:
            on_token(step)
    logger.info(
        "prefill %d tokens at %.1f/s, decode %d tokens at %.1f/s",
        result.timings.prefill_tokens,
        result.timings.prefill_tokens_per_s,
        result.timings.decode_tokens,
        result.timings.decode_tokens_per_s,
    )
    return result


def end_tokens(model: nn.Module, tokenizer: Any) -> list[int]:
    """All ids that end an answer: the tokenizer's and the configurations', lists included."""
    found: list[Any] = []
    for owner in (
        tokenizer,
        getattr(model, "generation_config", None),
        getattr(model, "config", None),
    ):
        value = getattr(owner, "eos_token_id", None)
        found.extend(value if isinstance(value, list | tuple) else [value])
        found.extend(getattr(owner, "kt_end_token_ids", ()))
    return sorted({int(token) for token in found if token is not None})


def _prefill(model: nn.Module, prompt: torch.Tensor, cache: Any, chunk_size: int) -> torch.Tensor:
    with prompt_chunks(model, prompt.shape[1], chunk_size) as size:
        for start in range(0, prompt.shape[1], size):
            logits = forward_logits(model, prompt[:, start : start + size], cache)
    last: torch.Tensor = logits[0, -1]
    return last


_ID_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _checked_cache(cache: Any) -> Any:
    if not hasattr(cache, "get_seq_length"):
        raise UsageError.of(
            "KT724",
            f"a cache of type {type(cache).__name__} is not supported",
            help="give one of transformers' caches, or leave it out",
        )
    return cache


def _room(model: nn.Module, prompt: torch.Tensor, cache: Any) -> int:
    """New tokens until the model's context is full; the last one is never read again.

    Raises:
        UsageError: KT722 if the prompt does not fit behind what ``cache`` holds.
    """
    config: Any = model.config
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None:
        return sys.maxsize
    held = int(cache.get_seq_length())
    if held + prompt.shape[1] > limit:
        behind = f" behind {held} cached ones" if held else ""
        raise UsageError.of(
            "KT722",
            f"the prompt has {prompt.shape[1]} tokens{behind}, the model's context holds {limit}",
            help="shorten the prompt",
        )
    return int(limit) - held - prompt.shape[1] + 1


def _checked_prompt(
    model: nn.Module, inputs: torch.Tensor, max_new_tokens: int, chunk_size: int
) -> torch.Tensor:
    whole = all(isinstance(count, int) for count in (max_new_tokens, chunk_size))
    if not whole or max_new_tokens < 0 or chunk_size < 1:
        raise UsageError.of(
            "KT723",
            f"max_new_tokens={max_new_tokens} and chunk_size={chunk_size} must be positive"
            + ("" if whole else " whole numbers"),
        )
    if not isinstance(inputs, torch.Tensor):
        raise UsageError.of(
            "KT722",
            f"the prompt must be a tensor of token ids, not {type(inputs).__name__}",
            help="torch.tensor([tokenizer.encode(text)])",
        )
    prompt = inputs.reshape(1, -1) if inputs.dim() == 1 else inputs
    if prompt.dim() != 2 or prompt.shape[0] != 1 or prompt.shape[1] == 0:
        raise UsageError.of(
            "KT722",
            f"the prompt must hold one sequence of at least one token, got {list(inputs.shape)}",
            help="call once per prompt",
        )
    if prompt.dtype not in _ID_DTYPES or prompt.is_meta or int(prompt.min()) < 0:
        raise UsageError.of("KT722", "the prompt must hold token ids, whole numbers from 0")
    config: Any = model.config
    if int(prompt.max()) >= config.vocab_size:
        raise UsageError.of(
            "KT722",
            f"token id {int(prompt.max())} is outside the vocabulary of {config.vocab_size}",
            help="use the model's own tokenizer",
        )
    return prompt.long()
