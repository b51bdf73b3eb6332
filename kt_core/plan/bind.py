"""Which stored tensors each module takes, proven to exist and to fit, from headers alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kt_core.errors import KtError, PlanError
from kt_core.models.binder import Binder, make_binder
from kt_core.models.binding import Binding, ExpertsBinding
from kt_core.models.family import Family, family_for_config, family_for_gguf
from kt_core.models.hf import tied_parameters
from kt_core.models.transforms import TRANSFORMS, result_type
from kt_core.plan.skeleton import ModuleInfo, ParameterInfo
from kt_core.registry.registry import Registry
from kt_core.registry.specs import EXPERTS
from kt_core.weights import TensorInfo, WeightSource
from kt_core.weights.tensor import packed_shape
from kt_core.weights.text import nearest


@dataclass(frozen=True)
class Bound:
    """What the weights of one module come from. ``infos`` are the tensors, each once.

    ``presented`` are the matrices as a kernel will get them, after their transforms.
    """

    bindings: tuple[Binding, ...] = ()
    experts: ExpertsBinding | None = None
    infos: tuple[TensorInfo, ...] = ()
    tied_to: str | None = None
    presented: tuple[TensorInfo, ...] = ()


class ModuleBinder:
    """Binds modules of ``model`` to ``source``; without a source only ties are known."""

    def __init__(
        self, model: nn.Module, source: WeightSource | None, registry: Registry | None = None
    ) -> None:
        config: Any = model.config
        self._tied = tied_parameters(model)
        self._file: tuple[WeightSource, Binder] | None = None
        self._ignores: Callable[[str], bool] = lambda name: False
        if source is not None:
            family = _family(config, source, registry)
            self._file = (source, make_binder(source, family, config))
            self._ignores = lambda name: family.ignores(name, config.num_hidden_layers)

    def unexpected(self, unused: Sequence[str]) -> list[str]:
        """Those of the tensors that no module takes which the family does not expect to be left."""
        return [name for name in unused if not self._ignores(name)]

    def bind(self, module: ModuleInfo, kernel_kind: str | None) -> Bound:
        """Bind all parameters of ``module``.

        Raises:
            PlanError: KT313 for shapes that do not fit, KT314 for weights the file lacks.
            WeightsError: KT410 for missing experts.
        """
        tied = self._tie_of(module)
        if self._file is None or not module.parameters:
            return Bound(tied_to=tied)
        source, binder = self._file
        if kernel_kind == EXPERTS:
            return self._bind_experts(module, source, binder)
        bindings = self._bind_parameters(module, module.parameters, source, binder)
        # A file may hold a head of its own although the configuration ties it; the file wins.
        if tied is not None and not any(
            binder.parameter(b.parameter, ()) for b in bindings if b.parameter in self._tied
        ):
            return Bound(bindings, None, _infos(source, bindings), tied)
        presented = _presented(module, bindings, source) if kernel_kind is not None else ()
        return Bound(bindings, None, _infos(source, bindings), presented=presented)

    def _tie_of(self, module: ModuleInfo) -> str | None:
        names = (f"{module.path}.{parameter.name}" for parameter in module.parameters)
        return next((self._tied[name] for name in names if name in self._tied), None)

    def _bind_parameters(
        self,
        module: ModuleInfo,
        parameters: Sequence[ParameterInfo],
        source: WeightSource,
        binder: Binder,
    ) -> tuple[Binding, ...]:
        bindings: list[Binding] = []
        missing: list[str] = []
        for parameter in parameters:
            full = f"{module.path}.{parameter.name}" if module.path else parameter.name
            found = binder.parameter(full, parameter.shape)
            if found is None and full in self._tied:
                found = binder.parameter(self._tied[full], parameter.shape)
            if found is None:
                missing.append(full)
                continue
            _check_shape(full, parameter, found, source)
            bindings.append(Binding(full, found.tensors, found.transform, found.args))
        if missing:
            raise _missing(missing, source, binder)
        return tuple(bindings)

    def _bind_experts(self, module: ModuleInfo, source: WeightSource, binder: Binder) -> Bound:
        matrices = [parameter for parameter in module.parameters if len(parameter.shape) == 3]
        biases = [parameter for parameter in module.parameters if len(parameter.shape) == 2]
        if not matrices:
            raise PlanError.of(
                "KT311",
                f"{module.path}, a {module.class_name}, has no fused expert weights",
                help="match the module that holds the experts, e.g. name: mlp\\.experts$",
            )
        experts = binder.experts(module.path, matrices[0].shape[0])
        infos = tuple(source.tensors[name] for name in experts.weights)
        small = tuple(source.tensors[name] for name in experts.biases)
        if biases and not small:
            raise _missing([f"{module.path}.{b.name}" for b in biases], source, binder)
        for what, found, parameters in (("weights", infos, matrices), ("biases", small, biases)):
            stored, wanted = sum(i.numel for i in found), sum(p.numel for p in parameters)
            if stored != wanted:
                raise PlanError.of(
                    "KT313",
                    f"the {what} of {module.path} are {wanted} values, in the file {stored}",
                    facts=[f"{info.name}: {list(info.shape)}" for info in found[:3]],
                    help="the weights belong to another model, or the configuration does",
                )
        return Bound((), experts, infos + small, presented=infos)


def _family(config: Any, source: WeightSource, registry: Registry | None) -> Family:
    """The adapter of the file where it names its architecture, else the configuration's."""
    by_config = family_for_config(config, registry)
    if source.format != "gguf":
        return by_config
    by_file = family_for_gguf(source.metadata, source.tensors, source.path, registry)
    if by_file.model_type != by_config.model_type:
        raise PlanError.of(
            "KT304",
            f"the configuration is of a {by_config.model_type} model, {source.path} holds a "
            f"{by_file.model_type} model",
            help="give the folder that belongs to the file, or leave --model out",
        )
    return by_file


def _infos(source: WeightSource, bindings: Sequence[Binding]) -> tuple[TensorInfo, ...]:
    names = dict.fromkeys(name for binding in bindings for name in binding.tensors)
    return tuple(source.tensors[name] for name in names)


def _presented(
    module: ModuleInfo, bindings: Sequence[Binding], source: WeightSource
) -> tuple[TensorInfo, ...]:
    """What a kernel gets for each parameter: its shape, and its type after the transform."""
    shapes = {parameter.name: parameter for parameter in module.parameters}
    found = []
    for binding in bindings:
        stored = [source.tensors[name] for name in binding.tensors]
        if binding.transform == "as_is":
            found.append(stored[0])
            continue
        shape = shapes[binding.parameter.rpartition(".")[2]].shape
        kind = result_type(binding.transform, stored)
        nbytes = math.prod(packed_shape(shape, kind))
        found.append(TensorInfo(binding.parameter, shape, kind, 0, nbytes))
    return tuple(found)


def _check_shape(
    full: str, parameter: ParameterInfo, binding: Binding, source: WeightSource
) -> None:
    infos = [source.tensors[name] for name in binding.tensors]
    stored = sum(info.numel for info in infos)
    whole = TRANSFORMS[binding.transform].same_shape
    if stored != parameter.numel or (whole and infos[0].shape != parameter.shape):
        raise PlanError.of(
            "KT313",
            f"{full} has the shape {list(parameter.shape)}, the file's tensors do not",
            facts=[f"{info.name}: {list(info.shape)}" for info in infos],
            help="the weights belong to another model, or the configuration to another file",
        )


def _missing(names: Sequence[str], source: WeightSource, binder: Binder) -> KtError:
    facts = []
    for name in names[:4]:
        wanted = binder.wanted(name)
        near = nearest(wanted, source.tensors, 3)
        facts.append(f"{name}: no {wanted}; nearest: {', '.join(near) or 'none'}")
    return PlanError.of(
        "KT314",
        f"{source.path} lacks the weights of {', '.join(names[:4])}",
        facts=facts,
        help=f"look into the file: kt inspect {source.path}",
    )
