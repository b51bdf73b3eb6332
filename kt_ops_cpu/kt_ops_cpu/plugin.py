"""What kt-ops-cpu registers. Data only: the kernels are imported when a plan uses them."""

from __future__ import annotations

from collections.abc import Iterator

from kt_core.errors import KernelError
from kt_core.registry.hookspecs import hookimpl
from kt_core.registry.module_classes import (
    ATTENTION,
    DECODER_LAYERS,
    RMS_NORMS,
    SOFTMAX_ROUTERS,
)
from kt_core.registry.specs import (
    EXPERTS,
    LINEAR,
    Accepted,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
    Rejected,
)
from kt_ops_cpu.formats import FORMATS

KT_PLUGIN_API = 1

_KT = "ktransformers.operators"

_OPTIONS = {
    "type": "object",
    "properties": {
        "threads": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1024,
            "description": "Threads of the pool, which is one per process. Default: "
            "KT_CPU_THREADS, else the least of affinity, control-group quota and physical cores.",
        },
        "activation_bits": {
            "enum": [8, 16],
            "description": "Bits that activations are rounded to; 16 costs twice the arithmetic. "
            "Default: 8.",
        },
        "decode_activation_bits": {
            "enum": [8, 16],
            "description": "The same for calls of at most four tokens, which wait for memory, so that 16 "
            "costs next to nothing. Default: activation_bits.",
        },
    },
    "additionalProperties": False,
}

_KERNELS = (
    KernelSpec(
        name="kt_ops_cpu.linear",
        target="kt_ops_cpu.linear:CpuLinear",
        kind=LINEAR,
        devices=("cpu",),
        weight_formats=tuple(FORMATS),
        summary="A linear layer on its packed GGUF blocks.",
        aliases=("KLinearCPUInfer", f"{_KT}.linear.KLinearCPUInfer"),
        options_schema=_OPTIONS,
    ),
    KernelSpec(
        name="kt_ops_cpu.experts",
        target="kt_ops_cpu.experts:CpuExperts",
        kind=EXPERTS,
        devices=("cpu",),
        weight_formats=tuple(FORMATS),
        summary="Routed experts on their packed GGUF blocks.",
        aliases=("KExpertsCPU", "LLAMAFILE", f"{_KT}.experts.KExpertsCPU"),
        options_schema=_OPTIONS,
    ),
)


_PLACEMENT = {
    "type": "object",
    "properties": {
        name: {"const": "cpu", "description": "The only device of these operators."}
        for name in ("generate_device", "prefill_device")
    },
    "additionalProperties": False,
}

_OPERATORS = tuple(
    OperatorSpec(
        name=f"kt_ops_cpu.{name}",
        target=f"kt_ops_cpu.step:{name}",
        summary=summary,
        replaces=replaces,
        kwargs_schema=_PLACEMENT,
    )
    for name, replaces, summary in (
        ("Attention", ATTENTION, "Attention of Llama's kind; that of a decode step is one call."),
        (
            "DecoderLayer",
            DECODER_LAYERS,
            "A decoder layer whose sum belongs to the norm behind it.",
        ),
        ("RMSNorm", RMS_NORMS, "A root mean square norm in one call, summed in float32."),
        ("Router", SOFTMAX_ROUTERS, "A softmax router; its choice for a few tokens is two calls."),
    )
)


@hookimpl
def kt_register_operators() -> tuple[OperatorSpec, ...]:
    """Return the operators of a decode step."""
    return _OPERATORS


@hookimpl
def kt_register_kernels() -> tuple[KernelSpec, ...]:
    """Return the two kernels."""
    return _KERNELS


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult:
    """Accept if the native library loads and the variant asked for runs here."""
    from kt_ops_cpu.library import ISA_VARIABLE, native, variant
    from kt_ops_cpu.pool import default_threads

    if env.device != "cpu":
        return Rejected((f"{spec.name} computes on cpu, not on {env.device}",), "device: cpu")
    try:
        native()
        threads = default_threads(env.environ)
    except KernelError as error:
        problem = error.problems[0]
        return Rejected((problem.message, *problem.facts), problem.help or "")
    forced = " (forced)" if ISA_VARIABLE in env.environ else ""
    return Accepted(f"{variant()}{forced}, {threads} threads")


@hookimpl
def kt_report(env: ProbeEnv) -> Iterator[str]:
    """Say which variant runs, which there are, and how many threads."""
    from kt_ops_cpu.library import native, variant, variant_names
    from kt_ops_cpu.placement import read_topology
    from kt_ops_cpu.pool import default_threads

    try:
        yield f"variant {variant()}; usable here: {', '.join(variant_names(native()))}"
        nodes = read_topology(env.environ).nodes
        yield f"threads {default_threads(env.environ)}; NUMA nodes {len(nodes)}"
    except KernelError as error:
        yield error.problems[0].render()
