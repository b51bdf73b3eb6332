"""Times zentorch's fused int8 experts for layer.py. Runs in an environment that has zentorch.

usage: zentorch_peer.py THREADS EXPERTS HIDDEN INTER TOPK int8
Reads lines "tokens repeats" and answers each with a JSON list of seconds. Its first calls reorder the
weights; they are made before it says that it is ready.
"""

import json
import sys
import time

import torch
import zentorch  # noqa: F401 - registers the operators

threads, experts, hidden, inter, top_k = map(int, sys.argv[1:6])
torch.manual_seed(0)
torch.set_num_threads(threads)


def quantized(rows, columns):
    weight = torch.randn(rows, columns) * 0.02
    scale = weight.abs().amax(1) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


both = [quantized(2 * inter, hidden) for _ in range(experts)]
back = [quantized(hidden, inter) for _ in range(experts)]
w13, s13 = (torch.stack(t) for t in zip(*both, strict=True))
w2, s2 = (torch.stack(t) for t in zip(*back, strict=True))


def forward(x, y, route, scales):
    torch.ops.zentorch.zentorch_fused_moe(
        y, x, w13, w2, None, None, scales, route, False, "silu", s13, s2
    )


def routing(tokens):
    return torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()


for tokens in (64, 64, 1, 1):
    x = torch.randn(tokens, hidden).bfloat16()
    forward(x, torch.empty_like(x), routing(tokens), torch.rand(tokens, top_k))
print("ready", flush=True)

for line in sys.stdin:
    tokens, repeats = map(int, line.split())
    x = torch.randn(tokens, hidden).bfloat16()
    y, scales = torch.empty_like(x), torch.rand(tokens, top_k)
    routes = [routing(tokens) for _ in range(8)]
    seconds = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        forward(x, y, routes[i % 8], scales)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]), flush=True)
