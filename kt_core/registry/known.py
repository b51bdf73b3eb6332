"""What kt knows by heart: its own distributions, and names of KTransformers that it lacks.

Data only. It lets a rule that names something absent be answered with what to install or to write,
instead of with a shrug.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DISTRIBUTION_OF_PACKAGE: dict[str, str] = {
    "kt_core": "kt-core",
    "kt_ops_amd_blis": "kt-ops-amd-blis",
    "kt_ops_cpu": "kt-ops-cpu",
    "kt_ops_cuda": "kt-ops-cuda",
}
"""Import package to distribution, for what this project ships."""

DISTRIBUTION_OF_ALIAS: dict[str, str] = {
    "KExpertsAMDInt8": "kt-ops-amd-blis",
    "KExpertsCPU": "kt-ops-cpu",
    "KExpertsMarlin": "kt-ops-cuda",
    "KLinearCPUInfer": "kt-ops-cpu",
    "KLinearMarlin": "kt-ops-cuda",
    "LLAMAFILE": "kt-ops-cpu",
    "MOE_INT8": "kt-ops-amd-blis",
    "VLinearMarlin": "kt-ops-cuda",
}
"""KTransformers' and kt-kernel's kernel names to the distribution that brings them as aliases.

They are reserved: a plugin of any other distribution may not claim them.
"""

NAME_OF_ALIAS: dict[str, str] = {
    "KExpertsAMDInt8": "kt_ops_amd_blis.moe_int8",
    "KExpertsCPU": "kt_ops_cpu.experts",
    "KExpertsMarlin": "kt_ops_cuda.experts",
    "KLinearCPUInfer": "kt_ops_cpu.linear",
    "KLinearMarlin": "kt_ops_cuda.marlin",
    "LLAMAFILE": "kt_ops_cpu.experts",
    "MOE_INT8": "kt_ops_amd_blis.moe_int8",
    "VLinearMarlin": "kt_ops_cuda.marlin",
}
"""The same names to the kernels behind them, for when their distribution is not installed."""

UPSTREAM_PREFIX = "ktransformers."
"""Class paths of KTransformers start like this; they are aliases, never import paths."""


@dataclass(frozen=True)
class NotProvided:
    """KTransformers names that kt does not bring. ``names`` is a pattern for the whole name."""

    names: str
    reason: str
    help: str


NOT_PROVIDED: tuple[NotProvided, ...] = (
    NotProvided(
        r"\w*W8A8\w*|KDeepseekV3GateA2",
        "KTransformers runs it on Ascend NPUs with W8A8 weights; kt has no NPU kernels",
        "use a rule file for cpu or cuda; kt plan --gguf FILE shows the one it would choose",
    ),
    NotProvided(
        r"\w*IPEX(LLM)?",
        "KTransformers runs it on Intel GPUs through ipex-llm; kt has no XPU kernels",
        "use kt_core.torch_linear, or a rule file for cpu or cuda",
    ),
    NotProvided(
        r"KLinearFP8|FP8|FP8_PERCHANNEL",
        "it computes on FP8 safetensors weights; kt has no FP8 kernel",
        "use a GGUF of the model with kt_core.torch_linear, or KLinearMarlin from kt-ops-cuda",
    ),
    NotProvided(
        r"KLinearQ8",
        "KTransformers stores int8 weights with it and computes in float32; kt does not bring it",
        "use kt_core.torch_linear, or KLinearMarlin from kt-ops-cuda",
    ),
    NotProvided(
        r"AMXInt8|AMXBF16|AMXINT4|AMXINT8|BF16",
        "it is an AMX or AVX-512 expert backend of kt-kernel; kt does not bring it",
        "use KExpertsCPU from kt-ops-cpu, which computes on the GGUF's own blocks",
    ),
    NotProvided(
        r"RAWINT4|GPTQ_INT4|SYCL_GPTQ_INT4|MXFP4|MXFP8|MOE_INT4",
        "it is an expert method of kt-kernel for weight formats that kt does not read",
        "use a GGUF of the model with KExpertsCPU from kt-ops-cpu",
    ),
    NotProvided(
        r"MLPCPUExperts|MLPCUDAExperts",
        "KTransformers itself dropped this name before its last release",
        "KExpertsCPU from kt-ops-cpu, or kt_core.torch_experts",
    ),
    NotProvided(
        r"QuantizedLinearMarlin",
        "KTransformers itself dropped this name before its last release",
        "KLinearMarlin from kt-ops-cuda, or kt_core.torch_linear",
    ),
)
"""Looked up after everything registered: a plugin may bring any of them under its own name."""


def distribution_for(name: str) -> str | None:
    """Return which of our own distributions brings ``name``, judging by the name alone."""
    short = name.rpartition(".")[2] if name.startswith(UPSTREAM_PREFIX) else name
    if short in DISTRIBUTION_OF_ALIAS:
        return DISTRIBUTION_OF_ALIAS[short]
    return DISTRIBUTION_OF_PACKAGE.get(name.partition(".")[0]) if "." in name else None


def canonical_name(name: str) -> str | None:
    """Return the kernel that one of KTransformers' names stands for, where it is one of ours."""
    return NAME_OF_ALIAS.get(name.rpartition(".")[2] if name.startswith(UPSTREAM_PREFIX) else name)


def not_provided(name: str) -> NotProvided | None:
    """Return what is known about a KTransformers name that kt does not bring."""
    short = name.rpartition(".")[2] if name.startswith(UPSTREAM_PREFIX) else name
    return next((entry for entry in NOT_PROVIDED if re.fullmatch(entry.names, short)), None)
