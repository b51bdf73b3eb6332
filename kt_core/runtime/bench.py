"""Measure a loaded model, or one layer of random weights, and say what the machine could do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from kt_core.errors import UsageError
from kt_core.models.family import num_experts
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators.kernel import (
    Activation,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
    LinearShape,
)
from kt_core.plan import Plan
from kt_core.plan.devices import kind_of
from kt_core.registry.registry import Registry
from kt_core.registry.specs import EXPERTS, LINEAR, Accepted
from kt_core.runtime.decode import decoder_for
from kt_core.runtime.graph import GraphDecoder
from kt_core.runtime.load import LoadedModel


@dataclass(frozen=True)
class ModelSpeed:
    """Medians over ``runs`` of prefill (``prompt`` tokens) and decode (``new`` tokens)."""

    prompt: int
    new: int
    runs: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    prefill_seconds: tuple[float, ...]
    decode_seconds: tuple[float, ...]
    glue_share: float
    """Share of an uncaptured decode step that is spent outside the operators' kernels."""
    cuda_graph: bool
    """Whether decoding ran as a captured CUDA graph, which leaves no glue."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measure_model(loaded: LoadedModel, prompt: int, new: int, runs: int) -> ModelSpeed:
    """Time ``loaded`` on random tokens; decode starts from a context of one token, as llama-bench's.

    Raises:
        UsageError: KT723 for counts below one or a prompt beyond the model's context.
    """
    config: Any = loaded.model.config
    limit = int(getattr(config, "max_position_embeddings", 1 << 30))
    if min(prompt, new, runs) < 1 or max(prompt, new + 1) > limit:
        raise UsageError.of(
            "KT723",
            f"-p {prompt} -n {new} with {runs} runs cannot be measured",
            facts=[f"counts start at 1, and the model's context holds {limit} tokens"],
        )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, int(config.vocab_size), (1, max(prompt, new + 1)), generator=generator)
    model = loaded.model

    def prefill() -> None:
        forward_logits(model, ids[:, :prompt], dynamic_cache(model))

    def decode(graph: bool = True) -> tuple[float, bool]:
        cache = dynamic_cache(model)
        forward_logits(model, ids[:, :1], cache)
        with closing(decoder_for(model, cache, new, graph=graph)) as decoder:
            _synchronize()
            started = time.perf_counter()
            for at in range(1, new + 1):
                # Read back, as a sampler would: steps must not queue up on a GPU.
                decoder.step(ids[:, at : at + 1]).argmax().item()
            return time.perf_counter() - started, isinstance(decoder, GraphDecoder)

    prefill()
    prefill_seconds = tuple(_seconds(prefill) for _ in range(runs))
    _, captured = decode()
    decode_seconds = tuple(decode()[0] for _ in range(runs))
    return ModelSpeed(
        prompt,
        new,
        runs,
        prompt / statistics.median(prefill_seconds),
        new / statistics.median(decode_seconds),
        prefill_seconds,
        decode_seconds,
        _glue_share(loaded, lambda: decode(graph=False)[0], new),
        captured,
    )


def _seconds(run: Callable[[], object]) -> float:
    _synchronize()
    started = time.perf_counter()
    run()
    _synchronize()
    return time.perf_counter() - started


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _glue_share(loaded: LoadedModel, decode: Callable[[], float], new: int) -> float:
    """Run ``decode``, which returns the seconds of ``new`` tokens, with every kernel call timed."""
    from kt_core.operators.operator import PhasedOperator

    inside = 0.0
    wrapped: list[Any] = []

    def timed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal inside
            started = time.perf_counter()
            result = forward(*args)
            inside += time.perf_counter() - started
            return result

        return call

    for module in loaded.model.modules():
        if isinstance(module, PhasedOperator):
            for kernel in module.unique_kernels():
                kernel.forward = timed(kernel.forward)
                wrapped.append(kernel)
    total = decode()
    for kernel in wrapped:
        del kernel.forward
    # The token before the first one that counts ran the kernels too.
    return max(0.0, 1 - inside * new / (new + 1) / total)


@dataclass(frozen=True)
class LayerSpeed:
    """One row of a layer's measurement. ``gops`` counts multiplications and additions."""

    tokens: int
    ms: float
    gops: float
    gb_per_s: float


@dataclass(frozen=True)
class LayerBench:
    """What to measure: a registered kernel on a layer of random weights."""

    kernel: str
    experts: int
    hidden: int
    inter: int
    top_k: int
    types: tuple[str, str]
    """Stored type of gate and up, and of down."""
    dtype: torch.dtype = torch.bfloat16
    device: str = "cpu"


def measure_experts(
    bench: LayerBench, tokens: Sequence[int], registry: Registry, *, seconds: float = 1.0
) -> list[LayerSpeed]:
    """Time a layer of experts; each call draws other experts, so that weights come from memory.

    Raises:
        UsageError: KT728 for a kernel that is not registered or cannot run.
    """
    from kt_core.testing.packed import random_packed

    target = _target(registry, bench.kernel, EXPERTS, bench.device)
    shape = ExpertsShape(bench.experts, bench.hidden, bench.inter, bench.top_k)
    inner, outer = bench.types
    weights = ExpertsWeights(
        random_packed(inner, (bench.experts, bench.inter, bench.hidden), 1).unstack(),
        random_packed(inner, (bench.experts, bench.inter, bench.hidden), 2).unstack(),
        random_packed(outer, (bench.experts, bench.hidden, bench.inter), 3).unstack(),
    )
    each = sum(part[0].nbytes for part in (weights.gate, weights.up, weights.down))
    context = KernelContext("bench", bench.dtype, torch.device(bench.device), {})
    kernel = target(shape, Activation(), context)
    kernel.load(weights)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for count in tokens:
        x = torch.randn(count, bench.hidden, generator=generator).to(bench.device, bench.dtype)
        calls: list[Callable[[], object]] = []
        used = []
        for _ in range(32):
            scores = torch.rand(count, bench.experts, generator=generator)
            values, index = scores.topk(bench.top_k, dim=-1)
            used.append(len(torch.unique(index)))
            index, values = index.to(bench.device), values.to(bench.device, bench.dtype)
            calls.append(partial(kernel.forward, x, index, values))
        median = _median_call(calls, seconds, bench.device, graph=kernel.graph_safe)
        operations = 2 * count * bench.top_k * 3 * bench.hidden * bench.inter
        read = statistics.mean(used) * each
        rows.append(LayerSpeed(count, median * 1e3, operations / median / 1e9, read / median / 1e9))
    return rows


def _median_call(
    calls: Sequence[Callable[[], object]], seconds: float, device: str, *, graph: bool
) -> float:
    """Median seconds of a call, taken in turn for ``seconds``.

    On a GPU they are captured, where the kernel allows it, and timed together: starting one from Python
    takes longer than many of them run.
    """
    together = graph and kind_of(device) == "cuda"
    for call in calls if together else calls[:2]:
        call()
    if together:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for call in calls:
                call()
        _synchronize()
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or len(times) < 5:
        started = time.perf_counter()
        if together:
            captured.replay()
        else:
            calls[len(times) % len(calls)]()
        _synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times) / (len(calls) if together else 1)


def measure_linear(
    bench: LayerBench, tokens: Sequence[int], registry: Registry, *, seconds: float = 1.0
) -> list[LayerSpeed]:
    """Time a linear layer ``hidden`` -> ``inter``; copies of the weight rotate through memory.

    Raises:
        UsageError: KT728 for a kernel that is not registered or cannot run.
    """
    from kt_core.testing.packed import random_packed

    target = _target(registry, bench.kernel, LINEAR, bench.device)
    shape = LinearShape(bench.hidden, bench.inter)
    context = KernelContext("bench", bench.dtype, torch.device(bench.device), {})
    weight = random_packed(bench.types[0], (bench.inter, bench.hidden), 1)
    copies = max(2, min(64, (256 << 20) // max(1, weight.nbytes)))
    kernels = []
    for seed in range(copies):
        kernel = target(shape, context)
        kernel.load(random_packed(bench.types[0], (bench.inter, bench.hidden), seed), None)
        kernels.append(kernel)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for count in tokens:
        x = torch.randn(count, bench.hidden, generator=generator).to(bench.device, bench.dtype)
        calls = [partial(kernel.forward, x) for kernel in kernels]
        median = _median_call(calls, seconds, bench.device, graph=target.graph_safe)
        operations = 2 * count * bench.hidden * bench.inter
        rows.append(
            LayerSpeed(count, median * 1e3, operations / median / 1e9, weight.nbytes / median / 1e9)
        )
    return rows


def _target(registry: Registry, name: str, kind: str, device: str) -> Any:
    found = registry.kernel(name, kind)
    if found is None:
        problem = registry.unknown(name, "kernel", kind=kind)
        raise UsageError.of("KT728", problem.message, facts=problem.facts, help=problem.help)
    result = registry.probe(found.spec, device)
    if not isinstance(result, Accepted):
        raise UsageError.of(
            "KT728",
            f"{found.spec.name} cannot run here",
            facts=[f"rejected: {reason}" for reason in result.reasons],
            help=result.help or None,
        )
    return registry.load_target(found.spec)


def layer_floors(
    bench: LayerBench, registry: Registry, kind: str, threads: int
) -> dict[str, float]:
    """What bounds a layer here: the kernel's own measurement, else torch's read bandwidth.

    Raises:
        UsageError: KT728 for a kernel that is not registered or cannot run.
    """
    found = dict(_target(registry, bench.kernel, kind, bench.device).limits())
    if "read_gb_per_s" not in found:
        size = (1 << 29) if kind_of(bench.device) == "cpu" else (1 << 32)
        found["read_gb_per_s"] = read_bandwidth(threads, bench.device, size)
    if kind_of(bench.device) == "cuda":
        found["bf16_gops"] = _bf16_gops(bench.device)
    return found


def _bf16_gops(device: str, size: int = 8192, runs: int = 5) -> float:
    """10^9 operations per second of the library's bfloat16 product of two square matrices."""
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    torch.mm(a, a)
    best = 0.0
    for _ in range(runs):
        _synchronize()
        started = time.perf_counter()
        torch.mm(a, a)
        _synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - started) / 1e9)
    return best


def read_bandwidth(threads: int, device: str = "cpu", size: int = 1 << 29, runs: int = 5) -> float:
    """GB/s at which torch sums a buffer of ``size`` bytes: what decoding cannot be faster than."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        buffer = torch.ones(size // 8, dtype=torch.int64, device=device)
        best = 0.0
        for _ in range(runs):
            _synchronize()
            started = time.perf_counter()
            buffer.sum()
            _synchronize()
            best = max(best, size / (time.perf_counter() - started) / 1e9)
        return best
    finally:
        torch.set_num_threads(before)


def decode_floor(loaded: LoadedModel, threads: int) -> dict[str, Any]:
    """Seconds a token cannot be faster than: every weight it needs read once, at the measured speed.

    Returns ``bytes_per_token`` and ``read_gb_per_s`` by device, and ``floor_tokens_per_s``. Of routed
    experts, those that a token chooses are counted; the cache and activations are not.
    """
    needed = bytes_per_token(loaded.plan, loaded.model.config)
    speeds = {
        device: read_bandwidth(
            threads, device, (1 << 29) if kind_of(device) == "cpu" else (1 << 32)
        )
        for device in needed
    }
    seconds = sum(needed[device] / (speeds[device] * 1e9) for device in needed)
    return {
        "bytes_per_token": needed,
        "read_gb_per_s": speeds,
        "floor_tokens_per_s": 1 / seconds if seconds else 0.0,
    }


def bytes_per_token(plan: Plan, config: Any) -> dict[str, int]:
    """Bytes of weights that one decoded token reads, by device."""
    total: dict[str, int] = {}
    routed = num_experts(config)
    chosen = int(getattr(config, "num_experts_per_tok", None) or routed or 1)
    for module in plan.modules:
        if module.class_name.endswith("Embedding") and module.decode is None:
            continue  # one row
        device = module.decode.device if module.decode is not None else module.device
        count = module.resident.get(device, 0)
        if module.tied_to is not None and not count:
            count = module.stored
        if module.experts is not None and routed:
            count = count * chosen // routed
        if count:
            total[device] = total.get(device, 0) + count
    return total
