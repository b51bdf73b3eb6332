"""KT735, KT736: kt quantize."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT735",
        "This kernel cannot be prepared for like that",
        "kt quantize loads every layer into a kernel that keeps its own form of the weights on disk. "
        "A kernel without a cache_dir option computes on the weights as they are stored, so there is "
        "nothing to prepare; other options must be ones that the kernel takes (kt plugins lists "
        "them).",
        'KT735 "kt_ops_cpu.experts" computes on weights as they are stored; there is nothing to keep\n'
        "  help: use it in a rule file as it is",
    ),
    Code(
        "KT736",
        "There are no experts to quantise",
        "The model has no layers with routed experts, so kt quantize has nothing to do.",
        "KT736 SmolLM2-135M-Instruct.Q4_1.gguf has no layers with experts",
    ),
)
