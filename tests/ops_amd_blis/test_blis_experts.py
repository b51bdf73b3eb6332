"""The layer of experts against exact arithmetic with the same roundings, and its edges."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from kt_ops_amd_blis.experts import ACTIVATIONS, MoeInt8

from kt_core.errors import KernelError
from kt_core.operators.kernel import Activation, ExpertsShape, ExpertsWeights, KernelContext
from kt_core.weights import PackedTensor, QuantType
from kt_ops_amd_blis import native, reference

pytestmark = pytest.mark.usefixtures("blis")

# Both sides round the same values to int8. Between the roundings the layer adds in float32 and its
# exponential is good to 2e-7, which now and then turns a value that lies between two int8 numbers to
# the other one: a relative 1/127 of one of hundreds of terms.
BOUND = 2e-4


def values(random, *shape):
    return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


class Layer:
    def __init__(
        self, experts, hidden, inter, top_k, *, seed=0, kind="silu", biases=False, **options
    ):
        random = np.random.default_rng(seed)
        self.random, self.options, self.kind = random, options, kind
        self.gate, self.up = (
            values(random, experts, inter, hidden),
            values(random, experts, inter, hidden),
        )
        self.down = values(random, experts, hidden, inter)
        self.shape = ExpertsShape(experts, hidden, inter, top_k)
        self.biases = (
            [values(random, experts, n) * 9 for n in (inter, inter, hidden)]
            if biases
            else [None] * 3
        )
        self.kernel = self.load()

    def load(self):
        context = KernelContext("mlp.experts", torch.float32, torch.device("cpu"), self.options)
        kernel = MoeInt8(self.shape, Activation(self.kind), context)
        stacks = [
            [
                PackedTensor(f"{e}", m.shape, QuantType.F32, m.view(np.uint8))
                for e, m in enumerate(t)
            ]
            for t in (self.gate, self.up, self.down)
        ]
        biases = [None if b is None else torch.from_numpy(b) for b in self.biases]
        kernel.load(ExpertsWeights(*stacks, *biases))
        return kernel

    def inputs(self, tokens, top_k=None):
        top_k = top_k or self.shape.top_k
        x = self.random.standard_normal((tokens, self.shape.hidden_size)).astype(np.float32)
        order = np.argsort(self.random.random((tokens, self.shape.num_experts)), axis=1)
        weights = self.random.random((tokens, top_k)).astype(np.float32)
        return x, order[:, :top_k].copy(), weights

    def forward(self, x, index, weights):
        tensors = (torch.from_numpy(np.ascontiguousarray(a)) for a in (x, index, weights))
        return self.kernel.forward(*tensors).numpy()

    def expected(self, x, index, weights):
        group = self.options.get("group_size", 0)
        return reference.experts(
            x, index, weights, self.gate, self.up, self.down, group=group, kind=self.kind
        )


def error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("group", [0, 32, 128])
@pytest.mark.parametrize(
    ("experts", "hidden", "inter", "top_k"),
    [(4, 64, 64, 2), (8, 320, 200, 3), (3, 100, 33, 3), (16, 576, 192, 16), (5, 128, 700, 1)],
)
def test_equals_reference(experts, hidden, inter, top_k, group):
    layer = Layer(experts, hidden, inter, top_k, group_size=group)
    for tokens in (1, 2, 5, 40, 300):
        inputs = layer.inputs(tokens)
        assert error(layer.forward(*inputs), layer.expected(*inputs)) < BOUND, tokens


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("group", [0, 64])
def test_activations(kind, group):
    layer = Layer(4, 128, 96, 2, kind=kind, group_size=group)
    inputs = layer.inputs(33)
    inputs[0][:] *= 20  # far into the activation's tails, and over swiglu_oai's limit
    assert error(layer.forward(*inputs), layer.expected(*inputs)) < BOUND


def test_biases():
    layer = Layer(3, 96, 80, 2, biases=True)
    x, index, weights = layer.inputs(9)
    gate_bias, up_bias, down_bias = layer.biases
    exact = np.zeros(x.shape)
    for t in range(len(x)):
        for e, w in zip(index[t], weights[t], strict=True):
            g, u = layer.gate[e] @ x[t] + gate_bias[e], layer.up[e] @ x[t] + up_bias[e]
            exact[t] += w * (layer.down[e] @ reference.activate(g, u) + down_bias[e])
    # against unquantised arithmetic, so with the error of int8; a lost bias is far above it
    assert error(layer.forward(x, index, weights), exact) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(11)
    rounded = torch.from_numpy(x).to(dtype)
    y = layer.kernel.forward(rounded, torch.from_numpy(index), torch.from_numpy(weights))
    assert y.dtype == dtype
    limit = {torch.float32: BOUND, torch.bfloat16: 4e-3, torch.float16: 6e-4}[dtype]
    assert error(y.float().numpy(), layer.expected(rounded.float().numpy(), index, weights)) < limit


def test_no_tokens_and_no_experts():
    layer = Layer(4, 128, 64, 2)
    assert layer.forward(*layer.inputs(0)).shape == (0, 128)
    x, index, weights = layer.inputs(5)
    index[:] = -1
    assert (layer.forward(x, index, weights) == 0).all()
    assert (layer.forward(x, index[:, :0], weights[:, :0]) == 0).all()


def test_minus_one_adds_nothing():
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(6)
    index[::2, 1] = -1
    without = weights.copy()
    without[::2, 1] = 0
    present = np.where(index < 0, 0, index)
    assert np.array_equal(layer.forward(x, index, weights), layer.forward(x, present, without))


@pytest.mark.parametrize("bad", [4, -2, 2**31, -(2**63), 2**62])
def test_ids_outside_the_layer(bad):
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(6)
    index[3, 1] = bad
    with pytest.raises(KernelError) as caught:
        layer.forward(x, index, weights)
    assert caught.value.code == "KT539"
    assert f"token 3, slot 1: {bad}" in str(caught.value)
    index[3, 1] = 0
    layer.forward(x, index, weights)


def test_all_tokens_on_one_expert():
    layer = Layer(4, 128, 64, 1)
    x, index, weights = layer.inputs(700)
    index[:] = 2
    assert error(layer.forward(x, index, weights), layer.expected(x, index, weights)) < BOUND


def test_the_same_expert_twice():
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(5)
    index[:, 1] = index[:, 0]
    assert error(layer.forward(x, index, weights), layer.expected(x, index, weights)) < BOUND


def test_other_top_k_than_the_shape_says():
    layer = Layer(6, 128, 64, 2)
    inputs = layer.inputs(5, top_k=5)
    assert error(layer.forward(*inputs), layer.expected(*inputs)) < BOUND


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_rows_stay_theirs(bad):
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(140)
    clean = layer.forward(x, index, weights)
    x[17, 127] = bad
    result = layer.forward(x, index, weights)
    assert np.isnan(result[17]).all()
    rest = np.arange(140) != 17
    assert np.array_equal(result[rest], clean[rest])


def test_a_zero_row_gives_zeros():
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(3)
    x[1] = 0
    assert (layer.forward(x, index, weights)[1] == 0).all()


def test_strides():
    layer = Layer(4, 128, 64, 2)
    x, index, weights = layer.inputs(8)
    clean = layer.forward(x, index, weights)
    wide = torch.zeros(8, 300)
    wide[:, 100:228] = torch.from_numpy(x)
    routing = torch.from_numpy(index), torch.from_numpy(weights)
    for view in (
        wide[:, 100:228],
        torch.from_numpy(x).T.contiguous().T,
        torch.from_numpy(x).repeat_interleave(2, 1)[:, ::2],
    ):
        assert np.array_equal(layer.kernel.forward(view, *routing).numpy(), clean)
    one = torch.from_numpy(x[:1]).expand(8, 128)
    same = layer.forward(np.repeat(x[:1], 8, 0), index, weights)
    assert np.array_equal(layer.kernel.forward(one, *routing).numpy(), same)
    turned = layer.kernel.forward(
        torch.from_numpy(x),
        routing[0].T.contiguous().T.to(torch.int32),
        routing[1].to(torch.float64),
    )
    assert np.array_equal(turned.numpy(), clean)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, i, w: (x.double(), i, w),
        lambda x, i, w: (x[:, :127], i, w),
        lambda x, i, w: (x[0], i, w),
        lambda x, i, w: (x, i.float(), w),
        lambda x, i, w: (x, i[:3], w),
        lambda x, i, w: (x, i, w[:, :1]),
        lambda x, i, w: (x, i, w.long()),
        lambda x, i, w: (x, i.reshape(-1), w.reshape(-1)),
    ],
)
def test_wrong_tensors(change):
    layer = Layer(4, 128, 64, 2)
    arguments = [torch.from_numpy(a) for a in layer.inputs(4)]
    with pytest.raises(KernelError) as caught:
        layer.kernel.forward(*change(*arguments))
    assert caught.value.code == "KT540"


def test_wrong_weights():
    layer = Layer(4, 128, 64, 2)
    layer.gate[2, 5, 7] = np.nan
    with pytest.raises(KernelError) as caught:
        layer.load()
    assert caught.value.code == "KT541"
    layer.gate = layer.gate[:3]
    with pytest.raises(KernelError) as caught:
        layer.load()
    assert caught.value.code == "KT540"


def test_unknown_activation():
    context = KernelContext("mlp.experts", torch.float32, torch.device("cpu"), {})
    with pytest.raises(KernelError) as caught:
        MoeInt8(ExpertsShape(2, 64, 64, 1), Activation("relu2"), context)
    assert caught.value.code == "KT538"


def test_called_before_it_is_loaded():
    context = KernelContext("mlp.experts", torch.float32, torch.device("cpu"), {})
    kernel = MoeInt8(ExpertsShape(2, 64, 64, 1), Activation(), context)
    with pytest.raises(KernelError, match="before its weights were loaded"):
        kernel.forward(torch.zeros(1, 64), torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1))


@pytest.mark.parametrize("group", [0, 64])
def test_same_bits_with_any_number_of_threads(monkeypatch, group):
    results = []
    for threads in (1, 2, 3, 7):
        monkeypatch.setenv("KT_CPU_THREADS", str(threads))
        layer = Layer(8, 320, 200, 3, group_size=group)
        assert native.threads() == threads
        results.append([layer.forward(*layer.inputs(tokens)) for tokens in (1, 3, 64, 300)])
    for result in results[1:]:
        for mine, first in zip(result, results[0], strict=True):
            assert np.array_equal(mine, first)


@pytest.mark.parametrize("text", ["0", "-1", "1000000", "abc", "2.5"])
def test_wrong_number_of_threads(monkeypatch, text):
    monkeypatch.setenv("KT_CPU_THREADS", text)
    with pytest.raises(KernelError) as caught:
        native.pool()
    assert caught.value.code == "KT545"


@pytest.mark.slow
def test_more_tokens_than_a_pass():
    layer = Layer(4, 64, 64, 2)
    inputs = layer.inputs(8192 + 77)
    assert error(layer.forward(*inputs), layer.expected(*inputs)) < BOUND


def test_scratch_follows_the_tokens_not_the_experts(monkeypatch):
    monkeypatch.setenv("KT_CPU_THREADS", "5")  # a pool of its own, whose scratch begins empty
    layer = Layer(64, 128, 64, 2)
    layer.forward(*layer.inputs(1))
    few = native.lib.kt_pool_scratch_bytes(native.pool())
    layer.forward(*layer.inputs(512))
    many = native.lib.kt_pool_scratch_bytes(native.pool())
    assert many - few < 512 * (128 + 2 * (64 * 5 + 64)) + 5 * 512 * 128 * 4 + (1 << 20)


def test_many_python_threads_at_once():
    layer = Layer(8, 128, 64, 2)
    inputs = [layer.inputs(n) for n in (1, 9, 64, 130)]
    expected = [layer.forward(*i) for i in inputs]
    wrong = []

    def work(which):
        results = [layer.forward(*inputs[which]) for _ in range(20)]
        wrong.extend(which for y in results if not np.array_equal(y, expected[which]))

    workers = [threading.Thread(target=work, args=(i % 4,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers)
    assert wrong == []


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_fork():
    layer = Layer(4, 128, 64, 2)
    inputs = layer.inputs(40)
    expected = layer.forward(*inputs)
    child = os.fork()
    if child == 0:
        same = np.array_equal(layer.forward(*inputs), expected)
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_stored_types_agree():
    """Plain types are read where they lie, packed ones are dequantised; the int8 values are the same."""
    from kt_core.testing.packed import random_packed

    shape = ExpertsShape(2, 256, 256, 1)
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0))
    index, weights = torch.zeros(5, 1, dtype=torch.long), torch.ones(5, 1)
    for stored in (QuantType.BF16, QuantType.F16, QuantType.Q4_K, QuantType.Q8_0, QuantType.MXFP4):
        stacks = [[random_packed(stored, (256, 256), seed=s) for s in (i, i + 9)] for i in range(3)]
        plain = [
            [
                PackedTensor("f", t.shape, QuantType.F32, t.dequantize().view(np.uint8))
                for t in stack
            ]
            for stack in stacks
        ]
        results = []
        for source in (stacks, plain):
            context = KernelContext("mlp.experts", torch.float32, torch.device("cpu"), {})
            kernel = MoeInt8(shape, Activation(), context)
            kernel.load(ExpertsWeights(*source))
            results.append(kernel.forward(x, index, weights))
        assert torch.equal(*results), stored
