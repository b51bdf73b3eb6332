"""Why a module is treated as it is: every rule's verdict on it, in order."""

from __future__ import annotations

from torch import nn

from kt_core.errors import PlanError
from kt_core.plan.model import Plan
from kt_core.plan.skeleton import skeleton_of
from kt_core.rules.match import explain_module
from kt_core.rules.model import RuleSet
from kt_core.weights.text import nearest


def why(model: nn.Module, rules: RuleSet, plan: Plan, path: str) -> str:
    """Return the lines of ``kt plan --why PATH``.

    Raises:
        PlanError: KT350 if the model has no such module.
    """
    skeleton = skeleton_of(model)
    path = skeleton.aliases.get(path, path)
    modules = {module.path: module for module in skeleton.modules}
    if path not in modules:
        near = nearest(path, modules, 3)
        raise PlanError.of(
            "KT350",
            f'the model has no module "{path}"',
            facts=[f"nearest: {', '.join(near)}"] if near else [],
            help="list the modules: kt plan --modules",
        )
    module = modules[path]
    lines = [f"{path or '(root)'}: {module.classes[0]}"]
    lines += [
        f"  {line}"
        for line in explain_module(rules, path, [(m.path, m.classes) for m in skeleton.modules])
    ]
    planned = plan.module(path)
    if planned is None:
        lines.append("  it owns no weights, and no rule changes it")
        return "\n".join(lines)
    if planned.rule is None:
        lines.append(f"  so it stays as it is on the default device {plan.default_device}")
    else:
        lines.append(f"  so it becomes {planned.operator} on {planned.device}")
    for phase, kernel in (("prefill", planned.prefill), ("decode", planned.decode)):
        if kernel is not None:
            detail = f" ({kernel.detail})" if kernel.detail else ""
            lines.append(
                f"  {phase}: {kernel.name} on {kernel.device}, from {kernel.distribution}{detail}"
            )
    if planned.tensors:
        lines.append(f"  tensors: {', '.join(planned.tensors)} ({' '.join(planned.types)})")
    return "\n".join(lines)
