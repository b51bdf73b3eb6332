"""Make the plan: match, resolve, bind, count. Reads headers only and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kt_core.devices.torch_backends import torch_device
from kt_core.errors import KtError, Location, PlanError, Problem
from kt_core.operators.kernel import Kernel, KernelContext
from kt_core.operators.operator import Operator
from kt_core.plan.bind import Bound, ModuleBinder
from kt_core.plan.cache import plan_cache
from kt_core.plan.devices import Devices, canonical
from kt_core.plan.findings import rule_without_effect, tensors_left_over
from kt_core.plan.layers import Stack, check_transfer_map, stack_of
from kt_core.plan.model import KernelPlan, ModulePlan, Plan, RulePlan
from kt_core.plan.resolve import Resolution, ResolvedKernel, Resolver
from kt_core.plan.routers import Routers
from kt_core.plan.skeleton import ModuleInfo, Skeleton, skeleton_of
from kt_core.registry.registry import Registry, default_registry
from kt_core.registry.specs import OperatorSpec
from kt_core.rules.match import ModuleMatch, class_matches, match_modules
from kt_core.rules.merged import check_merged
from kt_core.rules.model import RuleSet
from kt_core.weights import QuantType, TensorInfo, WeightSource

DEFAULT_CONTEXT = 4096
"""Tokens the cache estimate is made for when the caller names none."""


def make_plan(
    model: nn.Module,
    rules: RuleSet,
    *,
    source: WeightSource | None = None,
    registry: Registry | None = None,
    default_device: str = "cpu",
    context: int = DEFAULT_CONTEXT,
    assume_devices: Sequence[str] = (),
) -> Plan:
    """Decide everything about loading ``model`` (on meta) by ``rules``.

    Without ``source`` the plan covers placement and operators, but no stored tensors. What is wrong
    is in :attr:`Plan.problems`; the call itself raises only for a model kt does not know.

    Raises:
        PlanError: KT301 for an unknown architecture.
        UsageError: KT710 for a device name that is none.
    """
    return _Builder(
        model,
        rules,
        source,
        registry or default_registry(),
        canonical(default_device),
        next(iter(model.parameters())).dtype,
        Devices(assume_devices, registry),
    ).build(context)


class _Builder:
    def __init__(
        self,
        model: nn.Module,
        rules: RuleSet,
        source: WeightSource | None,
        registry: Registry,
        default_device: str,
        dtype: torch.dtype,
        devices: Devices,
    ) -> None:
        self.model = model
        self.config: Any = model.config
        self.rules = rules
        self.source = source
        self.registry = registry
        self.default_device = default_device
        self.dtype = dtype
        self.resolver = Resolver(registry, devices, default_device)
        self.problems: list[Problem] = []
        self.binder = ModuleBinder(model, source, registry)
        self.stack = Stack()
        self.routers = Routers()
        reason = devices.missing(default_device)
        if reason is not None:
            self.problems.append(
                Problem(
                    "KT321",
                    f"{default_device} is not on this machine",
                    facts=(f"rejected: {reason}",),
                    help=f"choose another device, or add --assume-devices {default_device}",
                )
            )

    def build(self, context: int) -> Plan:
        self._check_architecture()
        skeleton = skeleton_of(self.model)
        matches = match_modules(
            self.rules, [(module.path, module.classes) for module in skeleton.modules]
        )
        self.problems.extend(check_merged(self.rules, matches, self.registry))
        self.stack = stack_of(matches.modules)
        modules = self._modules(skeleton, matches.modules)
        used = {name for module in modules for name in module.tensors}
        unused = tuple(n for n in self.source.tensors if n not in used) if self.source else ()
        left_over = self.binder.unexpected(unused)
        if left_over and not self.problems and not self.resolver.problems:
            self.problems.append(tensors_left_over(left_over))
        rules = tuple(
            RulePlan(
                rule.index,
                str(rule.place()),
                rule.name,
                rule.match_class,
                rule.replace_class,
                report.matched,
                report.won,
                dict(report.lost_to),
                dict(report.kept_away),
            )
            for rule, report in zip(self.rules.rules, matches.rules, strict=True)
        )
        for rule in rules:
            self.problems.extend(rule_without_effect(rule, self.rules.rules[rule.index].place()))
        self.problems.extend(self.routers.problems())
        for module in modules:
            self._check_among(module, modules)
            if module.rule is not None and "transfer_map" in module.kwargs:
                place = self.rules.rules[module.rule].place("replace.kwargs.transfer_map")
                layers = int(self.config.num_hidden_layers)
                self.problems.extend(check_transfer_map(self.stack, modules, layers, place))
        return Plan(
            architecture=(self.config.architectures or [type(self.model).__name__])[0],
            weights=self.source.path if self.source else None,
            weights_format=self.source.format if self.source else None,
            rules_path=self.rules.path,
            default_device=self.default_device,
            dtype=str(self.dtype).removeprefix("torch."),
            modules=modules,
            rules=rules,
            cache=plan_cache(
                self.config, modules, context, self.dtype.itemsize, self.default_device
            ),
            unused_tensors=unused,
            problems=(*matches.problems, *self.problems, *self.resolver.problems),
        )

    def _modules(
        self, skeleton: Skeleton, matches: Sequence[ModuleMatch]
    ) -> tuple[ModulePlan, ...]:
        plans: list[ModulePlan] = []
        inside: str | None = None
        for module, match in zip(skeleton.modules, matches, strict=True):
            if inside is not None and module.path.startswith(inside):
                continue
            plan = self._module(module, match)
            if plan is None:
                continue
            plans.append(plan)
            # A module whose kernels took its weights has no children left to place.
            inside = f"{module.path}." if plan.decode is not None else None
        return tuple(plans)

    def _module(self, module: ModuleInfo, match: ModuleMatch) -> ModulePlan | None:
        device = self.stack.device_of(module.path, self.default_device)
        resolution: Resolution | None = Resolution(None, device, None)
        kwargs: Mapping[str, Any] = {}
        place = ""
        if match.rule is not None:
            rule = self.rules.rules[match.rule]
            kwargs, place = match.kwargs, str(rule.place())
            resolution = self.resolver.resolve(rule, kwargs, device)
            if resolution is not None and not module.path and resolution.operator is not None:
                resolution = Resolution(None, resolution.device, resolution.out_device)
        elif not module.parameters:
            return None
        if resolution is None:
            return None
        where = self.rules.rules[match.rule].place() if match.rule is not None else None
        try:
            return self._plan_module(module, match.rule, place, kwargs, resolution, where)
        except KtError as error:
            # A class that cannot be loaded is one problem, however many modules wanted it.
            for problem in (_located(problem, where) for problem in error.problems):
                if problem not in self.problems:
                    self.problems.append(problem)
            return None

    def _plan_module(
        self,
        module: ModuleInfo,
        rule: int | None,
        place: str,
        kwargs: Mapping[str, Any],
        resolution: Resolution,
        where: Location | None,
    ) -> ModulePlan:
        operator = resolution.operator
        if operator is not None:
            self._check_replaces(module, operator.spec.name, operator.spec.replaces)
        bound = self.binder.bind(module, operator.spec.kernel_kind if operator else None)
        resident: dict[str, int] = {}
        streamed: dict[str, int] = {}
        kernels = [k for k in (resolution.decode, resolution.prefill) if k is not None]
        if operator is not None and kernels:
            late = streamed if self.stack.streams(module.path) else resident
            self._kernel_bytes(module, operator.spec, kernels, bound, resident, late, where)
        elif bound.tied_to is None:
            size = sum(p.numel * p.bytes_each for p in module.parameters)
            if size:
                resident[resolution.device] = size
        return ModulePlan(
            path=module.path,
            class_name=module.class_name,
            operator=operator.spec.name if operator else "default",
            distribution=operator.plugin.distribution if operator else "kt-core",
            rule=rule,
            place=place,
            device=resolution.device,
            out_device=resolution.out_device,
            kwargs=dict(kwargs),
            prefill=_kernel_plan(resolution.prefill),
            decode=_kernel_plan(resolution.decode),
            bindings=bound.bindings,
            experts=bound.experts,
            stored=sum(info.nbytes for info in bound.infos),
            resident=resident,
            types=tuple(dict.fromkeys(str(info.type) for info in bound.infos)),
            tied_to=bound.tied_to,
            streamed=streamed,
        )

    @staticmethod
    def _check_replaces(module: ModuleInfo, name: str, replaces: Sequence[str]) -> None:
        if replaces and not any(class_matches(entry, module.classes) for entry in replaces):
            raise PlanError.of(
                "KT310",
                f"{name} cannot take the place of {module.path}, a {module.class_name}",
                facts=[f"it replaces: {', '.join(replaces)}"],
                help=f"add to the rule's match: class: {replaces[0]}",
            )

    def _kernel_bytes(
        self,
        module: ModuleInfo,
        operator: OperatorSpec,
        kernels: Sequence[ResolvedKernel],
        bound: Bound,
        resident: dict[str, int],
        late: dict[str, int],
        where: Location | None,
    ) -> None:
        """Let each kernel check what it gets, and add the bytes it will hold.

        ``kernels`` is decode's, then prefill's; what only prefill has is added to ``late``.
        """
        target: type[Operator] = self.registry.load_target(operator)
        original = self.model.get_submodule(module.path)
        shape = target.kernel_shape(original, self.config)
        infos = (
            bound.presented
            or bound.infos
            or tuple(
                TensorInfo(p.name, p.shape, _plain_type(p.bytes_each), 0, p.numel * p.bytes_each)
                for p in module.parameters
            )
        )
        seen: set[tuple[str, str]] = set()
        for chosen in kernels:
            key = (chosen.found.spec.name, chosen.device)
            if key in seen:
                continue
            seen.add(key)
            self._check_formats(module, chosen, infos)
            kernel: type[Kernel] = self.registry.load_target(chosen.found.spec)
            context = KernelContext(
                module.path, self.dtype, torch_device(chosen.device), chosen.options
            )
            reasons = kernel.check(shape, infos, context)
            if reasons:
                raise PlanError.of(
                    "KT323",
                    f"{chosen.found.spec.name} cannot serve {module.path}",
                    facts=[f"rejected: {reason}" for reason in reasons],
                    help="name another kernel for this module, or match it with class: default",
                )
            promise = kernel.accuracy(shape, infos, context)
            self.routers.look_at(module, chosen.found.spec.name, promise, where)
            size = kernel.resident_bytes(shape, infos, context)
            held = resident if chosen is kernels[0] else late
            held[chosen.device] = held.get(chosen.device, 0) + size

    @staticmethod
    def _check_formats(
        module: ModuleInfo, chosen: ResolvedKernel, infos: Sequence[TensorInfo]
    ) -> None:
        accepted = chosen.found.spec.weight_formats
        refused = sorted({str(i.type) for i in infos if i.type not in accepted})
        if refused and "*" not in accepted:
            raise PlanError.of(
                "KT324",
                f"{chosen.found.spec.name} cannot read {', '.join(refused)} weights of "
                f"{module.path}",
                facts=[f"it reads: {', '.join(accepted)}"],
                help="name another kernel for this module, or use a file of another quantisation",
            )

    def _check_among(self, module: ModulePlan, modules: Sequence[ModulePlan]) -> None:
        """Let the operator look at the modules that it will work with."""
        found = self.registry.operator(module.operator) if module.rule is not None else None
        if found is None or not found.spec.checks_plan:
            return
        target: type[Operator] = self.registry.load_target(found.spec)
        where = self.rules.rules[module.rule or 0].place()
        for problem in target.check_plan(module, modules):
            self.problems.append(_located(problem, where))

    def _check_architecture(self) -> None:
        """A rule file that names its architectures is for no other model."""
        meant, model = self.rules.architectures, tuple(self.config.architectures or ())
        if meant and model and not set(meant) & set(model):
            self.problems.append(
                Problem(
                    "KT305",
                    f"{self.rules.path} is for {', '.join(meant)}, the model is a "
                    f"{', '.join(model)}",
                    self.rules.places.get("architectures"),
                    help="use --rules auto for the shipped file, or add the model to "
                    f"architectures: [{', '.join((*meant, *model))}]",
                )
            )


def _kernel_plan(chosen: ResolvedKernel | None) -> KernelPlan | None:
    if chosen is None:
        return None
    return KernelPlan(
        chosen.found.spec.name,
        chosen.device,
        chosen.found.plugin.distribution,
        dict(chosen.options),
        chosen.detail,
    )


def _plain_type(bytes_each: int) -> QuantType:
    return QuantType.F32 if bytes_each == 4 else QuantType.BF16


def _located(problem: Problem, where: Location | None) -> Problem:
    if problem.location is not None or where is None:
        return problem
    return Problem(
        problem.code, problem.message, where, problem.facts, problem.help, problem.severity
    )
