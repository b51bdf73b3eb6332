"""A whole model: kt by each given rule file, transformers on the same file, and llama.cpp if given.

usage: model.py MODEL.gguf [--rules cpu torch …] [--llama-bench PATH] [-p 512] [-n 64] [-t N]

Every contender runs in a process of its own, in turn; medians over the rounds and ratios to the last
contender are printed, with the memory bandwidth that bounds decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

TRANSFORMERS = """
import json, os, sys, time, torch
from transformers import AutoModelForCausalLM
path, prompt, new, threads = sys.argv[1], *map(int, sys.argv[2:5])
torch.set_num_threads(threads)
folder, file = os.path.split(path)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16).eval()
ids = torch.randint(0, model.config.vocab_size, (1, prompt))
with torch.inference_mode():
    model(ids[:, :8])
    started = time.perf_counter()
    model(ids, logits_to_keep=1)
    prefill = time.perf_counter() - started
    out = model(ids[:, :1], use_cache=True)
    key = "cache" if "cache" in out else "past_key_values"
    started = time.perf_counter()
    for at in range(new):
        out = model(ids[:, at : at + 1], use_cache=True, **{key: out[key]})
    decode = time.perf_counter() - started
print(json.dumps({"prefill_tokens_per_s": prompt / prefill, "decode_tokens_per_s": new / decode}))
"""


def kt(args: argparse.Namespace, rules: str) -> dict[str, float]:
    command = [
        *(sys.executable, "-m", "kt_core.cli", "bench", "--gguf", args.model, "--rules", rules),
        *("-p", str(args.p), "-n", str(args.n), "-t", str(args.t), "-r", "1", "--format", "json"),
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def transformers(args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-c", TRANSFORMERS, args.model, *map(str, (args.p, args.n, args.t))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def llama(args: argparse.Namespace) -> dict[str, float]:
    command = [
        *(args.llama_bench, "-m", args.model, "-p", str(args.p), "-n", str(args.n)),
        *("-t", str(args.t), "-r", "2", "-o", "json", "-ngl", "0"),
    ]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    speed = {bool(row["n_prompt"]): row["avg_ts"] for row in rows}
    return {"prefill_tokens_per_s": speed[True], "decode_tokens_per_s": speed[False]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rules", nargs="+", default=["auto"])
    parser.add_argument("--llama-bench")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-t", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    contenders = {f"kt --rules {rules}": lambda r=rules: kt(args, r) for rules in args.rules}
    if not args.no_transformers:
        contenders["transformers, bf16"] = lambda: transformers(args)
    if args.llama_bench:
        contenders["llama.cpp"] = lambda: llama(args)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            found[name].append(run())
    last = next(reversed(contenders))
    print(f"{args.model}, {args.t} threads, medians of {args.rounds} rounds")
    for name, rows in found.items():
        line = f"{name:24}"
        for key, label in (("prefill_tokens_per_s", "prefill"), ("decode_tokens_per_s", "decode")):
            value = statistics.median(row[key] for row in rows)
            ratios = [a[key] / b[key] for a, b in zip(rows, found[last], strict=True)]
            line += f"  {label} {value:8.1f}/s ({statistics.median(ratios):.2f}x)"
        if "glue_share" in rows[0]:
            line += f"  glue {statistics.median(row['glue_share'] for row in rows):.0%}"
        print(line)


if __name__ == "__main__":
    main()
