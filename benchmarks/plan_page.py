"""How large the page of DeepSeek-V3's plan is, how long it takes, and the picture in the documentation.

The weight file is all header: a GGUF of the model's real shapes in a Q4_K mix, 400 GB long, which the
file system stores as a hole. kt plan reads no more than the header anyway.

    python benchmarks/plan_page.py                                       # times
    python benchmarks/plan_page.py --picture docs/images/plan-page.png   # and a picture, by Chromium
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from kt_core.plan_page import plan_page
from kt_core.runtime.load import prepare

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "website"))
from build import all_distributions

LAYERS, DENSE, HIDDEN, HEADS = 61, 3, 7168, 128
Q_RANK, KV_RANK, ROPE, NOPE, VALUE = 1536, 512, 64, 128, 128
EXPERTS, INTER, MOE, VOCAB = 256, 18432, 2048, 129280
KEYS = {
    "block_count": LAYERS, "context_length": 163840, "embedding_length": HIDDEN,
    "feed_forward_length": INTER, "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.q_lora_rank": Q_RANK,
    "attention.kv_lora_rank": KV_RANK, "attention.key_length": NOPE + ROPE,
    "attention.value_length": VALUE, "rope.dimension_count": ROPE, "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.1,
    "leading_dense_block_count": DENSE, "expert_count": EXPERTS, "expert_used_count": 8,
    "expert_shared_count": 1, "expert_feed_forward_length": MOE, "expert_weights_scale": 2.5,
    "expert_weights_norm": True, "expert_gating_func": 2, "expert_group_count": 8,
    "expert_group_used_count": 4, "vocab_size": VOCAB,
}  # fmt: skip


def tensors():
    """Yield (name, shape, type) of every tensor."""
    yield "token_embd.weight", (VOCAB, HIDDEN), "Q4_K"
    yield "output_norm.weight", (HIDDEN,), "F32"
    yield "output.weight", (VOCAB, HIDDEN), "Q6_K"
    for layer in range(LAYERS):
        # Where llama.cpp's Q4_K_M spends more bits.
        more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
        down = "Q6_K" if more else "Q4_K"
        yield from (
            (f"blk.{layer}.{name}", shape, kind)
            for name, shape, kind in (
                ("attn_norm.weight", (HIDDEN,), "F32"),
                ("ffn_norm.weight", (HIDDEN,), "F32"),
                ("attn_q_a.weight", (Q_RANK, HIDDEN), "Q4_K"),
                ("attn_q_a_norm.weight", (Q_RANK,), "F32"),
                ("attn_q_b.weight", (HEADS * (NOPE + ROPE), Q_RANK), "Q4_K"),
                ("attn_kv_a_mqa.weight", (KV_RANK + ROPE, HIDDEN), "Q4_K"),
                ("attn_kv_a_norm.weight", (KV_RANK,), "F32"),
                ("attn_kv_b.weight", (HEADS * (NOPE + VALUE), KV_RANK), "Q8_0"),
                ("attn_output.weight", (HIDDEN, HEADS * VALUE), "Q4_K"),
                *_feed_forward(layer, down),
            )
        )


def _feed_forward(layer, down):
    if layer < DENSE:
        yield from _gated("", (), INTER, down)
        return
    yield "ffn_gate_inp.weight", (EXPERTS, HIDDEN), "F32"
    yield "exp_probs_b.bias", (EXPERTS,), "F32"
    yield from _gated("_exps", (EXPERTS,), MOE, down)
    yield from _gated("_shexp", (), MOE, down)


def _gated(ending, stack, width, down):
    yield f"ffn_gate{ending}.weight", (*stack, width, HIDDEN), "Q4_K"
    yield f"ffn_up{ending}.weight", (*stack, width, HIDDEN), "Q4_K"
    yield f"ffn_down{ending}.weight", (*stack, HIDDEN, width), down


def write_header(path: Path) -> int:
    """Write the file; return its length in bytes."""
    writer = gguf.GGUFWriter(path, "deepseek2")
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in KEYS.items():
        add[type(value)](f"deepseek2.{key}", value)
    length = 0
    for name, shape, kind in tensors():
        number = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[number]
        count = math.prod(shape) // values * size
        writer.add_tensor_info(name, shape, np.dtype(np.float32), count, raw_dtype=number)
        length += -(-count // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        begin = -(-file.seek(0, 2) // 32) * 32
        file.truncate(begin + length)
    return begin + length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rules", default="hybrid")
    parser.add_argument("--picture", metavar="PNG")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        weights, page = Path(folder, "DeepSeek-V3-Q4_K_M.gguf"), Path(folder, "plan.html")
        print(f"{weights.name}: {write_header(weights) / 1e9:.1f} GB, all header")
        begin = time.monotonic()
        prepared = prepare(
            weights, rules=args.rules, device="cuda:0", assume_devices=["cuda:0"],
            registry=all_distributions(),
        )  # fmt: skip
        prepared.source.close()
        planned = time.monotonic()
        plan = replace(prepared.plan, weights=weights.name)
        page.write_text(plan_page(plan), encoding="utf-8")
        print(f"plan: {planned - begin:.1f} s; page: {time.monotonic() - planned:.2f} s, ", end="")
        print(f"{page.stat().st_size:,} bytes for {len(plan.modules):,} modules")
        browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
        if browser is None:
            sys.exit("Chromium is not installed")
        picture = Path(args.picture or Path(folder, "plan.png")).resolve()
        chromium = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile", "--window-size=1280,1010",
            f"--screenshot={picture}",
        ]  # fmt: skip
        for name, address in (("an empty page", "about:blank"), ("the page", page.as_uri())):
            begin = time.monotonic()
            subprocess.run([*chromium, address], check=True, capture_output=True)
            print(f"Chromium opens and draws {name}: {time.monotonic() - begin:.2f} s")


if __name__ == "__main__":
    main()
