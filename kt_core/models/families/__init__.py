"""One module per architecture; adding one means adding a line here and to meson.build."""

from kt_core.models.families.llama import Llama
from kt_core.models.families.qwen3_moe import Qwen3Moe
from kt_core.models.family import Family

FAMILIES: tuple[Family, ...] = (Llama(), Qwen3Moe())

__all__ = ["FAMILIES"]
