"""One layer of experts: kt_ops_amd_blis.moe_int8 beside its peers and the machine's limits, in one run.

usage: layer.py [--experts E --hidden H --inter I --top-k K] [--tokens 1,4,32,512] [--rounds N] [--json]

Peers, each where its Python is named: KT_KERNEL_PYTHON (kt-kernel 0.7.2), ZENTORCH_PYTHON (zentorch).
kt_ops_cpu.experts is measured too where it is installed: 4-bit weights against int8 in decoding.
Every round measures the limits, us and each peer one after the other; what is printed are medians over
the rounds, and ratios are taken within a round, so that a machine shared with others disturbs them little.
kt-kernel runs once with all threads and once with one, since it collapses when its threads equal the
cores; the better one counts.
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

import torch
from floor import Floor
from kt_ops_amd_blis.experts import MoeInt8
from kt_ops_amd_blis.library import library

from kt_core.operators.kernel import (
    Activation,
    ExpertsKernel,
    ExpertsShape,
    ExpertsWeights,
    KernelContext,
)
from kt_core.registry.registry import default_registry
from kt_core.testing.packed import random_packed
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis import native

HERE = Path(__file__).parent
PAUSE = 0.3  # seconds until a peer's threads have stopped spinning (OpenMP runtimes: up to 0.2)


class Ours:
    """One of our own kernels in this process."""

    def __init__(self, args: argparse.Namespace, kernel: type[ExpertsKernel], **options) -> None:
        self.args = args
        shape = ExpertsShape(args.experts, args.hidden, args.inter, args.top_k)
        context = KernelContext("bench", torch.bfloat16, torch.device("cpu"), options)
        self.kernel = kernel(shape, Activation(), context)

    def load(self, *types: QuantType) -> Ours:
        """Make gate, up and down of these stored types."""
        args = self.args
        sizes = ((args.inter, args.hidden), (args.inter, args.hidden), (args.hidden, args.inter))
        stacks = []
        for stored, size in zip(types, sizes, strict=True):
            one = random_packed(stored, (args.experts * size[0], size[1]), seed=len(stacks))
            data = one.data.reshape(args.experts, size[0], -1)
            stacks.append(PackedTensor("w", (args.experts, *size), stored, data).unstack())
        self.kernel.load(ExpertsWeights(*stacks))
        return self

    def seconds(self, tokens: int, repeats: int) -> list[float]:
        args = self.args
        x = torch.randn(tokens, args.hidden).bfloat16()
        scales = torch.rand(tokens, args.top_k)
        routes = [
            torch.stack([torch.randperm(args.experts)[: args.top_k] for _ in range(tokens)])
            for _ in range(8)
        ]
        times = []
        for i in range(repeats + 1):
            start = time.perf_counter()
            self.kernel.forward(x, routes[i % 8], scales)
            times.append(time.perf_counter() - start)
        return times[1:]

    def close(self) -> None:
        """Nothing to stop; a peer has a process."""


class Peer:
    """Another implementation in a process of its own."""

    def __init__(
        self, python: str, script: str, args: argparse.Namespace, threads: int, kind: str
    ) -> None:
        command = [python, str(HERE / script), str(threads)]
        command += [str(n) for n in (args.experts, args.hidden, args.inter, args.top_k)]
        self.process = subprocess.Popen(
            [*command, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        answer = self.process.stdout.readline().strip()
        if answer != "ready":
            raise RuntimeError(f"{script} {kind} did not start; run it by hand: {command}")

    def seconds(self, tokens: int, repeats: int) -> list[float]:
        self.process.stdin.write(f"{tokens} {repeats}\n")
        return list(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def peers(args: argparse.Namespace, threads: int) -> dict[str, list[Ours | Peer]]:
    """Return the peers that can run, by name; those of one name compete for the better time."""
    found: dict[str, list[Ours | Peer]] = {}
    packed = default_registry().kernel("kt_ops_cpu.experts")
    if packed is not None:
        kernel = Ours(args, default_registry().load_target(packed.spec))
        loaded = kernel.load(QuantType.Q4_K, QuantType.Q4_K, QuantType.Q6_K)
        found["kt_ops_cpu.experts Q4_K/Q6_K"] = [loaded]
    python = os.environ.get("KT_KERNEL_PYTHON")
    if python:
        counts = sorted({1, threads})
        for name, kind in (("kt-kernel int8", "int8"), ("kt-kernel Q4_K/Q6_K", "q4_k")):
            found[name] = [Peer(python, "kt_kernel_peer.py", args, n, kind) for n in counts]
    python = os.environ.get("ZENTORCH_PYTHON")
    if python:
        found["zentorch int8"] = [Peer(python, "zentorch_peer.py", args, threads, "int8")]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inter", type=int, default=768)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", default="1,4,32,512")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--group-size", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    threads = native.threads()
    torch.set_num_threads(1)  # the only torch work here is making inputs
    floor, others = Floor(threads), peers(args, threads)
    ours = Ours(args, MoeInt8, group_size=args.group_size).load(*[QuantType.BF16] * 3)
    rows = [measure(args, int(n), floor, ours, others) for n in args.tokens.split(",")]
    for group in others.values():
        for peer in group:
            peer.close()
    result = {
        "library": library().version,
        "threads": threads,
        "shape": [args.experts, args.hidden, args.inter, args.top_k],
        "group_size": args.group_size,
        "rows": rows,
    }
    print(json.dumps(result) if args.json else "\n".join(text(result)))
    return 0


def measure(
    args: argparse.Namespace,
    tokens: int,
    floor: Floor,
    ours: Ours,
    others: dict[str, list[Ours | Peer]],
) -> dict[str, object]:
    """Return the medians of one number of tokens."""
    operations = 2 * tokens * args.top_k * 3 * args.hidden * args.inter
    miss = (1 - args.top_k / args.experts) ** tokens
    weights = args.experts * (1 - miss) * 3 * args.hidden * args.inter  # bytes read, int8
    repeats = max(2, min(20, 200 // tokens))
    samples: list[dict[str, float]] = []
    for _ in range(args.rounds):
        time.sleep(PAUSE)
        sample = {"vnni": floor.vnni(), "read": floor.read()}
        time.sleep(PAUSE)
        sample["ours"] = statistics.median(ours.seconds(tokens, repeats))
        for name, group in others.items():
            times = []
            for peer in group:
                time.sleep(PAUSE)
                times.append(statistics.median(peer.seconds(tokens, min(repeats, 8))))
            sample[name] = min(times)
        samples.append(sample)

    def median(value) -> float:
        return statistics.median(value(sample) for sample in samples)

    row: dict[str, object] = {
        "tokens": tokens,
        "ms": median(lambda s: s["ours"]) * 1e3,
        "best_ms": min(s["ours"] for s in samples) * 1e3,
        "gops": median(lambda s: operations / s["ours"]) / 1e9,
        "of_vnni": median(lambda s: operations / s["ours"] / s["vnni"]) / 1e9,
        "of_read": median(lambda s: weights / s["ours"] / s["read"]) / 1e9,
        "best_of_vnni": max(operations / s["ours"] for s in samples)
        / max(s["vnni"] for s in samples)
        / 1e9,
    }
    for name in others:
        row[name] = {
            "ms": median(lambda s, n=name: s[n]) * 1e3,
            "ratio": median(lambda s, n=name: s[n] / s["ours"]),
        }
    return row


def text(result: dict[str, object]) -> list[str]:
    experts, hidden, inter, top_k = result["shape"]
    lines = [
        f"E{experts} H{hidden} I{inter} top-{top_k}, {result['threads']} threads, "
        f"{result['library']}, group size {result['group_size'] or 'none'}"
    ]
    for row in result["rows"]:
        line = (
            f"q{row['tokens']:<5} {row['ms']:9.3f} ms (best {row['best_ms']:.3f})  "
            f"{row['gops']:6.0f} GOPS = {row['of_vnni']:.0%} of VNNI "
            f"(best {row['best_of_vnni']:.0%}), {row['of_read']:.0%} of read bandwidth"
        )
        lines.append(line)
        lines += [
            f"       {name}: {value['ms']:.3f} ms, {value['ratio']:.2f}x our time"
            for name, value in row.items()
            if isinstance(value, dict)
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
