"""What rule files written for KTransformers say, and what kt understands by it. Data only.

Its operator and kernel names are aliases in the specs of the operators that took over their work,
and ``kt_core.registry.known`` has those that nothing stands for. Here are its copies of transformers'
model classes, and options that exist only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_HERE = "ktransformers.models"


def _copies() -> dict[str, tuple[str, ...]]:
    """Its model files are copies of transformers', under other module names and partly other classes."""
    families: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("modeling_llama", "llama", ("LlamaRotaryEmbedding", "LlamaModel", "LlamaRMSNorm", "LlamaMLP", "LlamaAttention", "LlamaDecoderLayer")),
        ("modeling_mixtral", "mixtral", ("MixtralRotaryEmbedding", "MixtralSparseMoeBlock", "MixtralRMSNorm", "MixtralAttention", "MixtralDecoderLayer", "MixtralModel")),
        ("modeling_qwen2_moe", "qwen2_moe", ("Qwen2MoeRotaryEmbedding", "Qwen2MoeSparseMoeBlock", "Qwen2MoeRMSNorm", "Qwen2MoeMLP", "Qwen2MoeAttention", "Qwen2MoeDecoderLayer", "Qwen2MoeModel")),
        ("modeling_qwen3_moe", "qwen3_moe", ("Qwen3MoeRotaryEmbedding", "Qwen3MoeSparseMoeBlock", "Qwen3MoeRMSNorm", "Qwen3MoeMLP", "Qwen3MoeAttention", "Qwen3MoeDecoderLayer", "Qwen3MoeModel")),
        ("modeling_qwen3_next", "qwen3_next", ("Qwen3NextRotaryEmbedding", "Qwen3NextSparseMoeBlock", "Qwen3NextRMSNorm", "Qwen3NextMLP", "Qwen3NextAttention", "Qwen3NextGatedDeltaNet", "Qwen3NextDecoderLayer", "Qwen3NextModel")),
        ("modeling_glm4_moe", "glm4_moe", ("Glm4MoeRotaryEmbedding", "Glm4MoeMoE", "Glm4MoeRMSNorm", "Glm4MoeMLP", "Glm4MoeAttention", "Glm4MoeTopkRouter", "Glm4MoeDecoderLayer", "Glm4MoeModel")),
        ("modeling_deepseek_v3", "deepseek_v3", ("DeepseekV3RotaryEmbedding", "DeepseekV3MoE", "DeepseekV3RMSNorm", "DeepseekV3MLP", "DeepseekV3Attention", "DeepseekV3DecoderLayer", "DeepseekV3Model")),
        ("modeling_deepseek", "deepseek_v2", ("DeepseekV2RotaryEmbedding", "DeepseekV2RMSNorm", "DeepseekV2MLP", "DeepseekV2Attention", "DeepseekV2DecoderLayer", "DeepseekV2Model")),
    )  # fmt: skip
    found = {
        f"{_HERE}.{theirs}.{cls}": (f"transformers.models.{family}.modeling_{family}.{cls}",)
        for theirs, family, classes in families
        for cls in classes
    }
    v2 = "transformers.models.deepseek_v2.modeling_deepseek_v2"
    v3 = "transformers.models.deepseek_v3.modeling_deepseek_v3"
    # transformers has one rotary class for all scalings, and other names for some classes.
    found |= {
        f"{_HERE}.modeling_deepseek.DeepseekV2YarnRotaryEmbedding": (f"{v2}.DeepseekV2RotaryEmbedding",),
        f"{_HERE}.modeling_deepseek.DeepseekV2MoE": (f"{v2}.DeepseekV2Moe",),
        f"{_HERE}.modeling_deepseek.MoEGate": (f"{v2}.DeepseekV2TopkRouter",),
        f"{_HERE}.modeling_deepseek_v3.DeepseekV3YarnRotaryEmbedding": (f"{v3}.DeepseekV3RotaryEmbedding",),
        f"{_HERE}.modeling_deepseek_v3.MoEGate": (f"{v3}.DeepseekV3TopkRouter",),
    }  # fmt: skip
    return found


MODEL_CLASSES: Mapping[str, tuple[str, ...]] = _copies()
"""Its model class -> the classes of transformers that ``match.class`` then means."""

MODELS_PREFIX = f"{_HERE}."
NO_MODEL: Mapping[str, str] = {
    "modeling_smallthinker": "transformers has no SmallThinker",
}
"""Model files of KTransformers without a counterpart, and why."""


@dataclass(frozen=True)
class Option:
    """A kwarg of KTransformers that an operator here does not have.

    ``harmless`` are values that change nothing, so that they are taken and left out; ``why`` says what
    the option was, ``help`` what to do about any other value.
    """

    why: str
    help: str
    harmless: tuple[Any, ...] = ()
    always: bool = False
    """Every value is harmless."""
    of_kernel: bool = False
    """A kernel may well have an option of this name, so nothing is said while one is not installed."""


OPTIONS: Mapping[str, Option] = {
    "generate_linear_type": Option(
        "KTransformers took this key without reading it", "generate_op: {value}"
    ),
    "prefill_linear_type": Option(
        "KTransformers took this key without reading it", "prefill_op: {value}"
    ),
    "generate_mlp_type": Option("an old name that KTransformers no longer reads", "generate_op: {value}"),
    "prefill_mlp_type": Option("an old name that KTransformers no longer reads", "prefill_op: {value}"),
    "device": Option(
        "here each phase has its own device",
        "generate_device: {value}, and prefill_device: {value}",
    ),
    "per_layer_prefill_intput_threshold": Option(
        "layer-wise prefill does not exist here: kernels of both phases stay loaded",
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
        "absorbed prefill does not exist here",
        "absorb_for_prefill: false",
        (False,),
    ),
    "dump_enable": Option("dumps do not exist here", "delete dump_enable", (False,)),
    "dump_dir": Option("dumps do not exist here", "delete dump_dir", always=True),
}  # fmt: skip
"""Kwargs that only KTransformers has."""
