"""What rule files written for KTransformers say, and what kt understands by it. Data only.

Its operator and kernel names are aliases in the specs of the operators that took over their work,
and ``kt_core.registry.known`` has those that nothing stands for. Here are its copies of
transformers' model classes, and options that exist only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HERE = "ktransformers.models"


# Its model files are copies of transformers', under other module names: file, family, the beginning
# of its class names, their ends.
_COPIES = (
    ("modeling_llama", "llama", "Llama", "RotaryEmbedding RMSNorm MLP Attention"),
    ("modeling_mixtral", "mixtral", "Mixtral", "RotaryEmbedding RMSNorm Attention SparseMoeBlock"),
    (
        "modeling_qwen2_moe",
        "qwen2_moe",
        "Qwen2Moe",
        "RotaryEmbedding RMSNorm MLP Attention SparseMoeBlock",
    ),
    (
        "modeling_qwen3_moe",
        "qwen3_moe",
        "Qwen3Moe",
        "RotaryEmbedding RMSNorm MLP Attention SparseMoeBlock",
    ),
    (
        "modeling_qwen3_next",
        "qwen3_next",
        "Qwen3Next",
        "RotaryEmbedding RMSNorm MLP Attention SparseMoeBlock GatedDeltaNet",
    ),
    ("modeling_glm4_moe", "glm4_moe", "Glm4Moe", "RotaryEmbedding RMSNorm MLP Attention MoE"),
    (
        "modeling_deepseek_v3",
        "deepseek_v3",
        "DeepseekV3",
        "RotaryEmbedding RMSNorm MLP Attention MoE",
    ),
    ("modeling_deepseek", "deepseek_v2", "DeepseekV2", "RotaryEmbedding RMSNorm MLP Attention"),
)
# What transformers calls otherwise. It has one rotary class for all scalings.
_OTHERWISE = (
    ("modeling_deepseek.DeepseekV2YarnRotaryEmbedding", "deepseek_v2", "DeepseekV2RotaryEmbedding"),
    ("modeling_deepseek.DeepseekV2MoE", "deepseek_v2", "DeepseekV2Moe"),
    ("modeling_deepseek.MoEGate", "deepseek_v2", "DeepseekV2TopkRouter"),
    (
        "modeling_deepseek_v3.DeepseekV3YarnRotaryEmbedding",
        "deepseek_v3",
        "DeepseekV3RotaryEmbedding",
    ),
    ("modeling_deepseek_v3.MoEGate", "deepseek_v3", "DeepseekV3TopkRouter"),
    ("modeling_glm4_moe.Glm4MoeTopkRouter", "glm4_moe", "Glm4MoeTopkRouter"),
    # kt's own SmallThinker is built of Llama's norms and angles.
    ("modeling_smallthinker.SmallthinkerRMSNorm", "llama", "LlamaRMSNorm"),
    ("modeling_smallthinker.SmallthinkerRotaryEmbedding", "llama", "LlamaRotaryEmbedding"),
)


def _classes() -> dict[str, tuple[str, ...]]:
    ends = "DecoderLayer Model ForCausalLM"
    pairs = [
        (f"{file}.{begin}{end}", family, f"{begin}{end}")
        for file, family, begin, more in _COPIES
        for end in f"{more} {ends}".split()
    ]
    copies: dict[str, tuple[str, ...]] = {
        f"{_HERE}.{theirs}": (f"transformers.models.{family}.modeling_{family}.{ours}",)
        for theirs, family, ours in (*pairs, *_OTHERWISE)
    }
    own: dict[str, tuple[str, ...]] = {
        f"{_HERE}.modeling_smallthinker.Smallthinker{end}": (
            f"kt_core.models.hf_smallthinker.SmallThinker{end}",
        )
        for end in ["Attention", "MoeBlock", "DecoderLayer", "Model", "ForCausalLM"]
    }
    return copies | own


MODEL_CLASSES: Mapping[str, tuple[str, ...]] = _classes()
"""Its model class -> the classes of transformers that ``match.class`` then means."""

MODELS_PREFIX = f"{_HERE}."

NO_MODEL: Mapping[str, str] = {
    "modeling_smallthinker": "no published SmallThinker has that part",
}
"""Model files of KTransformers without a counterpart, and why."""


OLD_PATHS: Mapping[str, tuple[str, str]] = {"modeling_mixtral": ("block_sparse_moe", "mlp")}
"""Its copies of old model files -> a part of module paths there, and what transformers calls it now."""


ROUTERS_ARE_LINEAR: Mapping[str, str] = {
    "modeling_mixtral": "model.layers.5.block_sparse_moe.gate",
    "modeling_qwen2_moe": "model.layers.5.mlp.gate",
    "modeling_qwen3_moe": "model.layers.5.mlp.gate",
    "modeling_qwen3_next": "model.layers.5.mlp.gate",
}
"""Its model files in which a router is an ordinary linear layer, with the path of one."""


RENAMED: Mapping[str, str] = {
    "QuantizedLinearMarlin": "KLinearMarlin",
    "QuantizedLinearTorch": "KLinearTorch",
    "MLPCPUExperts": "KExpertsCPU",
    "MLPCUDAExperts": "KExpertsMarlin",
    "MLPExpertsTorch": "KExpertsTorch",
}
"""Kernel names of its oldest documents, and what they are called since."""


@dataclass(frozen=True)
class Option:
    """A kwarg of KTransformers that an operator here does not have.

    ``harmless`` are values that change nothing, so that they are taken and left out; ``why`` says
    what the option was, ``help`` what to do about any other value.
    """

    why: str
    help: str
    harmless: tuple[Any, ...] = ()
    always: bool = False
    """Every value is harmless."""
    of_kernel: bool = False
    """A kernel may well have an option of this name, so nothing is said while one is not
    installed."""


_OLD_NAME = "an old name that KTransformers no longer reads"

OPTIONS: Mapping[str, Option] = {
    "generate_linear_type": Option(
        "KTransformers took this key without reading it", "generate_op: {value}"
    ),
    "prefill_linear_type": Option(
        "KTransformers took this key without reading it", "prefill_op: {value}"
    ),
    "generate_mlp_type": Option(_OLD_NAME, "generate_op: {value}"),
    "prefill_mlp_type": Option(_OLD_NAME, "prefill_op: {value}"),
    "device": Option(
        "here each phase has its own device",
        "generate_device: {value}, and prefill_device: {value}",
    ),
    "per_layer_prefill_intput_threshold": Option(
        "layer-wise prefill is an option of the decoder stack (kt_core.DecoderModel)",
        "delete per_layer_prefill_intput_threshold, or set it to 0",
        (0, None),
    ),
    "backend": Option(
        "kernels here have one implementation each, chosen by name",
        "name the kernel by generate_op instead, and delete backend",
        ("llamafile",),
        of_kernel=True,
    ),
    "absorb_for_prefill": Option(
        "only latent attention (kt_core.MlaAttention) has an absorbed form",
        "absorb_for_prefill: false",
        (False,),
    ),
    "dump_enable": Option("dumps do not exist here", "delete dump_enable", (False,)),
    "dump_dir": Option("dumps do not exist here", "delete dump_dir", always=True),
}
"""Kwargs that only KTransformers has."""
