"""``optimize_and_load_gguf``: KTransformers' entry point, on a model the caller built."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from kt_core.errors import UsageError
from kt_core.plan import Plan
from kt_core.plan.build import make_plan
from kt_core.plan.devices import default_device as first_device
from kt_core.registry.registry import Registry, default_registry
from kt_core.rules import load_rules
from kt_core.runtime.apply import apply_plan
from kt_core.weights import open_weights


def optimize_and_load_gguf(
    module: nn.Module,
    rule_file: str | os.PathLike[str],
    gguf_path: str | os.PathLike[str],
    model_config: Any = None,
    default_device: str = "auto",
    *,
    dtype: torch.dtype | None = None,
    registry: Registry | None = None,
) -> Plan:
    """Replace the modules of ``module`` as ``rule_file`` says and load its weights, in place.

    ``module`` is a transformers causal-LM model built under ``torch.device("meta")``;
    ``gguf_path`` is a GGUF file, any shard of a split set, or a folder with one model (safetensors
    work too). Modules that no rule matches stay as they are on ``default_device`` (``"auto"``: the
    first GPU, else the CPU). ``dtype`` is the activations' dtype (default: the model's own).
    ``model_config`` defaults to ``module.config``. Returns the plan that was carried out.

    Raises:
        RuleError: the rule file is wrong (KT1xx).
        PluginError: an operator is missing or cannot run here (KT2xx).
        PlanError: rules, model and file do not fit together (KT3xx).
        WeightsError: the file is damaged or incomplete (KT4xx).
        UsageError: ``module`` is not on meta (KT720).
    """
    if model_config is not None:
        module.config = model_config
    loaded = [name for name, parameter in module.named_parameters() if not parameter.is_meta]
    if loaded:
        raise UsageError.of(
            "KT720",
            f"the model already holds weights ({loaded[0]}, …)",
            help='build it on meta: with torch.device("meta"): model = …from_config(config)',
        )
    if dtype is not None:
        module.to(dtype)
    registry = registry or default_registry()
    rules = load_rules(rule_file, registry)
    device = first_device() if default_device == "auto" else default_device
    with open_weights(gguf_path) as source:
        plan = make_plan(module, rules, source=source, registry=registry, default_device=device)
        apply_plan(module, plan, source, registry)
    return plan
