"""What kt-ops-cuda registers. Data only: the kernels are imported when a plan uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

KT_PLUGIN_API = 1

_KT = "ktransformers.operators"

EXACT = ("Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS", "MXFP4")
"""Stored types that are kept exactly: every value the file encodes is the value that is multiplied."""

_QUANTISE = {
    "num_bits": {
        "enum": [4, 8],
        "default": 4,
        "description": "Bits that weights are quantised to, where the file holds floats.",
    },
    "group_size": {
        "enum": [-1, 32, 64, 128],
        "default": 128,
        "description": "Values of a row that share a scale when quantising; -1 is a whole row.",
    },
    "symmetric": {
        "type": "boolean",
        "default": True,
        "description": "Quantise around zero; false adds an offset to each group of 4-bit values.",
    },
    "requantize": {
        "type": "boolean",
        "default": False,
        "description": "Allow stored types that are quantised already and cannot be kept exactly.",
    },
}

# KTransformers' rule files carry these; they change nothing here.
_KT_ONLY = {"act_order": {"type": "boolean"}, "is_k_full": {"type": "boolean"}}


def _options(properties: Mapping[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


_KERNELS = (
    KernelSpec(
        name="kt_ops_cuda.marlin",
        target="kt_ops_cuda.linear:MarlinLinear",
        kind=LINEAR,
        devices=("cuda",),
        weight_formats=("*",),
        summary="A linear layer on 4- or 8-bit weights; GGUF types are kept exactly where possible.",
        aliases=(
            "KLinearMarlin",
            "VLinearMarlin",
            f"{_KT}.linear.KLinearMarlin",
            f"{_KT}.linear.VLinearMarlin",
        ),
        options_schema=_options({**_QUANTISE, **_KT_ONLY}),
    ),
    KernelSpec(
        name="kt_ops_cuda.experts",
        target="kt_ops_cuda.experts:MarlinExperts",
        kind=EXPERTS,
        devices=("cuda",),
        weight_formats=("*",),
        summary="All routed experts of a layer in grouped launches, on 4- or 8-bit weights.",
        aliases=("KExpertsMarlin", f"{_KT}.experts.KExpertsMarlin"),
        options_schema=_options(_QUANTISE),
    ),
    KernelSpec(
        name="kt_ops_cuda.gguf_linear",
        target="kt_ops_cuda.linear:GgufLinear",
        kind=LINEAR,
        devices=("cuda",),
        weight_formats=EXACT,
        summary="A linear layer on packed GGUF values, dequantised on the fly, never requantised.",
        options_schema=_options({}),
    ),
    KernelSpec(
        name="kt_ops_cuda.gguf_experts",
        target="kt_ops_cuda.experts:GgufExperts",
        kind=EXPERTS,
        devices=("cuda",),
        weight_formats=EXACT,
        summary="Routed experts on packed GGUF values, dequantised on the fly, never requantised.",
        options_schema=_options({}),
    ),
)

_PLACEMENT: dict[str, object] = {
    name: {"type": "string", "description": "The GPU: cuda, cuda:1, …"}
    for name in ("generate_device", "prefill_device")
}

_OPERATORS = tuple(
    OperatorSpec(
        name=f"kt_ops_cuda.{name}",
        target=f"kt_ops_cuda.step:{name}",
        summary=summary,
        replaces=replaces,
        kwargs_schema=_options(_PLACEMENT),
    )
    for name, replaces, summary in (
        (
            "Attention",
            ATTENTION,
            "Attention of Llama's kind; a captured decode step runs it as one kernel.",
        ),
        (
            "DecoderLayer",
            DECODER_LAYERS,
            "A decoder layer of Llama's kind; the sum after attention is part of the next norm.",
        ),
        ("RMSNorm", RMS_NORMS, "A root mean square norm in one kernel, summed in float32."),
        (
            "Router",
            SOFTMAX_ROUTERS,
            "A softmax router; its choice for a few tokens is two kernels.",
        ),
    )
)


@hookimpl
def kt_register_operators() -> tuple[OperatorSpec, ...]:
    """Return the operators of a decode step."""
    return _OPERATORS


@hookimpl
def kt_register_kernels() -> tuple[KernelSpec, ...]:
    """Return the four kernels."""
    return _KERNELS


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult:
    """Accept if the library has code for a GPU that the driver shows. Starts no context."""
    from kt_ops_cuda.probe import examine

    if env.device != "cuda":
        return Rejected(
            (f"{spec.name} computes on an NVIDIA GPU, not on {env.device}",), "device: cuda"
        )
    return examine(env.environ)


@hookimpl
def kt_report(env: ProbeEnv) -> Iterator[str]:
    """Say what the library was built for and what was found."""
    from kt_ops_cuda.probe import build_line, examine

    yield build_line()
    result = examine(env.environ)
    if isinstance(result, Accepted):
        yield result.detail
    else:
        yield from result.reasons
