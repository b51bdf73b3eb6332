"""Files that lack something or contradict themselves: one coded sentence, before any loading."""

from __future__ import annotations

import pytest
import torch

from kt_core.errors import KtError, Severity
from kt_core.runtime.load import prepare

from .gguf_of_model import write_gguf
from .tiny_models import CASES

BY_ID = {case.id: case for case in CASES}


def attempt(path, **options):
    prepared = prepare(path, rules=None, device="cpu", **options)
    prepared.source.close()
    prepared.plan.raise_for_errors()


@pytest.mark.parametrize(
    ("id", "without", "said"),
    [
        ("llama", "blk.1.ffn_up.weight", r"KT314.*mlp.up_proj.weight\n.*no blk.1.ffn_up.weight;"),
        ("qwen2", "blk.0.attn_q.bias", r"KT314.*self_attn.q_proj.bias"),
        (
            "deepseek-v3",
            "blk.1.attn_v_b.weight",
            r"KT314(.|\n)*attn_kv_b.weight or blk.1.attn_k_b.weight or blk.1.attn_v_b.weight",
        ),
        ("deepseek-v3", "blk.2.exp_probs_b.bias", r"KT314.*e_score_correction_bias"),
        ("mixtral", "blk.1.ffn_up_exps.weight", r"KT410(.|\n)*ffn_up_exps.weight, blk.1.ffn_up.0"),
        ("mixtral-old", "blk.1.ffn_up.2.weight", r"KT410 1 of the 4 experts(.|\n)*ffn_up.2.weight"),
        ("gpt-oss", "blk.1.attn_sinks.weight", r"KT314.*self_attn.sinks"),
        ("gpt-oss", "blk.0.ffn_up_exps.bias", r"KT314.*mlp.experts.gate_up_proj_bias"),
        ("qwen3-next", "blk.0.ssm_a", r"KT314.*self_attn.q_proj.weight"),
    ],
)
def test_a_missing_tensor_is_named_with_the_module_it_belongs_to(id, without, said, tmp_path):
    case = BY_ID[id]
    path = tmp_path / "tiny.gguf"
    write_gguf(case.build(), path, case.gguf, style=case.style, without={without})
    with pytest.raises(KtError, match=said):
        attempt(path)


@pytest.mark.parametrize(
    ("id", "keys", "said"),
    [
        ("llama", {"block_count": 3}, "KT461.*block_count.*must equal the 2 layers"),
        ("llama", {"attention.head_count_kv": 3}, "KT461.*must divide the 4 query heads"),
        ("llama", {"rope.scaling.type": "longrope"}, "KT461.*none, linear or yarn"),
        ("llama", {"feed_forward_length": 80}, "KT313.*mlp.gate_proj.weight"),
        ("qwen2", {"embedding_length": None}, 'KT460.*"qwen2.embedding_length"'),
        ("qwen3-moe", {"expert_used_count": 7}, "KT461.*must be at most the 6 experts"),
        ("qwen3-moe", {"expert_count": 4}, "KT313.*experts"),
        ("deepseek-v3", {"expert_group_count": 3}, "KT461.*must divide 8 experts"),
        ("deepseek-v3", {"rope.dimension_count": 64}, "KT461.*must be below the key length 40"),
        ("deepseek-v2", {"expert_weights_norm": True}, "KT461.*does not normalise"),
        ("glm-4.5", {"rope.dimension_count": 33}, "KT461.*must be even and at most 32"),
        ("glm-4.5", {"nextn_predict_layers": 4}, "KT461.*must be below the 4 blocks"),
        ("qwen3-next", {"ssm.inner_size": 65}, "KT461.*must be a multiple of 4 heads"),
    ],
)
def test_metadata_that_cannot_be_is_named(id, keys, said, tmp_path):
    case = BY_ID[id]
    path = tmp_path / "tiny.gguf"
    write_gguf(case.build(), path, case.gguf, style=case.style, keys=keys)
    with pytest.raises(KtError, match=said):
        attempt(path)


def test_tensors_that_nothing_takes_are_not_passed_over(tmp_path):
    case = BY_ID["llama-bias"]
    write_gguf(
        case.build(),
        tmp_path / "tiny.gguf",
        case.gguf,
        without={f"blk.0.attn_{part}.bias" for part in "qkv"},
    )
    prepared = prepare(tmp_path / "tiny.gguf", rules=None, device="cpu")
    prepared.source.close()
    (problem,) = prepared.plan.problems
    assert problem.code == "KT333"
    assert problem.severity is Severity.WARNING
    assert "blk.0.attn_output.bias" in problem.facts[0]


def test_a_configuration_of_another_family_is_refused(tmp_path):
    write_gguf(BY_ID["qwen3"].build(), tmp_path / "tiny.gguf", "qwen3")
    BY_ID["llama"].build().config.save_pretrained(tmp_path)
    with pytest.raises(KtError, match="KT304 the configuration is of a llama model"):
        attempt(tmp_path / "tiny.gguf", model=tmp_path)


def test_a_checkpoint_with_scales_is_refused_rather_than_misread(tmp_path):
    from safetensors.torch import save_file

    model = BY_ID["llama"].build()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    weights["model.layers.0.mlp.up_proj.weight_scale_inv"] = torch.ones(1, 1)
    save_file(weights, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    with pytest.raises(KtError, match=r"KT468(.|\n)*weight_scale_inv"):
        attempt(tmp_path)
