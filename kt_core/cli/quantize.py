"""``kt quantize``: make a kernel's own form of the experts once and keep it on disk.

It works for every experts kernel with a ``cache_dir`` option: the kernel makes its files when it loads
a layer, so loading each layer is all there is to do. What is already there is kept, so an interrupted
run continues.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kt_core.cli.model_options import add_model_options

if TYPE_CHECKING:
    from kt_core.operators.kernel import ExpertsShape, ExpertsWeights
    from kt_core.registry.registry import Registry
    from kt_core.rules.model import RuleSet
    from kt_core.runtime.load import Prepared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    add_model_options(parser)
    parser.add_argument(
        "--method", required=True, metavar="NAME", help="an experts kernel, such as MOE_INT8"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder for the files")
    parser.add_argument(
        "--group-size", type=int, metavar="N", help="values that share a scale (default: a channel)"
    )
    parser.epilog = (
        "A rule file then names the same folder: cache_dir: DIR in the kwargs of the experts."
    )


def run(args: argparse.Namespace) -> int:
    """Quantise every layer with experts; print a line for each."""
    from kt_core.errors import UsageError
    from kt_core.registry.registry import default_registry
    from kt_core.runtime.load import prepare

    registry = default_registry()
    options = {"cache_dir": args.output}
    if args.group_size is not None:
        options["group_size"] = args.group_size
    target = _target(args.method, options, registry)
    if args.gguf is None:
        raise UsageError.of("KT725", "no weights were given", help="kt quantize --gguf FILE …")
    prepared = prepare(
        args.gguf,
        rules=_rules(args.method, options),
        device="cpu",
        dtype=args.dtype,
        model=args.model,
        registry=registry,
    )
    done = 0
    try:
        prepared.plan.raise_for_errors()
        for path, shape, weights in _layers(prepared):
            _load(target, path, shape, weights, options)
            done += 1
            sys.stdout.write(f"{path}: {shape.num_experts} experts\n")
            sys.stdout.flush()
    finally:
        if prepared.source is not None:
            prepared.source.close()
    if not done:
        raise UsageError.of("KT736", f"{args.gguf} has no layers with experts")
    sys.stdout.write(f"{done} layers in {args.output}\n")
    return 0


def _target(method: str, options: dict[str, Any], registry: Registry) -> type[Any]:
    """Return the kernel class, after everything a plan would check about it."""
    import jsonschema

    from kt_core.errors import PluginError, UsageError
    from kt_core.registry.specs import EXPERTS, Rejected

    found = registry.kernel(method, EXPERTS)
    if found is None:
        raise PluginError(registry.unknown(method, "kernel", kind=EXPERTS))
    properties = found.spec.options_schema.get("properties", {})
    if "cache_dir" not in properties:
        raise UsageError.of(
            "KT735",
            f'"{found.spec.name}" computes on weights as they are stored; there is nothing to keep',
            help="use it in a rule file as it is",
        )
    problem = next(
        jsonschema.Draft202012Validator(found.spec.options_schema).iter_errors(options), None
    )
    if problem is not None:
        raise UsageError.of("KT735", f'"{found.spec.name}" cannot do that: {problem.message}')
    result = registry.probe(found.spec, "cpu")
    if isinstance(result, Rejected):
        raise PluginError.of(
            "KT214",
            f'"{found.spec.name}" cannot run here',
            facts=[f"rejected: {reason}" for reason in result.reasons],
            help=result.help or None,
        )
    return registry.load_target(found.spec)


def _rules(method: str, options: dict[str, Any]) -> RuleSet:
    """Return the rules that give every layer's experts to ``method`` in both phases."""
    from kt_core.rules.model import Rule, RuleSet

    kwargs = {
        "generate_device": "cpu",
        "prefill_device": "cpu",
        "generate_op": method,
        "prefill_op": method,
        **options,
    }
    rule = Rule(0, r"\.experts$", None, "kt_core.Experts", kwargs, recursive=True, continue_=False)
    return RuleSet("<kt quantize>", (rule,))


def _layers(prepared: Prepared) -> Iterator[tuple[str, ExpertsShape, ExpertsWeights]]:
    from kt_core.operators.experts import Experts
    from kt_core.runtime.bound_weights import BoundWeights

    if prepared.source is None:
        return
    for module in prepared.plan.modules:
        if module.experts is None:
            continue
        original = prepared.model.get_submodule(module.path)
        shape = Experts.kernel_shape(original, prepared.model.config)
        yield module.path, shape, BoundWeights(module, prepared.source).experts()


def _load(
    target: type[Any],
    path: str,
    shape: ExpertsShape,
    weights: ExpertsWeights,
    options: dict[str, Any],
) -> None:
    import torch

    from kt_core.operators.kernel import Activation, KernelContext

    # What the gate's activation is makes no difference to the stored weights.
    context = KernelContext(path, torch.bfloat16, torch.device("cpu"), options)
    target(shape, Activation(), context).load(weights)
