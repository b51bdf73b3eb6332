"""What the shipped rule files of each family need to know. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Described:
    """What the files of one family need to know.

    ``layers`` is the depth of the largest published model, which is what is spread over several
    GPUs; 0 for families whose models fit on one. ``kept`` is a linear layer, small or delicate, that
    no kernel may quantise again. ``block`` is the class of the MoE blocks, inside its model's file in
    transformers, that ``kt_core.MoeBlock`` can stand for. ``latent``: multi-head latent attention.
    ``part`` is what a layer calls its MoE block.
    """

    folder: str
    architectures: tuple[str, ...]
    title: str
    experts: bool = False
    layers: int = 0
    kept: str = ""
    fused: str = ""
    """Which operators of kt-ops-cuda cover its modules: "attention", "attention router"."""
    block: str = ""
    latent: bool = False
    part: str = "mlp"

    @property
    def block_class(self) -> str:
        """The qualified name of ``block``."""
        return f"transformers.models.{self.folder}.modeling_{self.folder}.{self.block}"


_MLA = "kv_b_proj"
_GATED = "shared_expert_gate"

FAMILIES = (
    Described(
        "deepseek_v2",
        ("DeepseekV2ForCausalLM",),
        "DeepSeek-V2 and V2-Lite",
        True,
        60,
        _MLA,
        block="DeepseekV2Moe",
        latent=True,
    ),
    Described(
        "deepseek_v3",
        ("DeepseekV3ForCausalLM",),
        "DeepSeek-V3, R1, Moonlight and Kimi-K2",
        True,
        61,
        _MLA,
        block="DeepseekV3MoE",
        latent=True,
    ),
    Described("gemma3", ("Gemma3ForCausalLM",), "Gemma 3"),
    Described(
        "glm4_moe",
        ("Glm4MoeForCausalLM",),
        "GLM-4.5 and GLM-4.5-Air",
        True,
        92,
        fused="attention",
        block="Glm4MoeMoE",
    ),
    Described("gpt_oss", ("GptOssForCausalLM",), "gpt-oss 20B and 120B", True, 36),
    Described(
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM"),
        "Llama, Mistral, InternLM2.5 and SmolLM2",
        fused="attention",
    ),
    Described("minimax_m2", ("MiniMaxM2ForCausalLM",), "MiniMax-M2", True, 62),
    Described(
        "mixtral",
        ("MixtralForCausalLM",),
        "Mixtral 8x7B and 8x22B",
        True,
        56,
        fused="attention router",
    ),
    Described("qwen2", ("Qwen2ForCausalLM",), "Qwen2 and Qwen2.5", fused="attention"),
    Described(
        "qwen2_moe",
        ("Qwen2MoeForCausalLM",),
        "Qwen2-MoE",
        True,
        0,
        _GATED,
        "attention router",
        "Qwen2MoeSparseMoeBlock",
    ),
    Described("qwen3", ("Qwen3ForCausalLM",), "Qwen3", fused="attention"),
    Described(
        "qwen3_moe", ("Qwen3MoeForCausalLM",), "Qwen3-MoE", True, 94, fused="attention router"
    ),
    Described(
        "qwen3_next",
        ("Qwen3NextForCausalLM",),
        "Qwen3-Next",
        True,
        48,
        _GATED,
        block="Qwen3NextSparseMoeBlock",
    ),
    Described(
        "smallthinker",
        ("SmallThinkerForCausalLM",),
        "SmallThinker 4B-A0.6B and 21B-A3B",
        True,
        part="block_sparse_moe",
    ),
)
