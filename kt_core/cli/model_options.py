"""Options that every command with a model shares."""

from __future__ import annotations

import argparse
from typing import Any


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which model is loaded, and how."""
    parser.add_argument(
        "--gguf",
        metavar="FILE",
        help="GGUF file, any shard of a split set, or a folder with one model "
        "(safetensors work too)",
    )
    parser.add_argument(
        "--model", metavar="DIR", help="folder with config.json and tokenizer files"
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        default="auto",
        help="rule file, or the name of a shipped variant (cpu, torch, …); auto: the one that fits "
        "architecture and device; none: no rules",
    )
    parser.add_argument(
        "--kt-method",
        metavar="NAME",
        help="experts kernel in place of the rule file's: LLAMAFILE, MOE_INT8, …",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="where modules go that no rule places: cpu, cuda:0, … (default: the first GPU, else "
        "the CPU)",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="activations: bfloat16, float16 or float32 (default: float32 on a CPU, "
        "bfloat16 elsewhere)",
    )


def model_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of :func:`kt_core.load` that these options stand for."""
    return {
        "rules": args.rules,
        "device": args.device,
        "dtype": args.dtype,
        "model": args.model,
        "method": args.kt_method,
    }
