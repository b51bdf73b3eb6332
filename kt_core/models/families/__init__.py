"""One module per architecture; adding one means adding a line here and to meson.build."""

from kt_core.models.families.deepseek import DeepseekV2, DeepseekV3
from kt_core.models.families.gemma3 import Gemma3
from kt_core.models.families.glm4_moe import Glm4Moe
from kt_core.models.families.gpt_oss import GptOss
from kt_core.models.families.llama import InternLM2, Llama
from kt_core.models.families.minimax_m2 import MiniMaxM2
from kt_core.models.families.mixtral import Mixtral
from kt_core.models.families.qwen2 import Qwen2
from kt_core.models.families.qwen2_moe import Qwen2Moe
from kt_core.models.families.qwen3 import Qwen3
from kt_core.models.families.qwen3_moe import Qwen3Moe
from kt_core.models.families.qwen3_next import Qwen3Next
from kt_core.models.families.smallthinker import SmallThinker
from kt_core.models.family import Family

FAMILIES: tuple[Family, ...] = (
    DeepseekV2(),
    DeepseekV3(),
    Gemma3(),
    Glm4Moe(),
    GptOss(),
    Llama(),
    InternLM2(),
    MiniMaxM2(),
    Mixtral(),
    Qwen2(),
    Qwen2Moe(),
    Qwen3(),
    Qwen3Moe(),
    Qwen3Next(),
    SmallThinker(),
)

WITHOUT_MODEL = {
    "arctic": "Arctic's code comes with its checkpoint only",
    "grok": "Grok's code comes with its checkpoint only",
}
"""Architectures that GGUF files are known to have and no class of transformers computes."""

__all__ = ["FAMILIES", "WITHOUT_MODEL"]
