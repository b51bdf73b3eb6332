"""The contracts are worth something: each kind of mistake is found, and by the case made for it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from kt_core.operators.operator import Operator
from kt_core.operators.torch_experts import TorchExperts
from kt_core.operators.torch_linear import TorchLinear
from kt_core.testing import check_kernel, check_operator
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec

TOLERANCE = 1e-5


@pytest.fixture
def toy(monkeypatch):
    """Register a class as the kernel or operator of a plugin; returns its registry."""
    module = ModuleType("kt_toy.it")
    monkeypatch.setitem(sys.modules, "kt_toy", ModuleType("kt_toy"))
    monkeypatch.setitem(sys.modules, "kt_toy.it", module)

    def register(target, kind="linear", **fields):
        module.It = target
        if kind == "operator":
            spec = operator_spec("kt_toy.It", target="kt_toy.it:It", **fields)
            return fake_registry(fake_plugin(operators=[spec]))
        spec = kernel_spec("kt_toy.it", target="kt_toy.it:It", kind=kind, **fields)
        return fake_registry(fake_plugin(kernels=[spec]))

    return register


def failing(check) -> set[str]:
    """The names of the cases that a check says have failed."""
    with pytest.raises(AssertionError) as caught:
        check()
    head, *lines = str(caught.value).splitlines()
    assert "cases of its contract" in head
    return {line.strip().partition(":")[0] for line in lines}


class WrongShape(TorchLinear):
    def forward(self, x):
        return super().forward(x)[..., :-1]


class ForgetsBias(TorchLinear):
    def forward(self, x):
        return x @ self.weight.T


class Flattens(TorchLinear):
    def forward(self, x):
        return super().forward(x).reshape(-1, self.shape.out_features)


class WritesInput(TorchLinear):
    def forward(self, x):
        y = super().forward(x)
        x.zero_()
        return y


class Rounds(TorchLinear):
    def forward(self, x):
        return super().forward(x.half().to(x.dtype) if x.dtype == torch.float32 else x)


class Random(TorchLinear):
    def forward(self, x):
        y = super().forward(x)
        return y + torch.randn_like(y) * 1e-3


class SpreadsNan(TorchLinear):
    def forward(self, x):
        return super().forward(x) + 0 * x.sum()


class Shares(TorchLinear):
    latest = None

    def load(self, weight, bias):
        super().load(weight, bias)
        Shares.latest = self.weight

    def forward(self, x):
        return nn.functional.linear(x, Shares.latest, self.bias)


class NeedsTwo(TorchLinear):
    def forward(self, x):
        if x.numel() // x.shape[-1] == 0:
            raise RuntimeError("no tokens")
        return super().forward(x)


class TooSmall(TorchLinear):
    @classmethod
    def resident_bytes(cls, shape, weights, context):
        return 0


LINEARS = {
    WrongShape: {"format-F32", "tokens-1", "only-in-prefill", "only-in-decode"},
    ForgetsBias: {"bias"},
    Flattens: {"leading-dimensions", "only-in-prefill"},
    WritesInput: {"input-untouched"},
    Rounds: {"format-F32", "tokens-7"},
    Random: {"deterministic", "format-F32"},
    SpreadsNan: {"non-finite-row"},
    Shares: {"two-instances"},
    NeedsTwo: {"tokens-0"},
    TooSmall: {"resident-bytes"},
}


@pytest.mark.parametrize("target", LINEARS, ids=lambda target: target.__name__)
def test_a_linear_kernel(target, toy):
    registry = toy(target)
    found = failing(lambda: check_kernel("kt_toy.it", tolerance=TOLERANCE, registry=registry))
    assert LINEARS[target] <= found


class IgnoresMinusOne(TorchExperts):
    def forward(self, x, index, share):
        return super().forward(x, index.clamp_min(0), share)


class IgnoresBadIds(TorchExperts):
    def forward(self, x, index, share):
        return super().forward(x, torch.where(index >= self.shape.num_experts, -1, index), share)


class IgnoresShares(TorchExperts):
    def forward(self, x, index, share):
        return super().forward(x, index, torch.ones_like(share))


class MixesRows(TorchExperts):
    def forward(self, x, index, share):
        return super().forward(x, index, share) + 0 * x.sum()


class OneType(TorchExperts):
    def load(self, weights):
        if weights.gate[0].type != weights.down[0].type:
            raise RuntimeError("one type for all")
        super().load(weights)


EXPERTS = {
    IgnoresMinusOne: {"minus-one-adds-nothing"},
    IgnoresBadIds: {"expert-5-refused", "usable-after-refusal"},
    IgnoresShares: {"tokens-8"},
    MixesRows: {"non-finite-row"},
    OneType: {"mixed-formats"},
}


@pytest.mark.parametrize("target", EXPERTS, ids=lambda target: target.__name__)
def test_an_experts_kernel(target, toy):
    registry = toy(target, "experts")
    found = failing(lambda: check_kernel("kt_toy.it", tolerance=TOLERANCE, registry=registry))
    assert EXPERTS[target] <= found


class Norm(nn.Module):
    """What the operators below stand for."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 64))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Good(Operator):
    def load(self, weights):
        value = weights.packed("weight").to_torch(torch.float32, self.context.device)
        self.weight = nn.Parameter(value, requires_grad=False)

    def forward(self, x):
        return Norm.forward(self, x.float()).to(x.dtype)


class NoWeight(Good):
    def load(self, weights):
        self.weight = nn.Parameter(torch.empty(64, device="meta"))


class OtherDtype(Good):
    def forward(self, x):
        return super().forward(x).float()


class AddsATuple(Good):
    def forward(self, x):
        return (super().forward(x), None)


class Unscaled(Good):
    def forward(self, x):
        return super().forward(x) / self.weight


class MixesTokens(Good):
    def forward(self, x):
        return super().forward(x) + 0 * x.sum()


SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
OPERATORS = {
    NoWeight: {"nothing-left-on-meta"},
    OtherDtype: {"dtype-bfloat16", "dtype-float16"},
    AddsATuple: {"tokens-1"},
    Unscaled: {"tokens-7"},
    MixesTokens: {"non-finite-row"},
}


def check(registry, **options):
    check_operator("kt_toy.It", original=Norm(), tolerance=TOLERANCE, rowwise=True,
                   registry=registry, **options)  # fmt: skip


@pytest.mark.parametrize("target", OPERATORS, ids=lambda target: target.__name__)
def test_an_operator(target, toy):
    registry = toy(target, "operator", kwargs_schema=SCHEMA)
    assert OPERATORS[target] <= failing(lambda: check(registry))


def test_a_good_operator_passes(toy):
    check(toy(Good, "operator", kwargs_schema=SCHEMA))


def test_a_schema_that_lets_mistakes_pass(toy):
    registry = toy(Good, "operator", kwargs_schema={"type": "object"})
    assert failing(lambda: check(registry)) == {"unknown-kwarg-refused"}


def test_kwargs_that_the_schema_refuses(toy):
    registry = toy(Good, "operator", kwargs_schema=SCHEMA)
    assert failing(lambda: check(registry, kwargs={"eps": 1})) == {"kwargs-accepted"}


def test_an_operator_for_another_class(toy):
    registry = toy(Good, "operator", kwargs_schema=SCHEMA, replaces=("torch.nn.Linear",))
    assert failing(lambda: check(registry)) == {"replaces-the-original"}


def test_the_cores_own_operators_keep_the_contract():
    torch.manual_seed(0)
    check_operator("kt_core.Linear", original=nn.Linear(64, 48), tolerance=TOLERANCE, rowwise=True)


def test_an_unknown_name_is_explained():
    with pytest.raises(LookupError, match="KT215"):
        check_kernel("kt_nobody.linear", tolerance=1)
    with pytest.raises(LookupError, match="KT215"):
        check_operator("kt_nobody.Norm", original=Norm(), tolerance=1)
