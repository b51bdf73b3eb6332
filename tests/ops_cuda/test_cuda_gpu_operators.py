"""The contract of module operators, for the norm and the attention of this distribution."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kt_core.testing import attention_inputs, check_operator

pytestmark = pytest.mark.gpu

# In float32 the norm differs by the order of its sums; half precisions round once instead of twice.
NORM_TOLERANCE = 1e-6
# torch's attention in float32 on a GPU may multiply in TF32, with 10 bits.
ATTENTION_TOLERANCE = 2e-3


def test_norm():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    original = LlamaRMSNorm(256)
    original.weight.data = torch.linspace(0.5, 2, 256)
    check_operator(
        "kt_ops_cuda.RMSNorm",
        original=original,
        tolerance=NORM_TOLERANCE,
        device="cuda",
        rowwise=True,
    )


def test_attention(kt_tiny_llama):
    original = kt_tiny_llama.reference(hidden=256).model.layers[0].self_attn
    check_operator(
        "kt_ops_cuda.Attention",
        original=original,
        config=original.config,
        inputs=partial(attention_inputs, original.config),
        tolerance=ATTENTION_TOLERANCE,
        device="cuda",
    )
