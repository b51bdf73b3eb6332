"""The three-line entrances: a whole contract in one call, and a whole model against its oracle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kt_core.registry.registry import Registry, default_registry
from kt_core.testing.cases import relative_error, require, run_all, skip_unless_accepted
from kt_core.testing.kernels import kernel_cases
from kt_core.testing.operators import Inputs, operator_cases


def check_kernel(
    name: str,
    *,
    tolerance: float,
    device: str = "cpu",
    formats: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
) -> None:
    """Hold a registered kernel against its contract; arguments as of :func:`kernel_cases`.

    Skips where the kernel's own probe rejects ``device``, unless ``KT_TEST_NO_SKIP`` is set.

    Raises:
        AssertionError: naming every case that failed.
        LookupError: the kernel is not registered; the text says why.
    """
    registry = registry or default_registry()
    found = registry.kernel(name)
    if found is not None:
        skip_unless_accepted(found.spec, device, registry)
    run_all(
        kernel_cases(
            name,
            tolerance=tolerance,
            device=device,
            formats=formats,
            options=options,
            registry=registry,
        )
    )


def check_operator(
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
) -> None:
    """Hold a registered operator against the module it replaces; see :func:`operator_cases`.

    Skips where the operator's own probe rejects ``device``, unless ``KT_TEST_NO_SKIP`` is set.

    Raises:
        AssertionError: naming every case that failed.
        LookupError: the operator is not registered; the text says why.
    """
    registry = registry or default_registry()
    found = registry.operator(name)
    if found is not None:
        skip_unless_accepted(found.spec, device, registry)
    run_all(
        operator_cases(
            name,
            original=original,
            tolerance=tolerance,
            inputs=inputs,
            config=config,
            kwargs=kwargs,
            device=device,
            rowwise=rowwise,
            registry=registry,
        )
    )


def check_model(
    path: str | os.PathLike[str],
    rules: str | os.PathLike[str],
    *,
    uses: Sequence[str],
    tolerance: float,
    device: str = "cpu",
    registry: Registry | None = None,
) -> None:
    """Load a model twice, by ``rules`` and with every module as it is, and compare the logits.

    A prompt of 12 tokens and then 4 tokens one by one run through both, with a cache, in float32.
    ``uses`` names operators and kernels that the plan must use, so that a rule that matches nothing
    cannot pass. ``tolerance`` bounds the relative error of the logits.

    Raises:
        AssertionError: the logits differ, or the plan does not use what it should.
        KtError: the model cannot be loaded by these rules.
    """
    from kt_core import load

    registry = registry or default_registry()
    loaded = load(path, rules=rules, device=device, dtype="float32", registry=registry)
    plain = load(path, rules=None, device=device, dtype="float32", registry=registry)
    used = {module.operator for module in loaded.plan.modules}
    for module in loaded.plan.modules:
        used |= {chosen.name for chosen in (module.prefill, module.decode) if chosen is not None}
    missing = sorted(set(uses) - used)
    require(not missing, f"the plan does not use {', '.join(missing)}; it uses {', '.join(used)}")
    ids = torch.arange(3, 19)[None].to(next(plain.model.parameters()).device)
    ours, theirs = (_logits(model.model, ids, prompt=12) for model in (loaded, plain))
    error = relative_error(ours, theirs)
    require(error <= tolerance, f"the logits differ by {error:.2e}, more than {tolerance:.2e}")


def _logits(model: nn.Module, ids: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits of every position: ``prompt`` tokens at once, the others one by one."""
    from kt_core.models.hf import dynamic_cache, forward_logits

    cache = dynamic_cache(model)
    rows = [forward_logits(model, ids[:, :prompt], cache, keep=0)[0]]
    for position in range(prompt, ids.shape[1]):
        step = ids[:, position : position + 1]
        rows.append(forward_logits(model, step, cache, keep=0)[0])
    return torch.cat(rows)
