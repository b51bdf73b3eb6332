"""The core's own operators and kernels, registered like any plugin's. Data only."""

from __future__ import annotations

from kt_core.registry.hookspecs import hookimpl
from kt_core.registry.specs import (
    EXPERTS,
    LINEAR,
    Accepted,
    DeviceSpec,
    KernelSpec,
    OperatorSpec,
    ProbeEnv,
    ProbeResult,
)

KT_PLUGIN_API = 1

_DEVICE = {
    "type": "string",
    "pattern": "^[a-z][a-z0-9]*(:[0-9]+)?$",
    "description": "A device: cpu, cuda, cuda:1, …",
}
_PLACEMENT = {
    "generate_device": {**_DEVICE, "description": "Device of the decode phase and of the module."},
    "prefill_device": {**_DEVICE, "description": "Device of the prefill phase."},
    "out_device": {
        **_DEVICE,
        "description": "Where results go; default: where the input came from.",
    },
}
_PHASES = {
    "generate_op": {"type": "string", "description": "Kernel of the decode phase."},
    "prefill_op": {"type": "string", "description": "Kernel of the prefill phase."},
    "decode_max_tokens": {
        "type": "integer",
        "minimum": 0,
        "maximum": 1024,
        "description": "Calls of at most so many tokens run the decode kernel. Default: 1.",
    },
}

_KT = "ktransformers.operators"

# Classes of KTransformers whose work transformers' own modules do once their children are injected.
_KEPT = (
    f"{_KT}.experts.KSmallthinkerMoeBlock",
    *(f"{_KT}.gate.{name}" for name in ("KMoEGate", "KMoEGateQwen2Moe")),
    *(
        f"{_KT}.RoPE.{name}"
        for name in (
            "RotaryEmbedding",
            "RotaryEmbeddingV2",
            "RotaryEmbeddingV3",
            "RotaryEmbeddingV4",
            "YarnRotaryEmbedding",
            "YarnRotaryEmbeddingV3",
            "DynamicNTKScalingRotaryEmbedding",
            "KQwen3MoeRotaryEmbedding",
            "KSmallthinkerRotaryEmbedding",
            "KGlm4MoeRotaryEmbedding",
        )
    ),
    *(
        f"{_KT}.layernorm.{name}"
        for name in (
            "RMSNorm",
            "KQwen2MoeRMSNorm",
            "KQwen3MoeRMSNorm",
            "KQwen3NextRMSNorm",
            "KSmallthinkerRMSNorm",
            "KGlm4MoeRMSNorm",
            "DeepseekV3RMSNormTorch",
        )
    ),
    *(
        f"{_KT}.mlp.{name}"
        for name in ("kDeepseekV3MLP", "KQwen2MoeMLP", "KSmallthinkerDenseMlpBlock", "KGlm4MoeMLP")
    ),
)

_MOE_BLOCKS = tuple(
    f"{_KT}.experts.{name}"
    for name in (
        "KDeepseekV2MoE",
        "KDeepseekV3MoE",
        "KDeepseekV3MoEV2",
        "KQwen2MoeSparseMoeBlock",
        "KQwen2MoeSparseMoeBlockV2",
        "KQwen3MoeSparseMoeBlock",
        "KQwen3MoeSparseMoeBlockV2",
        "KQwen3NextSparseMoeBlockV2",
        "KMistralSparseMoEBlock",
        "KGlm4MoeMoE",
    )
)
_MOE_REPLACES = tuple(
    f"transformers.models.{family}.modeling_{family}.{name}"
    for family, name in (
        ("deepseek_v2", "DeepseekV2Moe"),
        ("deepseek_v3", "DeepseekV3MoE"),
        ("glm4_moe", "Glm4MoeMoE"),
        ("minimax_m2", "MiniMaxM2SparseMoeBlock"),
        ("mixtral", "MixtralSparseMoeBlock"),
        ("qwen2_moe", "Qwen2MoeSparseMoeBlock"),
        ("qwen3_moe", "Qwen3MoeSparseMoeBlock"),
        ("qwen3_next", "Qwen3NextSparseMoeBlock"),
    )
)

_OPERATORS = (
    OperatorSpec(
        name="kt_core.Linear",
        target="kt_core.operators.linear:Linear",
        summary="A linear layer with one kernel per phase.",
        aliases=(
            "KTransformersLinear",
            f"{_KT}.linear.KTransformersLinear",
        ),
        replaces=("torch.nn.Linear",),
        kwargs_schema={
            "type": "object",
            "properties": {**_PLACEMENT, **_PHASES},
            "additionalProperties": False,
        },
        kernel_kind=LINEAR,
    ),
    OperatorSpec(
        name="kt_core.Experts",
        target="kt_core.operators.experts:Experts",
        summary="The routed experts of a layer, with one kernel per phase.",
        aliases=(
            "KTransformersExperts",
            f"{_KT}.experts.KTransformersExperts",
            f"{_KT}.experts.KTransformersExpertsV2",
            f"{_KT}.experts.KSmallthinkerExperts",
            f"{_KT}.experts.KGlm4Experts",
        ),
        kwargs_schema={
            "type": "object",
            "properties": {**_PLACEMENT, **_PHASES},
            "additionalProperties": False,
        },
        kernel_kind=EXPERTS,
    ),
    OperatorSpec(
        name="kt_core.MoeBlock",
        target="kt_core.operators.moe:MoeBlock",
        summary="A MoE block whose shared experts run while its routed experts do.",
        aliases=_MOE_BLOCKS,
        replaces=_MOE_REPLACES,
        kwargs_schema={
            "type": "object",
            "properties": _PLACEMENT,
            "additionalProperties": False,
        },
    ),
    OperatorSpec(
        name="kt_core.Module",
        target="kt_core.operators.module:Module",
        summary="Keeps the module's own forward and places its parameters.",
        aliases=_KEPT,
        kwargs_schema={
            "type": "object",
            "properties": _PLACEMENT,
            "additionalProperties": False,
        },
    ),
)

_KEPT_ATTENTION = tuple(
    f"{_KT}.{path}"
    for path in (
        "attention.KLlamaAttention",
        "balance_serve_attention.KQwen2MoeAttention",
        "balance_serve_attention.KQwen3MoeAttention",
        "balance_serve_attention.KSmallthinkerAttention",
        "balance_serve_attention.KGlm4MoeAttention",
        "balance_serve_attention.KQwen3NextAttention",
        "balance_serve_attention.KQwen3NextGatedDeltaNet",
    )
)

_KEPT_OPERATORS = (
    OperatorSpec(
        name="kt_core.Attention",
        target="kt_core.operators.module:Module",
        summary="Keeps the attention module's own forward and places its parameters.",
        aliases=_KEPT_ATTENTION,
        kwargs_schema={
            "type": "object",
            "properties": _PLACEMENT,
            "additionalProperties": False,
        },
    ),
    OperatorSpec(
        name="kt_core.MlaAttention",
        target="kt_core.operators.mla:MlaAttention",
        summary="Multi-head latent attention over the compressed cache, absorbed or expanded.",
        checks_plan=True,
        aliases=tuple(
            f"{_KT}.{path}"
            for path in (
                "attention.KDeepseekV2Attention",
                "balance_serve_attention.flashinfer_attn",
                "balance_serve_attention.deepseek_torch_attn",
            )
        ),
        replaces=tuple(
            f"transformers.models.deepseek_{version}.modeling_deepseek_{version}."
            f"Deepseek{version.upper()}Attention"
            for version in ("v2", "v3")
        ),
        kwargs_schema={
            "type": "object",
            "properties": {
                **_PLACEMENT,
                "absorb_for_prefill": {
                    "type": "boolean",
                    "description": "Attend to the compressed cache in long calls too: less memory, "
                    "more work. Default: false.",
                },
                "decode_max_tokens": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 1024,
                    "description": "Calls of at most so many tokens attend to the compressed cache "
                    "as it is. Default: where that costs less than expanding it.",
                },
                "chunck_size": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 65536,
                    "description": "Query rows at once where the cache is not expanded. Default: "
                    "as many as keep the scores small.",
                },
            },
            "additionalProperties": False,
        },
    ),
    OperatorSpec(
        name="kt_core.DecoderModel",
        target="kt_core.operators.decoder:DecoderModel",
        summary="The decoder stack; long prompts may pass it layer by layer.",
        aliases=tuple(
            f"{_KT}.models.{name}" for name in ("KDeepseekV2Model", "KQwen2MoeModel", "KLlamaModel")
        ),
        kwargs_schema={
            "type": "object",
            "properties": {
                **_PLACEMENT,
                "per_layer_prefill_intput_threshold": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "description": "Prompts of more tokens load the prefill kernels of one layer at a "
                    "time, shorter ones run the decode kernels. 0: all kernels stay loaded.",
                },
                "transfer_map": {
                    "type": "object",
                    "additionalProperties": _DEVICE,
                    "description": "Layer number to the device of that layer and those after it, "
                    "for modules whose rule names none. Other rules must agree with it.",
                },
            },
            "additionalProperties": False,
        },
    ),
)

_KERNELS = (
    KernelSpec(
        name="kt_core.torch_linear",
        target="kt_core.operators.torch_linear:TorchLinear",
        kind=LINEAR,
        devices=("cpu", "cuda", "xpu", "npu", "mps"),
        weight_formats=("*",),
        summary="torch's matrix product on dequantised weights.",
        aliases=("KLinearTorch", "torch"),
    ),
    KernelSpec(
        name="kt_core.torch_experts",
        target="kt_core.operators.torch_experts:TorchExperts",
        kind=EXPERTS,
        devices=("cpu", "cuda", "xpu", "npu", "mps"),
        weight_formats=("*",),
        summary="A plain loop over the chosen experts on dequantised weights; the reference.",
        aliases=("KExpertsTorch",),
    ),
)


@hookimpl
def kt_register_operators() -> tuple[OperatorSpec, ...]:
    """Return the core's operators."""
    return _OPERATORS + _KEPT_OPERATORS


@hookimpl
def kt_register_kernels() -> tuple[KernelSpec, ...]:
    """Return the torch kernels."""
    return _KERNELS


@hookimpl
def kt_register_devices() -> tuple[DeviceSpec, ...]:
    """Return the kinds of devices that torch itself drives."""
    home = "kt_core.devices.torch_backends"
    return (
        DeviceSpec("cpu", f"{home}:Cpu", "The host's processor."),
        DeviceSpec("cuda", f"{home}:Cuda", "NVIDIA's GPUs, and AMD's under ROCm."),
        DeviceSpec("xpu", f"{home}:Xpu", "Intel's GPUs."),
        DeviceSpec("npu", f"{home}:Npu", "Ascend's processors, with torch_npu."),
        DeviceSpec("mps", f"{home}:Mps", "The GPU of Apple's chips."),
    )


@hookimpl
def kt_probe(spec: OperatorSpec | KernelSpec, env: ProbeEnv) -> ProbeResult:
    """Torch's own kernels run wherever torch does; the device's presence is checked by the core."""
    return Accepted("torch")
