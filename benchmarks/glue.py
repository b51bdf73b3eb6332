"""What a decode step costs beside its products: a layer with every kernel of the rules doing nothing.

usage: glue.py MODEL.gguf RULES [RULES …]     (several rule files take turns, in one process)

One torch thread; the first decile of 40 steps, which other work on the machine disturbs least. Attention,
norms and routers are computed, linear layers and experts return empty memory.
"""

from __future__ import annotations

import argparse
import statistics
import time

from kt_core import load
from kt_core.models.hf import dynamic_cache, forward_logits
from kt_core.operators.operator import PhasedOperator

# isort: split
import torch  # after kt, which lets OpenMP's threads sleep


def without_kernels(path: str, rules: str):
    model = load(path, rules=rules, device="cpu").model
    for module in model.modules():
        if not isinstance(module, PhasedOperator):
            continue
        for kernel in module.unique_kernels():
            if kernel.kind == "linear":
                width = kernel.shape.out_features
                kernel.forward = lambda x, width=width: x.new_zeros((*x.shape[:-1], width))
            else:
                kernel.forward = lambda x, *_: torch.zeros_like(x)
    return model


def layer_us(model, ids, context: int) -> float:
    layer, times = model.model.layers[1], []
    forward = layer.forward

    def timed(*args, **kwargs):
        started = time.perf_counter()
        result = forward(*args, **kwargs)
        times.append(time.perf_counter() - started)
        return result

    cache = dynamic_cache(model)
    forward_logits(model, ids[:, :context], cache)
    layer.forward = timed
    for at in range(context, context + 40):
        forward_logits(model, ids[:, at : at + 1], cache)
    del layer.forward
    return statistics.quantiles(times, n=10)[0] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("rules", nargs="+")
    parser.add_argument("--context", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = {rules: without_kernels(args.model, rules) for rules in args.rules}
    ids = torch.randint(0, 32000, (1, args.context + 40))
    found: dict[str, list[float]] = {rules: [] for rules in models}
    for _ in range(args.rounds):
        for rules, model in models.items():
            found[rules].append(layer_us(model, ids, args.context))
    for rules, times in found.items():
        print(f"{rules:32} {statistics.median(times):7.1f} us a layer")


if __name__ == "__main__":
    main()
