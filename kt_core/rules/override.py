"""``--kt-method``: another kernel for the experts than the rule file names."""

from __future__ import annotations

from dataclasses import replace

from kt_core.errors import PluginError, RuleError
from kt_core.registry.registry import Registry
from kt_core.registry.specs import EXPERTS
from kt_core.rules.model import Rule, RuleSet


def with_experts_kernel(rules: RuleSet, method: str, registry: Registry) -> RuleSet:
    """Return ``rules`` with ``method`` as the experts' kernel in both phases, on the CPU.

    ``method`` is a registered experts kernel or an alias such as ``MOE_INT8``.

    Raises:
        PluginError: KT2xx if no such kernel is registered.
        RuleError: KT163 if no rule of the file replaces experts.
    """
    found = registry.kernel(method, EXPERTS)
    if found is None:
        raise PluginError(registry.unknown(method, "kernel", kind=EXPERTS))
    device = found.spec.devices[0]
    changed = [_changed(rule, found.spec.name, device, registry) for rule in rules.rules]
    if all(new is old for new, old in zip(changed, rules.rules, strict=True)):
        raise RuleError.of(
            "KT163",
            f"no rule of {rules.path} replaces experts, so {method} has nothing to run",
            help="use a rule file with class: kt_core.Experts, and a model that has experts",
        )
    return replace(rules, rules=tuple(changed))


def _changed(rule: Rule, kernel: str, device: str, registry: Registry) -> Rule:
    operator = registry.operator(rule.replace_class)
    if operator is None or operator.spec.kernel_kind != EXPERTS:
        return rule
    # Options belong to the kernel that is replaced; where things live stays as the file says,
    # except that both phases move to a device the new kernel computes on.
    kept = {k: v for k, v in rule.kwargs.items() if k in ("out_device", "decode_max_tokens")}
    kwargs = {
        **kept,
        "generate_op": kernel,
        "prefill_op": kernel,
        "generate_device": device,
        "prefill_device": device,
    }
    return replace(rule, kwargs=kwargs)
