"""Norms, attention over a cache and routers against float64, and a whole captured model."""

from __future__ import annotations

import pytest
import torch

from kt_core.testing.step_oracle import attention_oracle, head_oracle, norm_oracle

pytestmark = pytest.mark.gpu

# One rounding of the result to the dtype, and sums in float32.
BOUND = {torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
DTYPES = list(BOUND)


@pytest.fixture(scope="module")
def ops():
    return pytest.importorskip("kt_ops_cuda.decode_ops")


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def check(actual, expected):
    bound = BOUND[actual.dtype] * float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 2048), (3, 8), (70, 7168), (1, 5, 4, 128), (2, 16392)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm(ops, dtype, shape, offset):
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype, seed=1)
    check(ops.rms_norm(x, weight, 1e-6, offset), norm_oracle(x, weight, 1e-6, offset))
    residual = randn(*shape, dtype=dtype, seed=2)
    total, y = ops.add_rms_norm(x, residual, weight, 1e-6, offset)
    assert torch.equal(total, (x.float() + residual.float()).to(dtype))
    check(y, norm_oracle(total, weight, 1e-6, offset))


def test_norm_of_a_view_and_of_a_broken_row(ops):
    wide = randn(6, 128, dtype=torch.bfloat16)
    weight = randn(64, dtype=torch.bfloat16, seed=1)
    check(ops.rms_norm(wide[:, 64:], weight, 1e-6, 0.0), norm_oracle(wide[:, 64:], weight, 1e-6))
    wide[2, 70] = float("nan")
    y = ops.rms_norm(wide[:, 64:], weight, 1e-6, 0.0)
    assert y[2].isnan().all()
    assert not y[[0, 1, 3, 4, 5]].isnan().any()


ATTENTION = [
    # q heads, kv heads, head dim, rotary, room, position, window, norms
    (32, 4, 128, 128, 512, 0, 0, True),
    (32, 4, 128, 128, 512, 63, 0, True),
    (32, 4, 128, 128, 512, 64, 0, True),
    (32, 4, 128, 128, 8192, 5000, 0, True),
    (9, 3, 64, 64, 512, 200, 0, False),
    (32, 2, 128, 64, 1024, 1023, 0, True),
    (8, 8, 256, 256, 512, 300, 0, False),
    (24, 1, 128, 128, 2048, 1500, 0, True),
    (32, 8, 128, 128, 4096, 4000, 1000, False),
    (32, 8, 128, 128, 4096, 10, 64, False),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_over_a_cache(ops, dtype, case):
    q_heads, kv_heads, dim, rotary, room, position, window, norms = case
    q, k, v = (randn(1, 1, n * dim, dtype=dtype, seed=n) for n in (q_heads, kv_heads, kv_heads))
    keys, values = (randn(1, kv_heads, room, dim, dtype=dtype, seed=s) for s in (7, 8))
    keys[:, :, position + 1 :] = float("nan")  # unused room must not be read
    values[:, :, position + 1 :] = float("nan")
    angle = randn(1, 1, rotary // 2, seed=3)
    angle = torch.cat([angle, angle], -1)
    cosine, sine = angle.cos().to(dtype), angle.sin().to(dtype)
    weights = [randn(dim, dtype=dtype, seed=s) for s in (4, 5)] if norms else [None, None]
    where = torch.tensor([position], device="cuda")
    partial, arrived = ops.attend_scratch(q_heads, kv_heads, dim, room, q.device)
    scale = dim**-0.5

    def head(x, weight):
        return head_oracle(x.view(-1, dim), weight, 1e-6, (cosine[0, 0], sine[0, 0]))

    new_key = head(k, weights[1])
    all_keys, all_values = keys[0].double(), values[0].double()
    all_keys[:, position], all_values[:, position] = new_key, v.view(-1, dim).double()
    expected = attention_oracle(
        head(q, weights[0]),
        all_keys[:, : position + 1],
        all_values[:, : position + 1],
        window,
        scale,
    )
    for _ in range(3):  # what is left in the scratch must serve the next call
        y = ops.attend(
            q, k, v, cosine, sine, *weights, keys, values, where, partial, arrived,
            ops.chunk_of(room), window, 1e-6, scale,
        )  # fmt: skip
        check(y, expected)
    check(keys[0, :, position], new_key)
    assert torch.equal(values[0, :, position].reshape(-1), v.reshape(-1))
    assert not arrived.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "hidden", "experts", "top_k"),
    [(1, 2048, 128, 8), (8, 4096, 8, 2), (3, 72, 1024, 32), (2, 64, 60, 4), (2, 64, 384, 8)],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_router(ops, dtype, tokens, hidden, experts, top_k, normalize):
    x = randn(tokens, hidden, dtype=dtype)
    weight = randn(experts, hidden, dtype=dtype, seed=1) / hidden**0.5
    logits, scores, ids = ops.router(x, weight, top_k, normalize)
    expected = (x.double() @ weight.double().T).softmax(-1)
    top, places = expected.topk(top_k, -1)
    assert torch.equal(ids, places)
    check(scores, top / top.sum(-1, keepdim=True) if normalize else top)
    torch.testing.assert_close(logits.double().softmax(-1), expected, rtol=1e-3, atol=1e-5)


def test_router_survives_a_broken_row(ops):
    x = randn(3, 64, dtype=torch.bfloat16)
    x[1, 5] = float("nan")
    weight = randn(16, 64, dtype=torch.bfloat16, seed=1)
    _, scores, ids = ops.router(x, weight, 4, True)
    assert ids.min() >= -1
    assert ids.max() < 16
    assert (ids[[0, 2]] >= 0).all()
    assert scores[[0, 2]].isfinite().all()


def test_a_captured_model_answers_as_step_by_step(tmp_path):
    from kt_core import load
    from kt_core.models.hf import dynamic_cache, forward_logits
    from kt_core.runtime.graph import GraphDecoder, graph_device
    from kt_core.testing.tiny import write_tiny_llama

    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file, layers=3, hidden=128, heads=2, kv_heads=1)
    loaded = load(file, rules="gpu", dtype="float16", device="cuda:0")
    names = {module.operator for module in loaded.plan.modules}
    assert {"kt_ops_cuda.Attention", "kt_ops_cuda.RMSNorm"} <= names
    ids = torch.arange(3, 43)[None]
    with torch.inference_mode():
        cache = dynamic_cache(loaded.model)
        forward_logits(loaded.model, ids[:, :20], cache)
        device = graph_device(loaded.model, cache)
        decoder = GraphDecoder(loaded.model, cache, 100, device)
        for at in range(20, 40):
            step = ids[:, at : at + 1]
            actual = decoder.step(step).float().clone()
            expected = forward_logits(loaded.model, step, cache)[0, -1].float()
            bound = 1e-2 * float(expected.abs().max())  # float16 through three layers
            torch.testing.assert_close(actual, expected, rtol=0, atol=bound)
    greedy = loaded.generate(ids, 12, use_cuda_graph=True)
    assert greedy.tokens == loaded.generate(ids, 12, use_cuda_graph=True).tokens
