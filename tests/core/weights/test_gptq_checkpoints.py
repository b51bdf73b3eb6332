"""GPTQ and AWQ linears in safetensors become Q4_1 tensors with the checkpoint's values."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from kt_core.errors import WeightsError  # noqa: E402
from kt_core.weights import open_weights  # noqa: E402

ROWS, COLUMNS = 48, 256
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(values: torch.Tensor, order=range(8)) -> torch.Tensor:
    """``(..., 8)`` values below 16 as int32 words, place i from the lowest bits on holding order[i]."""
    words = sum(values[..., column].long() << (4 * place) for place, column in enumerate(order))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def layer(group: int, seed: int = 0):
    made = torch.Generator().manual_seed(seed)
    groups = COLUMNS // group
    q = torch.randint(0, 16, (ROWS, COLUMNS), generator=made)
    zeros = torch.randint(1, 16, (groups, ROWS), generator=made)
    scales = (torch.rand(groups, ROWS, generator=made) * 0.05 + 0.001).half()
    spread = torch.arange(COLUMNS) // group
    weight = (q - zeros.T[:, spread]).double() * scales.double().T[:, spread]
    return q, zeros, scales, weight


def gptq(q, zeros, scales, less=1):
    return {
        "a.qweight": pack(q.T.reshape(-1, 8, ROWS).permute(0, 2, 1)).contiguous(),
        "a.qzeros": pack((zeros - less).reshape(len(zeros), -1, 8)),
        "a.scales": scales,
    }


def awq(q, zeros, scales):
    return {
        "a.qweight": pack(q.T.reshape(COLUMNS, -1, 8), AWQ_ORDER),
        "a.qzeros": pack(zeros.reshape(len(zeros), -1, 8), AWQ_ORDER),
        "a.scales": scales,
    }


def read(folder, tensors, config=None):
    extra = {"a.bias": torch.ones(ROWS), "norm.weight": torch.ones(8)}
    made = {name: t.contiguous() for name, t in {**tensors, **extra}.items()}
    save_file(made, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    with open_weights(folder) as source:
        assert set(source.tensors) == {"a.weight", "a.bias", "norm.weight"}
        info = source.tensors["a.weight"]
        assert (info.shape, info.type) == ((ROWS, COLUMNS), "Q4_1")
        weight = source.tensor("a.weight")
        assert weight.data.nbytes == info.nbytes
        return torch.from_numpy(weight.dequantize()).double()


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("kind", ["gptq", "gptq_v2", "awq"])
def test_values_are_the_checkpoints(kind, group, tmp_path):
    q, zeros, scales, weight = layer(group)
    if kind == "awq":
        tensors, config = awq(q, zeros, scales), {"quant_method": "awq", "bits": 4}
    else:
        tensors = gptq(q, zeros, scales, less=1 if kind == "gptq" else 0)
        tensors["a.g_idx"] = (torch.arange(COLUMNS) // group).to(torch.int32)
        config = {"quant_method": "gptq", "bits": 4, "checkpoint_format": kind, "desc_act": False}
    # The minimum is rounded to float16: 2^-11 of at most 16 scales.
    found = read(tmp_path, tensors, config)
    torch.testing.assert_close(found, weight, rtol=0, atol=16 * 0.051 * 2**-11)
    assert found.unique().numel() > 100


def test_scales_of_symmetric_checkpoints_are_kept_exactly(tmp_path):
    q, _, scales, _ = layer(128)
    zeros = torch.full((2, ROWS), 8)
    spread = torch.arange(COLUMNS) // 128
    weight = (q - 8).double() * scales.double().T[:, spread]
    assert torch.equal(read(tmp_path, gptq(q, zeros, scales)), weight)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bits": 8}, "8 bits"),
        ({"w_bit": 3}, "3 bits"),
        ({"bits": 4, "desc_act": True, "group_size": 128}, "desc_act"),
    ],
)
def test_what_has_no_kernel_is_refused_when_opened(config, words, tmp_path):
    q, zeros, scales, _ = layer(128)
    with pytest.raises(WeightsError, match=rf"KT456(.|\n)*{words}"):
        read(tmp_path, gptq(q, zeros, scales), config)


def test_rows_in_another_order_are_refused_when_read(tmp_path):
    q, zeros, scales, _ = layer(128)
    tensors = gptq(q, zeros, scales)
    tensors["a.g_idx"] = (torch.arange(COLUMNS) % 2).to(torch.int32)
    with pytest.raises(WeightsError, match=r"KT456(.|\n)*g_idx"):
        read(tmp_path, tensors)


@pytest.mark.parametrize("damage", ["qzeros", "scales", "narrow", "dtype", "groups"])
def test_tensors_that_disagree_are_refused(damage, tmp_path):
    q, zeros, scales, _ = layer(128)
    tensors = gptq(q, zeros, scales)
    if damage in ("qzeros", "scales"):
        del tensors[f"a.{damage}"]
    elif damage == "narrow":
        tensors["a.qzeros"] = tensors["a.qzeros"][:, :2].contiguous()
    elif damage == "dtype":
        tensors["a.qweight"] = tensors["a.qweight"].float()
    else:
        tensors["a.scales"] = torch.ones(3, ROWS).half()
    with pytest.raises(WeightsError, match="KT456"):
        read(tmp_path, tensors)
