"""KT550 to KT579: kernels of kt-ops-cuda."""

from __future__ import annotations

from kt_core.errors.codes import Code

CODES = (
    Code(
        "KT550",
        "The compiled CUDA library does not load",
        "kt-ops-cuda brings one shared library beside its Python files. It is missing, damaged or "
        "from another version, usually after an interrupted upgrade or a checkout that was never "
        "built. Reinstall the distribution.",
        "KT550 the compiled library of kt-ops-cuda does not load\n"
        "  help: pip install --force-reinstall kt-ops-cuda",
    ),
    Code(
        "KT551",
        "No code for this GPU",
        "The library holds machine code for the architectures it was built with and PTX for newer "
        "ones; compute capability 8.0 is the least. `kt doctor` shows both. Build the distribution "
        "with -Csetup-args=-Darchs=..., or place the module elsewhere.",
        "KT551 model.layers.0.self_attn.q_proj has no code for this GPU",
    ),
    Code(
        "KT552",
        "Activations a CUDA kernel cannot take",
        "The kernels compute on float16 or bfloat16 activations on the device their weights lie on, "
        "with the width the weights have. Nothing was launched.",
        "KT552 lm_head cannot compute on torch.float32 activations",
    ),
    Code(
        "KT553",
        "Weights or options a CUDA kernel cannot serve",
        "The stored type cannot be kept exactly and quantising it again was not allowed, or gate and "
        "up of an expert are stored differently, or an option contradicts the type. "
        "`requantize: true` allows a second quantisation; its error is logged.",
        "KT553 model.layers.3.mlp.down_proj cannot serve its weights\n"
        "  Q3_K cannot be kept exactly\n"
        "  help: requantize: true",
    ),
    Code(
        "KT554",
        "Out of GPU memory while packing",
        "Weights are copied to the GPU and rearranged there piece by piece, which needs some memory "
        "beside what stays. Place fewer modules on this GPU.",
        "KT554 model.layers.61.mlp.experts does not fit on cuda:0 while it is packed",
    ),
    Code(
        "KT555",
        "The GPU refused a launch",
        "The driver returned an error for a launch whose arguments were checked before. A library "
        "that ran earlier may have left the device in error; the facts hold the driver's words.",
        "KT555 lm_head was refused by the GPU\n  an illegal memory access was encountered",
    ),
    Code(
        "KT556",
        "A CUDA kernel was called before its weights were loaded",
        "A plan loads each kernel once before the model runs. This is a mistake in the caller.",
        "KT556 lm_head was called before its weights were loaded",
    ),
    Code(
        "KT557",
        "An expert that does not exist",
        "A router chose an id outside the layer's experts; -1 adds nothing, any other must exist. "
        "Inside a captured CUDA graph such ids are skipped, since a graph cannot raise.",
        "KT557 model.layers.0.mlp.experts was asked for an expert it does not have",
    ),
    Code(
        "KT558",
        "A GPTQ or AWQ checkpoint contradicts itself",
        "The packed tensors of one layer must agree in shape and group size, and rows must be in "
        "their natural order (no activation reordering that splits a group).",
        "KT558 qweight and scales disagree\n  qweight is for 4096 rows, scales for 2048",
    ),
)
