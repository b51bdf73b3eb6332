"""What kt-plugin-template registers. Data only: the classes are imported when a plan uses them."""

from __future__ import annotations

from collections.abc import Iterable

from kt_core import Accepted, KernelSpec, OperatorSpec, ProbeEnv, Rejected, hookimpl

from kt_plugin_template import backend

KT_PLUGIN_API = 1

_KERNELS = (
    KernelSpec(
        name="kt_plugin_template.experts",
        target="kt_plugin_template.experts:Experts",
        kind="experts",
        devices=backend.DEVICES,
        weight_formats=backend.FORMATS,
        summary="The routed experts of a layer.",
        options_schema={
            "type": "object",
            "properties": {
                "chunk_tokens": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Tokens computed at once. Default: 512.",
                },
            },
            "additionalProperties": False,
        },
    ),
)


@hookimpl
def kt_register_kernels() -> Iterable[KernelSpec]:
    """Return the kernel."""
    return _KERNELS


@hookimpl
def kt_register_rules() -> Iterable[str]:
    """Return the rule file that uses it: ``kt chat --rules kt_plugin_template``."""
    return ["kt_plugin_template:rules/kt_plugin_template.yaml"]


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> Accepted | Rejected:
    """Say whether it can run here, and if not, why."""
    return backend.probe(env)
