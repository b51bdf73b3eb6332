"""What kt-plugin-template registers. Data only: the classes are imported when a plan uses them."""

from __future__ import annotations

from collections.abc import Iterable

from kt_core import Accepted, KernelSpec, OperatorSpec, ProbeEnv, Rejected, hookimpl

from kt_plugin_template import backend

KT_PLUGIN_API = 1

_DEVICE = {"type": "string", "pattern": "^(cpu|cuda|xpu|npu)(:[0-9]+)?$"}

_OPERATORS = (
    OperatorSpec(
        name="kt_plugin_template.Attention",
        target="kt_plugin_template.attention:Attention",
        summary="Attention of Llama and its kin, scores in float32.",
        replaces=("transformers.models.llama.modeling_llama.LlamaAttention",),
        kwargs_schema={
            "type": "object",
            "properties": {
                "generate_device": {**_DEVICE, "description": "Device of the module."},
                "prefill_device": {**_DEVICE, "description": "Device of the prefill phase."},
                "block_rows": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Rows of the score matrix held at once. Default: 256.",
                },
            },
            "additionalProperties": False,
        },
    ),
)


@hookimpl
def kt_register_operators() -> Iterable[OperatorSpec]:
    """Return the operator."""
    return _OPERATORS


@hookimpl
def kt_register_rules() -> Iterable[str]:
    """Return the rule file that uses it: ``kt chat --rules kt_plugin_template``."""
    return ["kt_plugin_template:rules/kt_plugin_template.yaml"]


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> Accepted | Rejected:
    """Say whether it can run here, and if not, why."""
    return backend.probe(env)
