"""Carry out a plan on a model that was built on meta."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from kt_core.errors import PlanError
from kt_core.models.hf import rebuild_buffers
from kt_core.operators.kernel import KernelContext
from kt_core.operators.operator import ChosenKernel, Operator, OperatorContext, Phase
from kt_core.plan.model import KernelPlan, ModulePlan, Plan
from kt_core.registry.registry import Registry
from kt_core.runtime.bound_weights import BoundWeights
from kt_core.runtime.hops import install_hops
from kt_core.runtime.watch import watch
from kt_core.weights import PackedTensor, WeightSource

logger = logging.getLogger(__name__)


def apply_plan(model: nn.Module, plan: Plan, source: WeightSource, registry: Registry) -> None:
    """Inject and load ``model`` in place, exactly as ``plan`` says.

    A failure puts every module and parameter back to what it was before.

    Raises:
        PlanError: if the plan has errors, or KT340 if something stayed on meta.
        WeightsError: if the file changed or cannot be read.
        KernelError: if a kernel refuses its weights.
    """
    plan.raise_for_errors()
    with _undo_on_failure(model) as undo:
        injected, operators = _inject(model, plan, registry, undo)
        _load(model, plan, source, injected, undo)
        _finish(model, plan, source)
        for target, context in operators:
            target.finish(model.get_submodule(context.path), context)
    model.requires_grad_(False)
    model.eval()


class _Undo:
    """What to put back, newest first."""

    def __init__(self) -> None:
        self.steps: list[tuple[dict[str, Any], str, Any]] = []

    def set(self, owner: dict[str, Any], name: str, value: Any) -> None:
        self.steps.append((owner, name, owner[name]))
        owner[name] = value


@contextmanager
def _undo_on_failure(model: nn.Module) -> Iterator[_Undo]:
    undo = _Undo()
    try:
        yield undo
    except BaseException:
        for owner, name, value in reversed(undo.steps):
            owner[name] = value
        raise


_Operators = list[tuple[type[Operator], OperatorContext]]


def _inject(
    model: nn.Module, plan: Plan, registry: Registry, undo: _Undo
) -> tuple[dict[str, nn.Module], _Operators]:
    """Build all operators, then swap them in. Returns the new modules by path, and all operators."""
    built: dict[str, nn.Module] = {}
    operators: _Operators = []
    dtype = getattr(torch, plan.dtype)
    for module in plan.modules:
        if module.operator == "default":
            continue
        found = registry.operator(module.operator)
        if found is None:
            raise PlanError(registry.unknown(module.operator, "operator"))
        target: type[Operator] = registry.load_target(found.spec)
        original = model.get_submodule(module.path)
        context = _context(module, model, dtype, registry)
        with torch.device("meta"):
            replacement = target.replace(original, context)
        operators.append((target, context))
        if replacement is not original:
            watch(replacement, original, module, model.config, registry)
            built[module.path] = replacement
    for path, replacement in built.items():
        parent, _, name = path.rpartition(".")
        owner = model.get_submodule(parent)._modules
        logger.info("Injecting %s as %s", path, type(replacement).__name__)
        undo.set(owner, name, replacement)
    return built, operators


def _context(
    module: ModulePlan, model: nn.Module, dtype: torch.dtype, registry: Registry
) -> OperatorContext:
    kernels = {}
    for phase, chosen in ((Phase.PREFILL, module.prefill), (Phase.DECODE, module.decode)):
        if chosen is not None:
            kernels[phase] = _kernel(module, chosen, dtype, registry)
    return OperatorContext(
        path=module.path,
        config=model.config,
        dtype=dtype,
        device=torch.device(module.device),
        out_device=torch.device(module.out_device) if module.out_device else None,
        kwargs=module.kwargs,
        kernels=kernels,
        streamed=bool(module.streamed),
    )


def _kernel(
    module: ModulePlan, chosen: KernelPlan, dtype: torch.dtype, registry: Registry
) -> ChosenKernel:
    found = registry.kernel(chosen.name)
    if found is None:
        raise PlanError(registry.unknown(chosen.name, "kernel"))
    context = KernelContext(module.path, dtype, torch.device(chosen.device), chosen.options)
    return ChosenKernel(chosen.name, registry.load_target(found.spec), context)


def _load(
    model: nn.Module,
    plan: Plan,
    source: WeightSource,
    injected: dict[str, nn.Module],
    undo: _Undo,
) -> None:
    for module in _progress(_load_order(plan.modules)):
        weights = BoundWeights(module, source)
        replacement = injected.get(module.path)
        if isinstance(replacement, Operator):
            replacement.load(weights)
            continue
        target = model.get_submodule(module.path)
        for binding in module.bindings:
            name = binding.parameter.rpartition(".")[2]
            stored = weights.packed(name)
            if stored is not None and module.tied_to is None:
                _set_tensor(target, name, stored, module.device, undo)
    for module in plan.modules:
        if module.tied_to is not None and module.path not in injected:
            _tie(model, module, undo)


def _load_order(modules: Iterable[ModulePlan]) -> list[ModulePlan]:
    """The head first: its dequantised copy is the largest intermediate, best made in empty memory."""
    return sorted(modules, key=lambda module: not module.path.startswith("lm_head"))


def _progress(modules: list[ModulePlan]) -> Iterable[ModulePlan]:
    # Shown on a terminal only, and only for loads that take more than two seconds.
    bar: Iterable[ModulePlan] = tqdm(
        modules, desc="Loading", unit="module", delay=2.0, disable=None, leave=False
    )
    return bar


def _set_tensor(
    module: nn.Module, name: str, stored: PackedTensor, device: str, undo: _Undo
) -> None:
    """Put ``stored`` behind parameter or buffer ``name``, in that one's own dtype."""
    owner = module._parameters if name in module._parameters else module._buffers
    empty = owner[name]
    value = stored.to_torch(None if empty is None else empty.dtype, device)
    if owner is module._parameters:
        value = nn.Parameter(value, requires_grad=False)
    undo.set(owner, name, value)


def _tie(model: nn.Module, module: ModulePlan, undo: _Undo) -> None:
    """Share the source's parameter, or copy it where the two live on different devices."""
    path, _, name = (module.tied_to or "").rpartition(".")
    shared = model.get_submodule(path)._parameters[name]
    if shared is not None and shared.device != torch.device(module.device):
        shared = nn.Parameter(shared.to(module.device), requires_grad=False)
    undo.set(model.get_submodule(module.path)._parameters, name, shared)


def _finish(model: nn.Module, plan: Plan, source: WeightSource) -> None:
    """Rebuild buffers no file stores, prove that nothing is left on meta, connect the devices."""
    device = torch.device(plan.default_device)
    left: list[str] = []
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        left.extend(prefix + name for name in rebuild_buffers(module, model.config, device))
        left.extend(
            prefix + name for name, p in module.named_parameters(recurse=False) if p.is_meta
        )
    if left:
        raise PlanError.of(
            "KT340",
            f"{len(left)} parameters or buffers would stay without values",
            facts=[", ".join(left[:6])],
            help="report the model's architecture; its adapter misses them",
        )
    _scale_rope(model, source)
    install_hops(model, plan)
    if plan.default_device == "cpu":
        from kt_core.models.hf_attention import use_cpu_attention

        use_cpu_attention(model)


def _scale_rope(model: nn.Module, source: WeightSource) -> None:
    """Llama 3.1 and newer store their rotary scaling as divisors of the frequencies."""
    if source.format != "gguf" or "rope_freqs.weight" not in source.tensors:
        return
    divisors = source.tensor("rope_freqs.weight").to_torch(torch.float32)
    for module in model.modules():
        for name in ("inv_freq", "original_inv_freq"):
            values = getattr(module, name, None)
            if isinstance(values, torch.Tensor) and values.shape == divisors.shape:
                values.div_(divisors.to(values.device))
