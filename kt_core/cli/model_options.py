"""Options that every command with a model shares."""

from __future__ import annotations

import argparse


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--gguf``, ``--model``, ``--rules``, ``--device`` and ``--dtype``."""
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
        help="rule file; auto: the shipped one for the architecture; none: no rules",
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
        help="activations: bfloat16, float16 or float32 (default: bfloat16)",
    )
