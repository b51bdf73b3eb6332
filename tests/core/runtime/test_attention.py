"""The CPU attention equals exact attention within bfloat16's rounding, in every shape it covers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from kt_core.models.hf_attention import attention

# Scores and weights are rounded to bfloat16 (8 bits) once each; values average out over the row.
TOLERANCE = 2e-2


def inputs(heads, kv_heads, rows, columns, dim, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(rows + columns)
    return [
        torch.randn(1, h, n, dim, generator=generator).to(dtype)
        for h, n in ((heads, rows), (kv_heads, columns), (kv_heads, columns))
    ]


def exact(query, key, value, visible):
    return functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), attn_mask=visible, enable_gqa=True
    ).transpose(1, 2)


def module(group):
    return SimpleNamespace(is_causal=True, num_key_value_groups=group)


def causal(rows, columns):
    return torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)


@pytest.mark.parametrize("rows", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (9, 3)])
def test_causal_prompt_and_single_token(rows, heads):
    query, key, value = inputs(*heads, rows, rows, 32)
    found, _ = attention(module(heads[0] // heads[1]), query, key, value, None)
    assert found.dtype is torch.bfloat16
    error = (found.double() - exact(query, key, value, causal(rows, rows))).norm()
    assert error / value.double().norm() < TOLERANCE


@pytest.mark.parametrize("columns", [1, 40, 513])
def test_one_token_sees_the_whole_cache(columns):
    query, key, value = inputs(8, 2, 1, columns, 64)
    found, _ = attention(module(4), query, key, value, None, scaling=0.1)
    expected = exact(query * (0.1 * 8), key, value, None)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-2)


@pytest.mark.parametrize("per_head", [False, True])
def test_a_mask_is_obeyed(per_head):
    query, key, value = inputs(8, 2, 150, 200, 32)
    visible = causal(150, 200)[None, None] & (torch.arange(200) % 7 != 3)
    if per_head:
        visible = visible.expand(1, 8, -1, -1)
    found, _ = attention(module(4), query, key, value, visible)
    error = (found.double() - exact(query, key, value, visible)).norm()
    assert error / value.double().norm() < TOLERANCE


def test_hidden_keys_have_no_influence():
    query, key, value = inputs(4, 4, 20, 20, 32)
    first, _ = attention(module(1), query, key, value, None)
    key[:, :, 10:], value[:, :, 10:] = 1e4, 1e4
    second, _ = attention(module(1), query, key, value, None)
    assert torch.equal(first[:, :10], second[:, :10])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_go_to_torch(dtype):
    query, key, value = inputs(4, 2, 9, 9, 32, dtype)
    found, _ = attention(module(2), query, key, value, None)
    assert found.dtype is dtype
    torch.testing.assert_close(
        found.double(), exact(query, key, value, causal(9, 9)), rtol=0, atol=5e-3
    )
