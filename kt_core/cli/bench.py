"""``kt bench``: tokens per second of a model, or one kernel on one layer."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from kt_core.cli.model_options import add_model_options, model_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument("-p", "--prompt-tokens", type=int, default=512, metavar="N")
    parser.add_argument("-n", "--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("-r", "--runs", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument(
        "-t", "--threads", type=int, metavar="N", help="default: all this process may use"
    )
    layer = parser.add_argument_group("one layer instead of a model")
    layer.add_argument("--layer", choices=("experts", "linear"))
    layer.add_argument("--kernel", metavar="NAME", help="a registered kernel: kt plugins")
    layer.add_argument("--experts", type=int, default=64, metavar="E")
    layer.add_argument("--hidden", type=int, default=2048, metavar="H")
    layer.add_argument("--inter", type=int, default=768, metavar="I")
    layer.add_argument("--top-k", type=int, default=8, metavar="K")
    layer.add_argument("--types", default="Q4_K,Q6_K", metavar="T,T", help="gate and up, down")
    layer.add_argument("--tokens", default="1,4,32,512", metavar="LIST")
    layer.add_argument("--seconds", type=float, default=1.0, metavar="S", help="per row")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of the layer's rows (PNG)")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from kt_core.errors import UsageError

    if args.threads is not None:
        if not 1 <= args.threads <= 1024:
            raise UsageError.of("KT729", f"-t {args.threads}: threads must lie in 1 to 1024")
        # Kernels read it when their library starts its threads, which has not happened yet.
        os.environ["KT_CPU_THREADS"] = str(args.threads)
    from kt_core.runtime.openmp import let_openmp_sleep

    let_openmp_sleep()
    import torch

    threads = args.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    result = _layer(args, threads) if args.layer else _model(args, threads)
    if args.format == "json":
        print(json.dumps(result, indent=2))
    else:
        for line in _text(result):
            print(line)
    if args.plot:
        _plot(result, args.plot)
    return 0


def _model(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    from kt_core.errors import UsageError
    from kt_core.plan.render import summary
    from kt_core.runtime.bench import decode_floor, measure_model
    from kt_core.runtime.load import load

    if args.gguf is None and args.model is None:
        raise UsageError.of("KT725", "no model was given", help="kt bench --gguf FILE")
    loaded = load(args.gguf or args.model, **model_arguments(args))
    speed = measure_model(loaded, args.prompt_tokens, args.new_tokens, args.runs)
    return {
        **speed.to_json(),
        "threads": threads,
        **decode_floor(loaded, threads),
        "plan": summary(loaded.plan).splitlines(),
    }


def _layer(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    from dataclasses import asdict

    from kt_core.errors import UsageError
    from kt_core.registry.registry import default_registry
    from kt_core.runtime.bench import (
        LayerBench,
        layer_floors,
        measure_experts,
        measure_linear,
    )

    if args.kernel is None:
        raise UsageError.of("KT728", "no kernel was named", help="list them: kt plugins")
    try:
        tokens = [int(count) for count in args.tokens.split(",")]
    except ValueError:
        raise UsageError.of("KT729", f"--tokens {args.tokens}: a list like 1,4,32") from None
    _check_sizes(args, tokens)
    inner, _, outer = args.types.partition(",")
    bench = LayerBench(
        args.kernel,
        args.experts,
        args.hidden,
        args.inter,
        args.top_k,
        (inner, outer or inner),
        device="cpu" if args.device == "auto" else args.device,
    )
    measure = measure_experts if args.layer == "experts" else measure_linear
    registry = default_registry()
    before = layer_floors(bench, registry, args.layer, threads)
    rows = measure(bench, tokens, registry, seconds=args.seconds)
    after = layer_floors(bench, registry, args.layer, threads)
    return {
        "layer": args.layer,
        "kernel": args.kernel,
        "threads": threads,
        "types": list(bench.types),
        "floors": {name: max(value, after[name]) for name, value in before.items()},
        "results": [asdict(row) for row in rows],
    }


_LARGEST = 1 << 20


def _check_sizes(args: argparse.Namespace, tokens: list[int]) -> None:
    from kt_core.errors import UsageError

    sizes = [("--tokens", count) for count in tokens]
    sizes += [("--hidden", args.hidden), ("--inter", args.inter)]
    if args.layer == "experts":
        sizes += [("--experts", args.experts), ("--top-k", args.top_k)]
    for name, size in sizes:
        most = args.experts if name == "--top-k" else _LARGEST
        if not 1 <= size <= most:
            raise UsageError.of("KT729", f"{name} {size}: must lie in 1 to {most}")


def _text(result: dict[str, Any]) -> list[str]:
    if "results" in result:
        return _layer_text(result)
    return [
        *result["plan"],
        "",
        f"prefill {result['prompt']} tokens: {result['prefill_tokens_per_s']:.1f} tokens/s",
        f"decode  {result['new']} tokens: {result['decode_tokens_per_s']:.1f} tokens/s",
        _glue(result),
        f"at most {result['floor_tokens_per_s']:.1f} tokens/s: a token reads {_reads(result)}",
        f"medians of {result['runs']} runs on {result['threads']} threads",
    ]


def _glue(result: dict[str, Any]) -> str:
    if result["cuda_graph"]:
        return "decoding replays a captured CUDA graph"
    return f"outside the kernels: {result['glue_share']:.0%} of a decode step"


def _reads(result: dict[str, Any]) -> str:
    return " and ".join(
        f"{count / 1e6:.0f} MB on {device}, at {result['read_gb_per_s'][device]:.1f} GB/s"
        for device, count in result["bytes_per_token"].items()
    )


def _layer_text(result: dict[str, Any]) -> list[str]:
    floors = result["floors"]
    read, limits = floors["read_gb_per_s"], f"reads at most {floors['read_gb_per_s']:.1f} GB/s"
    number = "int8" if "int8_gops" in floors else "bf16"
    peak = floors.get(f"{number}_gops")
    if peak:
        limits += f", multiplies at most {peak:.0f} GOP/s in {number}"
    lines = [f"{result['kernel']}, {result['threads']} threads; the machine {limits}"]
    lines.append(f"{'tokens':>7} {'ms':>10} {'GOP/s':>9} {'of peak':>8} {'GB/s':>7} {'of read':>8}")
    for row in result["results"]:
        of_peak = f"{row['gops'] / peak:.0%}" if peak else "-"
        lines.append(
            f"{row['tokens']:>7} {row['ms']:>10.3f} {row['gops']:>9.1f} {of_peak:>8} "
            f"{row['gb_per_s']:>7.1f} {row['gb_per_s'] / read:>8.0%}"
        )
    return lines


def _plot(result: dict[str, Any], path: str) -> None:
    from kt_core.errors import UsageError

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError.of(
            "KT730", "--plot needs matplotlib", help='pip install "kt-core[plot]"'
        ) from None
    if "results" not in result:
        raise UsageError.of("KT730", "--plot draws the rows of --layer")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    tokens = [row["tokens"] for row in result["results"]]
    axes.loglog(tokens, [row["gops"] for row in result["results"]], marker="o", label="measured")
    if peak := result["floors"].get("int8_gops"):
        axes.axhline(peak, color="grey", linestyle="--", label="int8 peak")
    read = result["floors"]["read_gb_per_s"]
    bound = [row["gops"] * read / row["gb_per_s"] for row in result["results"]]
    axes.loglog(tokens, bound, color="grey", linestyle=":", label="memory read at its speed")
    axes.legend()
    axes.set_xlabel("tokens in the call")
    axes.set_ylabel("GOP/s")
    axes.set_title(f"{result['kernel']}, {result['threads']} threads")
    axes.grid(True, which="both", alpha=0.3)
    figure.savefig(path)
