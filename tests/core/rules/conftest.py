"""A registry with the core's plugin and one more, whose schemas exercise the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kt_core.registry.hookspecs import hookimpl
from kt_core.registry.specs import EXPERTS, LINEAR, KernelSpec, OperatorSpec

DATA = Path(__file__).parent / "data"


class sample:  # noqa: N801 - stands for a plugin's module
    """A plugin with a kernel that runs only on CPUs, and an operator with options of every kind."""

    KT_PLUGIN_API = 1

    @staticmethod
    @hookimpl
    def kt_register_operators():
        return (
            OperatorSpec(
                name="sample.LowRank",
                target="sample.ops:LowRank",
                summary="A linear layer of low rank.",
                kwargs_schema={
                    "type": "object",
                    "properties": {
                        "rank": {"type": "integer", "minimum": 1, "description": "Inner width."},
                        "scale": {"type": "number", "exclusiveMinimum": 0},
                        "mode": {"enum": ["sum", "concat"]},
                        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                        "seed": {"type": ["integer", "null"]},
                        "either": {"anyOf": [{"type": "integer"}, {"const": "auto"}]},
                        "inner": {
                            "type": "object",
                            "properties": {"depth": {"type": "integer"}},
                            "additionalProperties": False,
                        },
                    },
                    "required": ["rank"],
                    "additionalProperties": False,
                },
            ),
            OperatorSpec(
                name="sample.Open",
                target="sample.ops:Open",
                summary="Takes any option.",
                kwargs_schema={"type": "object", "additionalProperties": True},
            ),
        )

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        return (
            KernelSpec(
                name="sample.cpu_experts",
                target="sample.ops:CpuExperts",
                kind=EXPERTS,
                devices=("cpu",),
                weight_formats=("*",),
                summary="Experts on the CPU.",
                options_schema={
                    "type": "object",
                    "properties": {
                        "threads": {"type": "integer", "minimum": 1, "maximum": 64},
                    },
                },
            ),
            KernelSpec(
                name="sample.gpu_linear",
                target="sample.ops:GpuLinear",
                kind=LINEAR,
                devices=("cuda",),
                weight_formats=("*",),
                summary="Linear layers on a GPU.",
                options_schema={
                    "type": "object",
                    "properties": {"group_size": {"enum": [32, 64, 128]}},
                },
            ),
        )


@pytest.fixture(scope="session")
def registry():
    from kt_core.operators import plugin as core
    from kt_core.registry.registry import Registry

    registry = Registry.of(core, sample, environ={})
    assert registry.problems() == ()
    return registry
