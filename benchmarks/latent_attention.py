"""Latent attention of one DeepSeek-V2-Lite layer: ours in both forms against transformers' own, in one run.

All three attend over the same compressed cache of ``cached`` tokens and append to it.
"""

from __future__ import annotations

import argparse
import inspect
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import statistics
import time

import torch
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2RotaryEmbedding,
)

from kt_core.models.hf_cache import AppendingLayer
from kt_core.operators.mla import MlaAttention
from kt_core.operators.operator import OperatorContext

# Renamed in transformers 5.2x.
_NAMES = inspect.signature(inspect.unwrap(DeepseekV2Attention.forward)).parameters
KEYWORD = "cache" if "cache" in _NAMES else "past_key_values"

CALLS = ((1, 512), (1, 4096), (32, 4096), (512, 0), (512, 4096))


class Held:
    """A cache of one layer that is put back to ``tokens`` before each call."""

    def __init__(self, tokens: int, config: DeepseekV2Config, device: str, dtype: torch.dtype):
        self.layer = AppendingLayer()
        self.parts = [
            torch.randn(1, 1, max(tokens, 1), width, device=device, dtype=dtype)[:, :, :tokens]
            for width in (config.kv_lora_rank, config.qk_rope_head_dim)
        ]

    def fresh(self):
        self.layer = AppendingLayer()
        if self.parts[0].shape[2]:
            self.layer.update(*self.parts)
        return self

    def update(self, key, value, *_, **__):
        return self.layer.update(key, value)


def milliseconds(call, prepare, device) -> float:
    times = []
    for _ in range(9):
        cache = prepare()
        if device != "cpu":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call(cache)
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype, device = getattr(torch, options.dtype), options.device
    config = DeepseekV2Config(
        hidden_size=2048,
        num_attention_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    config._attn_implementation = "sdpa"
    theirs = DeepseekV2Attention(config, 0).to(device, dtype).eval()
    angles = DeepseekV2RotaryEmbedding(config).to(device)

    def ours(**kwargs):
        where = torch.device(device)
        context = OperatorContext("self_attn", config, dtype, where, None, kwargs, {})
        return MlaAttention(theirs, context)

    expanded, absorbed = ours(decode_max_tokens=0), ours(absorb_for_prefill=True)
    print(f"ours takes the absorbed form up to {ours().break_even()} tokens a call")
    print(
        f"{'tokens':>6} {'cached':>6} {'transformers ms':>16} {'expanded ms':>12} {'absorbed ms':>12}"
    )
    for count, cached in CALLS:
        hidden = torch.randn(1, count, config.hidden_size, device=device, dtype=dtype)
        positions = torch.arange(cached, cached + count, device=device)[None]
        mask = None
        if count > 1 and cached:
            mask = torch.ones(count, cached + count, dtype=torch.bool, device=device)
            mask = mask.tril(cached)[None, None]
        times = []
        for module in (theirs, expanded, absorbed):
            held = Held(cached, config, device, dtype)
            with torch.inference_mode():
                turned = angles(hidden, positions)

                def call(cache, module=module, hidden=hidden, turned=turned, mask=mask):
                    return module(
                        hidden,
                        attention_mask=mask,
                        position_embeddings=turned,
                        **{KEYWORD: cache},
                    )

                times.append(milliseconds(call, held.fresh, device))
        print(f"{count:>6} {cached:>6} {times[0]:>16.3f} {times[1]:>12.3f} {times[2]:>12.3f}")


if __name__ == "__main__":
    main()
