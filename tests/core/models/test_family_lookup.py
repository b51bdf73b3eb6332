"""Which adapter a file or a configuration gets, and what is said where there is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kt_core.errors import PlanError, WeightsError
from kt_core.models.families import FAMILIES, WITHOUT_MODEL
from kt_core.models.family import family_for_config, family_for_gguf
from kt_core.models.hf import make_known
from kt_core.weights import QuantType, TensorInfo


def tensors(*names):
    return {name: TensorInfo(name, (1,), QuantType.F32, 0, 4) for name in names}


@pytest.mark.parametrize(
    ("architecture", "keys", "names", "expected"),
    [
        ("llama", {}, (), "LlamaForCausalLM"),
        ("llama", {"expert_count": 0}, (), "LlamaForCausalLM"),
        ("llama", {"expert_count": 8}, (), "MixtralForCausalLM"),
        ("internlm2", {}, (), "LlamaForCausalLM"),
        ("deepseek2", {"expert_gating_func": 1}, (), "DeepseekV2ForCausalLM"),
        ("deepseek2", {"expert_gating_func": 2}, (), "DeepseekV3ForCausalLM"),
        ("deepseek2", {}, (), "DeepseekV2ForCausalLM"),
        ("deepseek2", {}, ("blk.3.exp_probs_b.bias",), "DeepseekV3ForCausalLM"),
        ("deepseek2", {}, ("blk.3.exp_probs_b",), "DeepseekV3ForCausalLM"),
        ("gpt-oss", {}, (), "GptOssForCausalLM"),
        ("gemma3", {}, (), "Gemma3ForCausalLM"),
    ],
)
def test_a_file_finds_its_family(architecture, keys, names, expected):
    values = {"general.architecture": architecture}
    values |= {f"{architecture}.{key}": value for key, value in keys.items()}
    family = family_for_gguf(values, tensors(*names), "toy.gguf")
    assert family.architectures[0] == expected


def test_a_model_transformers_lacks_is_said_to_be_lacking():
    for name in WITHOUT_MODEL:
        with pytest.raises(WeightsError, match=rf'KT467 transformers has no class.*"{name}"'):
            family_for_gguf({"general.architecture": name}, {}, "toy.gguf")


def test_an_unknown_architecture_lists_the_known_ones():
    with pytest.raises(WeightsError, match=r"KT463(.|\n)*deepseek2, gemma3, glm4moe"):
        family_for_gguf({"general.architecture": "clip"}, {}, "toy.gguf")
    with pytest.raises(WeightsError, match="KT460"):
        family_for_gguf({}, {}, "toy.gguf")


def test_a_gating_function_nobody_knows_is_refused():
    values = {"general.architecture": "deepseek2", "deepseek2.expert_gating_func": 9}
    with pytest.raises(WeightsError, match=r"KT461.*expert_gating_func"):
        family_for_gguf(values, {}, "toy.gguf")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_a_configuration_finds_the_family_of_its_class(family):
    from transformers import CONFIG_MAPPING

    make_known(family.model_type)
    assert family.model_type in CONFIG_MAPPING
    config = SimpleNamespace(model_type=family.model_type, architectures=None)
    assert family_for_config(config).model_type == family.model_type
    for name in family.architectures:
        config = SimpleNamespace(model_type="own", architectures=[name])
        assert name in family_for_config(config).architectures


def test_an_unknown_configuration_is_a_plan_error():
    config = SimpleNamespace(model_type="opt", architectures=["OPTForCausalLM"])
    with pytest.raises(PlanError, match=r'KT301.*"OPTForCausalLM"'):
        family_for_config(config)
