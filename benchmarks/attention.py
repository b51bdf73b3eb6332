"""Attention of one layer on the CPU: ours against torch's fused kernel, in one run, bfloat16."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import statistics
import time
from types import SimpleNamespace

import torch
from torch.nn import functional

from kt_core.models.hf_attention import attention

SHAPES = ((32, 4, 512, 512, 128), (9, 3, 512, 512, 64), (32, 4, 1, 512, 128), (32, 4, 1, 4096, 128))


def milliseconds(call) -> float:
    times = []
    for _ in range(9):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(
        f"{'heads':>6} {'kv':>3} {'rows':>5} {'keys':>5} {'ours ms':>9} {'torch ms':>9} {'ratio':>6}"
    )
    for heads, kv_heads, rows, keys, dim in SHAPES:
        query, key, value = (
            torch.randn(1, h, n, dim).bfloat16()
            for h, n in ((heads, rows), (kv_heads, keys), (kv_heads, keys))
        )
        module = SimpleNamespace(is_causal=True, num_key_value_groups=heads // kv_heads)
        with torch.inference_mode():
            ours = milliseconds(lambda: attention(module, query, key, value, None))  # noqa: B023
            theirs = milliseconds(
                lambda: functional.scaled_dot_product_attention(
                    query,  # noqa: B023
                    key,  # noqa: B023
                    value,  # noqa: B023
                    is_causal=rows == keys,  # noqa: B023
                    enable_gqa=True,
                )
            )
        print(
            f"{heads:>6} {kv_heads:>3} {rows:>5} {keys:>5} {ours:>9.3f} {theirs:>9.3f} "
            f"{theirs / ours:>6.1f}"
        )


if __name__ == "__main__":
    main()
