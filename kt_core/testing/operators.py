"""What every module operator must satisfy, as cases that an operator distribution runs.

The oracle is the module that the operator takes the place of: same weights, float32, same inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from kt_core.operators.kernel import ExpertsWeights, KernelContext
from kt_core.operators.operator import (
    ChosenKernel,
    ModuleWeights,
    Operator,
    OperatorContext,
    Phase,
)
from kt_core.plan.resolve import DEFAULT_KERNELS
from kt_core.registry.registry import Found, Registry, default_registry
from kt_core.registry.specs import OperatorSpec
from kt_core.testing.cases import Case, relative_error, require
from kt_core.testing.graphs import captured
from kt_core.testing.inputs import DTYPES, ROUNDING, TOKENS, hidden_states
from kt_core.weights import PackedTensor, QuantType

Inputs = Callable[[int, torch.dtype], Any]
"""``(tokens, dtype)`` to the positional arguments (a tuple) or keywords (a mapping) of a call."""


def operator_cases(
    name: str,
    *,
    original: nn.Module,
    tolerance: float,
    inputs: Inputs | None = None,
    config: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    device: str = "cpu",
    rowwise: bool = False,
    registry: Registry | None = None,
) -> list[Case]:
    """Return all cases for a registered operator that takes the place of ``original``.

    ``original`` holds real float32 weights on the CPU. ``inputs`` makes the arguments of a call;
    without it the operator is called with hidden states ``(1, tokens, width)``, the width being that
    of the original's first weight. ``tolerance`` bounds ``norm(y - reference) / norm(reference)``
    for float32 activations. ``rowwise`` operators (norms, linears, experts, MLPs) must not let one
    token disturb another; attention is not of that kind.
    """
    registry = registry or default_registry()
    found = registry.operator(name)
    if found is None:
        raise LookupError(registry.unknown(name, "operator").render())
    harness = _Harness(
        found, registry, original, inputs or _hidden(original), tolerance, config, kwargs, device
    )
    return [Case(found.spec.name, case, check) for case, check in harness.cases(rowwise)]


class _Harness:
    def __init__(
        self,
        found: Found[OperatorSpec],
        registry: Registry,
        original: nn.Module,
        inputs: Inputs,
        tolerance: float,
        config: Any,
        kwargs: Mapping[str, Any] | None,
        device: str,
    ) -> None:
        self.spec = found.spec
        self.registry = registry
        self.original = copy.deepcopy(original).eval().requires_grad_(False)
        self.inputs = inputs
        self.tolerance = tolerance
        self.config = config if config is not None else SimpleNamespace()
        self.kwargs = dict(kwargs or {})
        self.device = torch.device(device)
        self.target: type[Operator] = registry.load_target(found.spec)

    def cases(self, rowwise: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "is-an-operator", self.is_an_operator
        yield "replaces-the-original", self.replaces
        yield "kwargs-accepted", self.kwargs_accepted
        yield "unknown-kwarg-refused", self.unknown_kwarg
        yield "nothing-left-on-meta", self.loaded
        for dtype in DTYPES:
            yield f"dtype-{dtype}".replace("torch.", ""), partial(self.agrees, 5, dtype)
        for tokens in TOKENS:
            yield f"tokens-{tokens}", partial(self.agrees, tokens, torch.float32)
        yield "input-untouched", self.input_untouched
        yield "deterministic", self.deterministic
        yield "two-instances", self.two_instances
        if rowwise:
            yield "tokens-0", partial(self.agrees, 0, torch.float32)
            yield "non-finite-row", self.non_finite_row
            yield "strided-input", self.strided_input
        if self.device.type == "cuda":
            yield "cuda-graph", self.cuda_graph

    def build(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """The operator, loaded the way a plan loads it."""
        skeleton = copy.deepcopy(self.original).to(dtype).to("meta")
        with torch.device("meta"):
            module = self.target.replace(skeleton, self.context(dtype))
        if isinstance(module, Operator):
            module.load(_OwnWeights(self.original))
        _load_children(module, self.original, dtype, self.device)
        return module.eval()

    def context(self, dtype: torch.dtype) -> OperatorContext:
        kernels: dict[Phase, ChosenKernel] = {}
        kind = self.spec.kernel_kind
        for phase, key in ((Phase.PREFILL, "prefill_op"), (Phase.DECODE, "generate_op")):
            if kind is None:
                continue
            name = self.kwargs.get(key) or DEFAULT_KERNELS[kind]
            kernel = self.registry.kernel(name, kind)
            require(kernel is not None, f"no kernel {name} for {kind} is registered")
            assert kernel is not None
            allowed = kernel.spec.options_schema.get("properties", {})
            options = {key: value for key, value in self.kwargs.items() if key in allowed}
            kernels[phase] = ChosenKernel(
                kernel.spec.name,
                self.registry.load_target(kernel.spec),
                KernelContext("contract", dtype, self.device, options),
            )
        return OperatorContext(
            "contract", self.config, dtype, self.device, None, self.kwargs, kernels
        )

    def call(self, module: nn.Module, tokens: int, dtype: torch.dtype) -> Any:
        return _call(module, _moved(self.inputs(tokens, dtype), self.device))

    def reference(self, tokens: int, dtype: torch.dtype) -> Any:
        """The original in float32 on the very values that the operator gets."""
        return _call(self.original, _moved(self.inputs(tokens, dtype), "cpu", torch.float32))

    def near(self, actual: Any, expected: Any, dtype: torch.dtype) -> None:
        y, wanted = _first(actual), _first(expected)
        require(
            isinstance(actual, tuple) == isinstance(expected, tuple),
            f"returned {type(actual).__name__}, the original returns {type(expected).__name__}",
        )
        require(
            y.shape == wanted.shape,
            f"returned the shape {list(y.shape)}, the original returns {list(wanted.shape)}",
        )
        require(y.dtype == dtype, f"returned {y.dtype} for activations in {dtype}")
        require(y.device.type == self.device.type, f"returned a tensor on {y.device}")
        if y.numel():
            limit = self.tolerance + ROUNDING[dtype]
            error = relative_error(y, wanted)
            require(error <= limit, f"relative error {error:.2e} above {limit:.2e}")

    @torch.no_grad()
    def agrees(self, tokens: int, dtype: torch.dtype) -> None:
        actual = self.call(self.build(dtype), tokens, dtype)
        self.near(actual, self.reference(tokens, dtype), dtype)

    def is_an_operator(self) -> None:
        require(
            issubclass(self.target, Operator),
            f"{self.target.__name__} is no kt_core.operators.operator.Operator",
        )

    def replaces(self) -> None:
        from kt_core.plan.skeleton import skeleton_of
        from kt_core.rules.match import class_matches

        holder = nn.Module()
        holder.add_module("it", copy.deepcopy(self.original).to("meta"))
        classes = next(m.classes for m in skeleton_of(holder).modules if m.path == "it")
        wanted = self.spec.replaces
        require(
            not wanted or any(class_matches(entry, classes) for entry in wanted),
            f"its spec replaces {', '.join(wanted)}, not {type(self.original).__name__}",
        )

    def kwargs_accepted(self) -> None:
        require(not _schema_errors(self.spec, self.kwargs), "its own schema refuses the kwargs")

    def unknown_kwarg(self) -> None:
        if self.spec.kernel_kind is None:
            require(
                bool(_schema_errors(self.spec, {"a_kwarg_that_is_not_there": 1})),
                'its schema lets misspelt kwargs pass: add "additionalProperties": False',
            )

    def loaded(self) -> None:
        module = self.build()
        left = [name for name, value in module.named_parameters() if value.is_meta]
        left += [name for name, value in module.named_buffers() if value.is_meta]
        require(not left, f"without values after load(): {', '.join(left)}")

    @torch.no_grad()
    def input_untouched(self) -> None:
        arguments = _moved(self.inputs(4, torch.float32), self.device)
        before = copy.deepcopy(arguments)
        _call(self.build(), arguments)
        same = all(torch.equal(a, b) for a, b in zip(_tensors(arguments), _tensors(before)))  # noqa: B905
        require(same, "changes its input")

    @torch.no_grad()
    def deterministic(self) -> None:
        module = self.build(torch.bfloat16)
        first, second = (_first(self.call(module, 9, torch.bfloat16)) for _ in range(2))
        require(torch.equal(first, second), "two equal calls differ")

    @torch.no_grad()
    def two_instances(self) -> None:
        """Nothing is shared between layers: a second instance must not change the first."""
        module = self.build()
        before = _first(self.call(module, 3, torch.float32)).clone()
        self.call(self.build(), 7, torch.float32)
        require(torch.equal(before, _first(self.call(module, 3, torch.float32))), "shares state")

    @torch.no_grad()
    def non_finite_row(self) -> None:
        arguments = _moved(self.inputs(5, torch.float32), self.device)
        next(_tensors(arguments))[0, 2, 0] = float("nan")
        good = [0, 1, 3, 4]
        y = _first(_call(self.build(), arguments))[0, good]
        wanted = _first(self.reference(5, torch.float32))[0, good]
        self.near(y, wanted, torch.float32)

    @torch.no_grad()
    def strided_input(self) -> None:
        arguments = _moved(self.inputs(4, torch.float32), self.device)
        y = _call(self.build(), _strided(arguments))
        self.near(y, self.reference(4, torch.float32), torch.float32)

    @torch.no_grad()
    def cuda_graph(self) -> None:
        """Decode may be captured once and replayed: no host work may decide what is computed."""
        module, dtype = self.build(torch.bfloat16), torch.bfloat16
        arguments = _moved(self.inputs(1, dtype), self.device)
        captured(lambda: _first(_call(module, arguments)))


class _OwnWeights(ModuleWeights):
    """The weights of a module that holds them in float32, as a file would give them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def packed(self, parameter: str) -> PackedTensor | None:
        found = self.module._parameters.get(parameter)
        return None if found is None else _packed(parameter, found)

    def experts(self) -> ExpertsWeights:
        fused, down = (_own(self.module, name) for name in ("gate_up_proj", "down_proj"))
        gate, up = fused.chunk(2, dim=1)
        return ExpertsWeights(_each("gate", gate), _each("up", up), _each("down", down))


def _each(name: str, values: torch.Tensor) -> list[PackedTensor]:
    return [_packed(name, expert) for expert in values]


def _own(module: nn.Module, name: str) -> torch.Tensor:
    found = module._parameters.get(name)
    if found is None:
        raise LookupError(f"{type(module).__name__} has no parameter {name}")
    return found


def _packed(name: str, values: torch.Tensor) -> PackedTensor:
    array = values.detach().float().contiguous().numpy()
    data = array.view("uint8").reshape(*array.shape[:-1], -1)
    return PackedTensor(name, tuple(array.shape), QuantType.F32, data)


def _load_children(
    module: nn.Module, original: nn.Module, dtype: torch.dtype, device: torch.device
) -> None:
    """Fill what the operator kept of the original's children, as the plan does."""
    for path, child in original.named_modules():
        try:
            kept = module.get_submodule(path) if path else None
        except AttributeError:
            continue
        if kept is None or isinstance(kept, Operator):
            continue
        for name, value in child.named_parameters(recurse=False):
            if name in kept._parameters:
                placed = value.detach().to(device, dtype).clone()
                kept._parameters[name] = nn.Parameter(placed, requires_grad=False)
        for name, buffer in child.named_buffers(recurse=False):
            if name in kept._buffers:
                kept._buffers[name] = buffer.detach().to(device).clone()


def _hidden(original: nn.Module) -> Inputs:
    weight = next(iter(original.parameters()), None)
    if weight is None:
        raise LookupError(f"{type(original).__name__} has no weights; give inputs=")
    width = int(weight.shape[-1])
    return lambda tokens, dtype: (hidden_states(tokens, width, dtype),)


def _call(module: nn.Module, arguments: Any) -> Any:
    if isinstance(arguments, Mapping):
        return module(**arguments)
    return module(*arguments)


def _first(result: Any) -> torch.Tensor:
    value = result[0] if isinstance(result, tuple) else result
    require(isinstance(value, torch.Tensor), f"returned {type(value).__name__}, not a tensor")
    assert isinstance(value, torch.Tensor)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for item in value.values() for tensor in _tensors(item))
    elif isinstance(value, tuple | list):
        yield from (tensor for item in value for tensor in _tensors(item))


def _moved(value: Any, device: torch.device | str, floating: torch.dtype | None = None) -> Any:
    """A copy of arguments on ``device``; floating tensors in ``floating``, if given."""
    if isinstance(value, torch.Tensor):
        wanted = floating if value.is_floating_point() else None
        return value.to(device, wanted, copy=True)
    if isinstance(value, Mapping):
        return {key: _moved(item, device, floating) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_moved(item, device, floating) for item in value)
    return value


def _strided(value: Any) -> Any:
    """The same values, the first tensor with gaps between its own."""
    if isinstance(value, torch.Tensor):
        wide = value.new_empty(*value.shape[:-1], 2 * value.shape[-1])
        return wide[..., ::2].copy_(value)
    if isinstance(value, Mapping):
        first, *_ = value
        return {**value, first: _strided(value[first])}
    return (_strided(value[0]), *value[1:])


def _schema_errors(spec: OperatorSpec, kwargs: Mapping[str, Any]) -> list[str]:
    import jsonschema

    validator = jsonschema.Draft202012Validator(spec.kwargs_schema)
    return [error.message for error in validator.iter_errors(kwargs)]
