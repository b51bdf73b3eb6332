"""Decoding behind contexts of several lengths: by captured graphs where possible, and step by step.

usage: decode_step.py MODEL.gguf [--rules gpu] [--contexts 16 400 3000] [-n 128] [--device auto]

Prints tokens per second, each step's token read back as a sampler would, and the speed of the prompts
before them.
"""

from __future__ import annotations

import argparse
import time

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.runtime.decode import decoder_for

# isort: split
import torch  # after kt, which lets OpenMP's threads sleep


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def decode(model, ids, context: int, new: int, *, graph: bool) -> tuple[str, float, float]:
    """Kind of decoder, prompt tokens per second and new tokens per second."""
    cache = dynamic_cache(model)
    synchronize()
    started = time.perf_counter()
    forward_logits(model, ids[:, :context], cache)
    synchronize()
    prefill = time.perf_counter() - started
    decoder = decoder_for(model, cache, new, graph=graph)
    synchronize()
    started = time.perf_counter()
    for at in range(context, context + new):
        decoder.step(ids[:, at : at + 1]).argmax().item()
    seconds = time.perf_counter() - started
    decoder.close()
    return type(decoder).__name__, context / prefill, new / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--rules", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--contexts", type=int, nargs="+", default=[16, 400, 3000])
    parser.add_argument("-n", type=int, default=128)
    args = parser.parse_args()
    model = load(args.model, rules=args.rules, device=args.device).model
    generator = torch.Generator().manual_seed(0)
    length = max(args.contexts) + args.n
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=generator)
    for context in args.contexts:
        for graph in (True, True, False):  # the first run captures
            new = args.n if graph else min(args.n, 16)
            kind, prefill, speed = decode(model, ids, context, new, graph=graph)
            print(f"{context:>6} tokens before  {kind:<13} prompt {prefill:9.1f}/s  {speed:7.1f}/s")


if __name__ == "__main__":
    main()
