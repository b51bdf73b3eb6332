"""The second reading of a file, which ``kt verify`` holds the adapters against."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kt_core.verify.truth import truth_of
from kt_core.weights import open_weights

from .gguf_of_model import write_gguf
from .tiny_models import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_truth_gives_back_every_parameter_of_the_model(case, tmp_path):
    model = case.build()
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "F32", case.style)
    with open_weights(file) as source:
        truth = truth_of(source, model.config)
        for name, expected in model.state_dict().items():
            path, _, last = name.rpartition(".")
            if path.endswith(".experts"):
                columns = case.model_type == "gpt_oss"
                found = truth.experts(path, last, range(expected.shape[0]), columns)
                some = truth.experts(path, last, [2, 0], columns)
                torch.testing.assert_close(some, expected[[2, 0]], rtol=0, atol=0)
            else:
                found = truth.parameter(name, expected.shape)
            assert found is not None, name
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=name)
        assert truth.left_over() == {}
        rows = np.array([5, 2, 5])
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            expected = model.state_dict()[name]
            found = truth.parameter(name, expected.shape, rows)
            torch.testing.assert_close(found, expected[rows], rtol=0, atol=0)


@pytest.mark.parametrize("each", [False, True], ids=["fused", "one-by-one"])
def test_a_checkpoint_is_read_under_its_own_names(each, tmp_path):
    from safetensors.torch import save_file

    model = next(case for case in CASES if case.id == "mixtral").build()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if each:
        for name in [n for n in state if ".experts." in n]:
            value = state.pop(name)
            place = name.rpartition(".")[0].replace(".mlp.", ".block_sparse_moe.")
            for number, expert in enumerate(value):
                words = ("w2",) if name.endswith("down_proj") else ("w1", "w3")
                for word, part in zip(words, expert.chunk(len(words)), strict=True):
                    state[f"{place}.{number}.{word}.weight"] = part.clone()
        state = {n.replace(".mlp.", ".block_sparse_moe."): v for n, v in state.items()}
    save_file(state, tmp_path / "model.safetensors")
    with open_weights(tmp_path) as source:
        truth = truth_of(source, model.config)
        for name, expected in model.state_dict().items():
            path, _, last = name.rpartition(".")
            found = (
                truth.experts(path, last, range(expected.shape[0]), False)
                if path.endswith(".experts")
                else truth.parameter(name, expected.shape)
            )
            assert torch.equal(found, expected), name
        assert truth.parameter("model.layers.0.nothing.weight", (1,)) is None
