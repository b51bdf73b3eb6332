"""Norms, attention over a cache and routers of every variant against float64."""

from __future__ import annotations

import pytest
import torch

from kt_core.errors import KernelError
from kt_core.models.hf_cache import AppendingLayer
from kt_core.testing.step_oracle import attention_oracle, head_oracle, norm_oracle
from kt_ops_cpu import library, step

KERNELS = step._KERNELS
# One rounding of the result to the dtype; sums are float32.
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = list(BOUND)


@pytest.fixture(params=library.variant_names(library.native()))
def variant(request):
    before = library.variant()
    library.set_variant(request.param)
    yield request.param
    library.set_variant(before)


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def check(actual, expected):
    bound = BOUND[actual.dtype] * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 2048), (3, 7), (16, 576), (1, 5, 4, 129)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm(variant, dtype, shape, offset):
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype, seed=1)
    check(KERNELS.norm(x, weight, 1e-6, offset), norm_oracle(x, weight, 1e-6, offset))
    residual = randn(*shape, dtype=dtype, seed=2)
    total, y = KERNELS.add_norm(x, residual, weight, 1e-6, offset)
    assert torch.equal(total, (x.float() + residual.float()).to(dtype))
    check(y, norm_oracle(total, weight, 1e-6, offset))


def test_norm_of_a_view_and_of_a_broken_row():
    wide = randn(6, 128)
    weight = randn(64, seed=1)
    check(KERNELS.norm(wide[:, 64:], weight, 1e-6, 0.0), norm_oracle(wide[:, 64:], weight, 1e-6))
    wide[2, 70] = float("nan")
    y = KERNELS.norm(wide[:, 64:], weight, 1e-6, 0.0)
    assert y[2].isnan().all()
    assert not y[[0, 1, 3, 4, 5]].isnan().any()


ATTENTION = [
    # q heads, kv heads, head dim, rotary, tokens before, window, norms
    (32, 4, 128, 128, 1, 0, True),
    (32, 4, 128, 128, 700, 0, True),
    (9, 3, 64, 64, 256, 0, False),
    (32, 2, 128, 64, 1023, 0, True),
    (3, 1, 72, 40, 90, 0, True),
    (8, 8, 256, 256, 300, 50, False),
    (32, 8, 80, 80, 2000, 1000, False),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_over_a_cache(variant, dtype, case):
    q_heads, kv_heads, dim, rotary, before, window, norms = case
    layer = AppendingLayer()
    past = [randn(1, kv_heads, before, dim, dtype=dtype, seed=s) for s in (7, 8)]
    layer.update(*past)
    angle = randn(1, 1, rotary // 2, seed=3)
    angle = torch.cat([angle, angle], -1)
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
    weights = [randn(dim, dtype=dtype, seed=s) for s in (4, 5)] if norms else [None, None]

    def head(x, weight):
        return head_oracle(x.view(-1, dim), weight, 1e-6, (cosine[0, 0], sine[0, 0]))

    keys, values = (part[0].double() for part in past)
    for token in range(3):
        q, k, v = (
            randn(1, 1, n * dim, dtype=dtype, seed=10 * token + n)
            for n in (q_heads, kv_heads, kv_heads)
        )
        keys = torch.cat([keys, head(k, weights[1])[:, None]], 1)
        values = torch.cat([values, v.view(-1, 1, dim).double()], 1)
        expected = attention_oracle(head(q, weights[0]), keys, values, window, dim**-0.5)
        y = KERNELS.attend(
            q, k, v, (cosine, sine), weights, layer, window=window, eps=1e-6, scale=dim**-0.5
        )
        check(y, expected)
    assert layer.get_seq_length() == before + 3
    check(layer.keys[0], keys)
    check(layer.values[0], values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "hidden", "experts", "top_k"),
    [(1, 2048, 128, 8), (8, 512, 8, 2), (3, 72, 1024, 32), (2, 64, 60, 60)],
)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooled", [True, False])
def test_router(variant, monkeypatch, dtype, tokens, hidden, experts, top_k, normalize, pooled):
    monkeypatch.setattr(step, "_POOLED_FROM", 1 if pooled else 10**6)
    x = randn(tokens, hidden, dtype=dtype)
    weight = randn(experts, hidden, seed=1).div(hidden**0.5).to(dtype)
    logits, scores, ids = KERNELS.route(x, weight, top_k, normalize)
    true = x.double() @ weight.double().T
    # torch rounds these sums to the dtype; the pool's product splits activations in two terms.
    limit = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(logits.double(), true, rtol=0, atol=limit * float(true.abs().max()))
    expected = logits.double().softmax(-1)
    top, _ = expected.topk(top_k, -1)
    assert torch.equal(expected.gather(-1, ids), top)
    assert all(len(set(row)) == top_k for row in ids.tolist())
    check(scores, top / top.sum(-1, keepdim=True) if normalize else top)


def test_router_survives_a_broken_row():
    x = randn(3, 64)
    x[1, 5] = float("nan")
    weight = randn(16, 64, seed=1)
    _, scores, ids = KERNELS.route(x, weight, 4, True)
    assert ids[1].tolist() == [-1] * 4
    assert scores[1].isnan().all()
    assert (ids[[0, 2]] >= 0).all()
    assert scores[[0, 2]].isfinite().all()


def test_a_model_decodes_as_with_transformers_modules(tmp_path):
    from kt_core import load
    from kt_core.models.hf import dynamic_cache, forward_logits
    from kt_core.testing.tiny import write_tiny_llama

    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file, layers=3)
    loaded = load(file, rules="cpu", dtype="float32", device="cpu")
    names = {module.operator for module in loaded.plan.modules}
    assert {f"kt_ops_cpu.{n}" for n in ("Attention", "DecoderLayer", "RMSNorm")} <= names
    ids = torch.arange(3, 43)[None]
    with torch.inference_mode():
        expected = original(ids).logits[0]
    cache = dynamic_cache(loaded.model)
    forward_logits(loaded.model, ids[:, :20], cache)
    for at in range(20, 40):
        actual = forward_logits(loaded.model, ids[:, at : at + 1], cache)[0, -1]
        # Weights are float32; only the order of sums differs.
        limit = 1e-4 * float(expected[at].abs().max())
        torch.testing.assert_close(actual, expected[at], rtol=0, atol=limit)


def test_a_residual_of_another_dtype_is_refused():
    x, residual = randn(1, 8, dtype=torch.bfloat16), randn(1, 8)
    with pytest.raises(KernelError, match="kt_cpu_norm"):
        KERNELS.add_norm(x, residual, randn(8, dtype=torch.bfloat16), 1e-6, 0.0)
