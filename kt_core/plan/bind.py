"""Which stored tensors each module takes, proven to exist and to fit, from headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kt_core.errors import KtError, PlanError
from kt_core.models.binder import Binder, make_binder
from kt_core.models.binding import Binding, ExpertsBinding
from kt_core.models.family import family_for_config
from kt_core.models.hf import tied_parameters
from kt_core.plan.skeleton import ModuleInfo, ParameterInfo
from kt_core.registry.specs import EXPERTS
from kt_core.weights import TensorInfo, WeightSource
from kt_core.weights.text import nearest


@dataclass(frozen=True)
class Bound:
    """What the weights of one module come from. ``infos`` are the tensors, each once."""

    bindings: tuple[Binding, ...] = ()
    experts: ExpertsBinding | None = None
    infos: tuple[TensorInfo, ...] = ()
    tied_to: str | None = None


class ModuleBinder:
    """Binds modules of ``model`` to ``source``; without a source only ties are known."""

    def __init__(self, model: nn.Module, source: WeightSource | None) -> None:
        config: Any = model.config
        self._tied = tied_parameters(model)
        self._file: tuple[WeightSource, Binder] | None = None
        if source is not None:
            self._file = (source, make_binder(source, family_for_config(config), config))

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
        return Bound(bindings, None, _infos(source, bindings))

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
        fused = [parameter for parameter in module.parameters if len(parameter.shape) == 3]
        biases = [parameter for parameter in module.parameters if len(parameter.shape) == 2]
        if not fused:
            raise PlanError.of(
                "KT311",
                f"{module.path}, a {module.class_name}, has no fused expert weights",
                help="match the module that holds the experts, e.g. name: mlp\\.experts$",
            )
        experts = binder.experts(module.path, fused[0].shape[0])
        infos = tuple(source.tensors[name] for name in experts.tensors)
        stored, wanted = sum(i.numel for i in infos), sum(p.numel for p in fused)
        if stored != wanted:
            raise PlanError.of(
                "KT313",
                f"the experts of {module.path} hold {wanted} values, the file's tensors {stored}",
                facts=[f"{info.name}: {list(info.shape)}" for info in infos[:3]],
                help="the weights belong to another model, or the configuration to another file",
            )
        return Bound(self._bind_parameters(module, biases, source, binder), experts, infos)


def _infos(source: WeightSource, bindings: Sequence[Binding]) -> tuple[TensorInfo, ...]:
    names = dict.fromkeys(name for binding in bindings for name in binding.tensors)
    return tuple(source.tensors[name] for name in names)


def _check_shape(
    full: str, parameter: ParameterInfo, binding: Binding, source: WeightSource
) -> None:
    infos = [source.tensors[name] for name in binding.tensors]
    stored = sum(info.numel for info in infos)
    whole = binding.transform in ("as_is", "unpermute_rope")
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
