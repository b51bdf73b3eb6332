"""Times kt-kernel's experts for layer.py. Runs in kt-kernel's own Python environment.

usage: kt_kernel_peer.py THREADS EXPERTS HIDDEN INTER TOPK KIND     KIND: int8 (its AMXINT8 class) or q4_k
Reads lines "tokens repeats" and answers each with a JSON list of seconds.
"""

import json
import os
import sys
import time

import numpy as np
import torch
from kt_kernel import kt_kernel_ext as ext

threads, experts, hidden, inter, top_k = map(int, sys.argv[1:6])
kind = sys.argv[6]
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the library prints must not mix with the answers
torch.manual_seed(0)
engine = ext.CPUInfer(threads)
config = ext.moe.MOEConfig(experts, top_k, hidden, inter, 0)
config.pool, config.max_len = engine.backend_, 4096


def blocks(count, block_bytes, scale_at):
    """Random blocks of 256 weights with small float16 scales."""
    data = np.random.default_rng(0).integers(0, 256, (count // 256, block_bytes), dtype=np.uint8)
    scale = np.full(len(data), 3e-4, np.float16).view(np.uint8).reshape(-1, 2)
    for at in scale_at:
        data[:, at : at + 2] = scale
    return torch.from_numpy(data.reshape(-1))


count = experts * hidden * inter
if kind == "int8":
    shapes = ((inter, hidden), (inter, hidden), (hidden, inter))
    weights = [(torch.randn(experts, *shape) * 0.02).bfloat16() for shape in shapes]
    config.gate_proj, config.up_proj, config.down_proj = (w.data_ptr() for w in weights)
    layer = ext.moe.AMXInt8_MOE(config)
    identity = torch.arange(experts)
    engine.submit(layer.load_weights_task(identity.data_ptr()))
else:
    weights = [blocks(count, 144, (0, 2)), blocks(count, 144, (0, 2)), blocks(count, 210, (208,))]
    config.gate_proj, config.up_proj, config.down_proj = (w.data_ptr() for w in weights)
    config.gate_type = config.up_type = 12  # Q4_K
    config.down_type = 14  # Q6_K
    config.hidden_type = 30  # BF16
    config.m_block, config.group_min_len, config.group_max_len = 32, 10, 1024
    layer = ext.moe.MOE(config)
    engine.submit(layer.load_weights_task())
engine.sync()
if kind == "int8":
    del weights
out.write("ready\n")
out.flush()

for line in sys.stdin:
    tokens, repeats = map(int, line.split())
    x = torch.randn(tokens, hidden).bfloat16()
    y = torch.empty_like(x)
    routes = [
        torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]) for _ in range(8)
    ]
    scales, size = torch.rand(tokens, top_k), torch.tensor([tokens], dtype=torch.int32)
    seconds = []
    for i in range(repeats + 1):
        start = time.perf_counter()
        task = layer.forward_task(
            *(size.data_ptr(), top_k, routes[i % 8].data_ptr(), scales.data_ptr()),
            *(x.data_ptr(), y.data_ptr(), False),
        )
        engine.submit(task)
        engine.sync()
        seconds.append(time.perf_counter() - start)
    out.write(json.dumps(seconds[1:]) + "\n")
    out.flush()
