"""One layer of experts: kt_ops_cpu.experts beside kt-kernel and the machine's limits, in one run.

usage: experts.py [--experts E --hidden H --inter I --top-k K] [--types Q4_K,Q6_K] [--tokens 1,4,32,512]
                  [--threads N] [--rounds N] [--json]

KT_KERNEL_PYTHON names a Python that has kt-kernel 0.7.2; without it only we are measured. Each round
measures the limits, us and each peer one after the other; times are medians over the rounds, and ratios
are taken within a round, so that a machine shared with others disturbs them little. Every call draws its
experts anew, so that weights come from memory. kt-kernel runs once with all threads and once with one,
since it collapses when its threads equal the cores; the better one counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from kt_ops_cpu.experts import CpuExperts
from kt_ops_cpu.limits import measure_limits
from kt_ops_cpu.pool import default_threads, set_threads

from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.testing.packed import random_packed

PEER = Path(__file__).parents[1] / "amd" / "kt_kernel_peer.py"
PEERS = {"kt-kernel LLAMAFILE": "q4_k", "kt-kernel AMXINT8": "int8"}
ROUTES = 32


class Ours:
    """Our kernel in this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        shape = ExpertsShape(args.experts, args.hidden, args.inter, args.top_k)
        context = KernelContext("bench", torch.bfloat16, torch.device("cpu"), {})
        self.kernel = CpuExperts(shape, Activation(), context)
        inner, outer = args.types
        weights = ExpertsWeights(
            random_packed(inner, (args.experts, args.inter, args.hidden), 1).unstack(),
            random_packed(inner, (args.experts, args.inter, args.hidden), 2).unstack(),
            random_packed(outer, (args.experts, args.hidden, args.inter), 3).unstack(),
        )
        parts = (weights.gate, weights.up, weights.down)
        self.expert_bytes = sum(part[0].nbytes for part in parts)
        self.kernel.load(weights)

    def seconds(self, tokens: int, repeats: int) -> list[float]:
        """Seconds of each of ``repeats`` calls."""
        args = self.args
        x = torch.randn(tokens, args.hidden).bfloat16()
        scores = torch.rand(tokens, args.top_k)
        routes = [
            torch.rand(tokens, args.experts).argsort(1)[:, : args.top_k] for _ in range(ROUTES)
        ]
        times = []
        for i in range(repeats + 1):
            start = time.perf_counter()
            self.kernel.forward(x, routes[i % ROUTES], scores)
            times.append(time.perf_counter() - start)
        return times[1:]


class Peer:
    """kt-kernel in a process of its own."""

    def __init__(self, python: str, args: argparse.Namespace, threads: int, kind: str) -> None:
        sizes = (threads, args.experts, args.hidden, args.inter, args.top_k)
        self.process = subprocess.Popen(
            [python, str(PEER), *map(str, sizes), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(
                f"{PEER.name} {kind} did not start; run it by hand: {self.process.args}"
            )

    def seconds(self, tokens: int, repeats: int) -> list[float]:
        """Seconds of each of ``repeats`` calls."""
        self.process.stdin.write(f"{tokens} {repeats}\n")
        return list(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait()


def peers(args: argparse.Namespace) -> dict[str, list[Peer]]:
    """Return what kt-kernel can run; those of one name compete for the better time."""
    python = os.environ.get("KT_KERNEL_PYTHON")
    if not python:
        return {}
    counts = args.peer_threads or sorted({1, args.threads})
    return {name: [Peer(python, args, n, kind) for n in counts] for name, kind in PEERS.items()}


def measure(
    args: argparse.Namespace, tokens: int, ours: Ours, others: dict[str, list[Peer]]
) -> dict[str, Any]:
    """Return the medians of one number of tokens."""
    operations = 2 * tokens * args.top_k * 3 * args.hidden * args.inter
    used = args.experts * (1 - (1 - args.top_k / args.experts) ** tokens)
    repeats = max(2, min(40, 200 // tokens))
    samples: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        limits = measure_limits(runs=3)
        sample: dict[str, Any] = {
            "read_gb_per_s": limits.read_gb_per_s,
            "int8_gops": limits.int8_gops,
            "seconds": statistics.median(ours.seconds(tokens, repeats)),
            "peers": {
                name: min(statistics.median(peer.seconds(tokens, repeats)) for peer in group)
                for name, group in others.items()
            },
        }
        samples.append(sample)

    def median(value: Any) -> float:
        return statistics.median(value(sample) for sample in samples)

    gops, gb = operations / 1e9, used * ours.expert_bytes / 1e9
    return {
        "tokens": tokens,
        "ms": median(lambda s: s["seconds"] * 1e3),
        "gops": median(lambda s: gops / s["seconds"]),
        "gb_per_s": median(lambda s: gb / s["seconds"]),
        "of_int8_peak": median(lambda s: gops / s["seconds"] / max(s["int8_gops"], 1e-9)),
        "of_read": median(lambda s: gb / s["seconds"] / s["read_gb_per_s"]),
        "int8_gops": median(lambda s: s["int8_gops"]),
        "read_gb_per_s": median(lambda s: s["read_gb_per_s"]),
        "peer_ms": {n: median(lambda s, n=n: s["peers"][n] * 1e3) for n in others},
        "times_peer": {n: median(lambda s, n=n: s["peers"][n] / s["seconds"]) for n in others},
    }


def text(result: dict[str, Any]) -> list[str]:
    """Return the table that is printed."""
    experts, hidden, inter, top_k = result["shape"]
    lines = [
        f"E{experts} H{hidden} I{inter} top-{top_k}, {'/'.join(result['types'])}, "
        f"{result['variant']}, {result['threads']} threads",
        f"{'tokens':>7} {'ms':>9} {'GOPS':>7} {'of peak':>8} {'GB/s':>7} {'of read':>8}  peers",
    ]
    for row in result["rows"]:
        against = ", ".join(
            f"{row['times_peer'][name]:.1f}x {name} ({row['peer_ms'][name]:.2f} ms)"
            for name in row["peer_ms"]
        )
        lines.append(
            f"{row['tokens']:>7} {row['ms']:>9.3f} {row['gops']:>7.0f} {row['of_int8_peak']:>8.0%} "
            f"{row['gb_per_s']:>7.1f} {row['of_read']:>8.0%}  {against}"
        )
    last = result["rows"][-1]
    lines.append(
        f"limits: {last['read_gb_per_s']:.1f} GB/s read, {last['int8_gops']:.0f} GOPS int8"
    )
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inter", type=int, default=768)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--types", default="Q4_K,Q6_K", help="gate and up, down")
    parser.add_argument("--tokens", default="1,4,32,512")
    parser.add_argument("--threads", type=int, default=default_threads(os.environ))
    parser.add_argument("--peer-threads", type=int, nargs="*", help="default: 1 and --threads")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    inner, _, outer = args.types.partition(",")
    args.types = (inner, outer or inner)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the only torch work here is making inputs
    set_threads(args.threads)
    ours, others = Ours(args), peers(args)
    set_threads(args.threads)
    rows = [measure(args, int(count), ours, others) for count in args.tokens.split(",")]
    for group in others.values():
        for peer in group:
            peer.close()
    result = {
        "variant": measure_limits(1 << 20, 1).variant,
        "threads": args.threads,
        "shape": [args.experts, args.hidden, args.inter, args.top_k],
        "types": list(args.types),
        "rows": rows,
    }
    print(json.dumps(result) if args.json else "\n".join(text(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
