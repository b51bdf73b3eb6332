"""The shipped rule files: as generated, clean, and alive on a full-size skeleton of their model."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch

from kt_core.errors import Severity
from kt_core.models.described import FAMILIES
from kt_core.models.rulefiles import (
    CPU_EXPERTS,
    CPU_LINEAR,
    GPU_EXPERTS,
    GPU_LINEAR,
    INT8_EXPERTS,
    INT8_LINEAR,
    main,
    number_pattern,
    rule_files,
)
from kt_core.plan.build import make_plan
from kt_core.plan.layers import layer_devices
from kt_core.registry.specs import EXPERTS, LINEAR
from kt_core.rules import load_rules, select_rules
from kt_core.rules.load import check_file
from kt_core.testing.registry import fake_plugin, fake_registry, kernel_spec, operator_spec

RULES = Path(__file__).resolve().parents[3] / "rules"
SHIPPED = sorted(path.relative_to(RULES).as_posix() for path in RULES.glob("*/*.yaml"))

# The largest published model of each family, where transformers' default is another one.
FULL_SIZE = {
    "deepseek_v2": {
        "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 60,
        "num_attention_heads": 128, "n_routed_experts": 160, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "n_group": 8, "topk_group": 3,
        "topk_method": "group_limited_greedy",
    },
    "deepseek_v3": {},
    "gemma3_text": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128,
        "query_pre_attn_scalar": 168, "sliding_window": 1024,
    },
    "glm4_moe": {
        "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92, "head_dim": 128,
        "n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3,
        "use_qk_norm": True, "attention_bias": True,
    },
    "gpt_oss": {},
    "llama": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "minimax_m2": {},
    "mixtral": {
        "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
        "num_attention_heads": 48, "vocab_size": 32768,
    },
    "qwen2": {
        "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8,
    },
    "qwen2_moe": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "num_experts": 64,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480,
    },
    "qwen3": {
        "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    },
    "qwen3_moe": {
        "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "moe_intermediate_size": 1536,
    },
    "qwen3_next": {},
    "smallthinker": {
        "hidden_size": 2560, "num_hidden_layers": 52, "num_attention_heads": 28,
        "num_key_value_heads": 4, "moe_num_primary_experts": 64,
        "moe_num_active_primary_experts": 6, "rope_layout": [0, 1, 1, 1] * 13,
        "sliding_window_layout": [0, 1, 1, 1] * 13,
    },
}  # fmt: skip
MODEL_TYPES = {"gemma3": "gemma3_text"}


@cache
def skeleton(folder):
    from kt_core.models.hf import config_from_values, skeleton_model

    model_type = MODEL_TYPES.get(folder, folder)
    family = next(family for family in FAMILIES if family.folder == folder)
    config = config_from_values(model_type, family.architectures[:1], FULL_SIZE[model_type])
    return skeleton_model(config, torch.bfloat16)


NO_OPTIONS = {"type": "object", "properties": {}, "additionalProperties": False}
BITS = {"enum": [8, 16]}
OPTIONS = {
    **NO_OPTIONS,
    "properties": {"activation_bits": BITS, "decode_activation_bits": BITS},
}

FUSED = [
    f"{package}.{name}"
    for package in ("kt_ops_cpu", "kt_ops_cuda")
    for name in ("Attention", "DecoderLayer", "RMSNorm", "Router")
]


@cache
def registry():
    """All our distributions, as far as a plan needs them, whichever are installed."""
    kinds = {
        "kt_ops_cpu": {CPU_LINEAR: LINEAR, CPU_EXPERTS: EXPERTS},
        "kt_ops_cuda": {GPU_LINEAR: LINEAR, GPU_EXPERTS: EXPERTS},
        "kt_ops_amd_blis": {INT8_LINEAR: LINEAR, INT8_EXPERTS: EXPERTS},
    }
    targets = {
        LINEAR: "kt_core.operators.torch_linear:TorchLinear",
        EXPERTS: "kt_core.operators.torch_experts:TorchExperts",
    }
    return fake_registry(
        *(
            fake_plugin(
                package,
                distribution=package.replace("_", "-"),
                package=package,
                kernels=[
                    kernel_spec(
                        name,
                        kind=kind,
                        target=targets[kind],
                        devices=("cuda",) if package == "kt_ops_cuda" else ("cpu",),
                        weight_formats=("*",),
                        options_schema=OPTIONS if package == "kt_ops_cpu" else NO_OPTIONS,
                    )
                    for name, kind in kernels.items()
                ],
                operators=[
                    operator_spec(name, target="kt_core.operators.module:Module")
                    for name in FUSED
                    if name.startswith(package)
                ],
            )
            for package, kernels in kinds.items()
        )
    )


def test_the_files_are_what_the_description_makes(tmp_path):
    assert main([str(tmp_path)]) == 0
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.yaml")}
    assert made == set(rule_files())
    for name, text in rule_files().items():
        assert (RULES / name).read_text() == text, f"python -m kt_core.models.rulefiles {RULES}"
        assert (tmp_path / name).read_text() == text
    assert set(SHIPPED) == made


@pytest.mark.parametrize("name", SHIPPED)
def test_every_rule_finds_modules_of_the_full_size_model(name):
    folder = name.partition("/")[0]
    devices = sorted(set(re.findall(r"cuda:\d|cuda", (RULES / name).read_text())))
    assert check_file(RULES / name, registry()).problems == ()
    plan = make_plan(
        skeleton(folder),
        load_rules(RULES / name, registry()),
        registry=registry(),
        default_device=devices[0] if devices else "cpu",
        assume_devices=devices,
    )
    assert [p.render() for p in plan.problems if p.severity is not Severity.NOTE] == []
    assert plan.architecture in load_rules(RULES / name, registry()).architectures
    assert all(rule.won for rule in plan.rules)
    assert plan.unmatched == ()
    if name.split("/")[1] in ("hybrid.yaml", "multi-gpu-4.yaml"):
        experts = [m for m in plan.modules if m.path.endswith(".experts")]
        assert {m.decode.device for m in experts} == {"cpu"}
        assert sum(m.resident.get("cpu", 0) for m in experts) > 0.8 * sum(plan.resident.values())
    if "multi-gpu" in name:
        layers = layer_devices(plan.modules)
        counts = Counter(layers.values())
        assert len(layers) == skeleton(folder).config.num_hidden_layers
        assert len(counts) == int(name.removesuffix(".yaml").rpartition("-")[2])
        assert max(counts.values()) - min(counts.values()) <= 1
        assert list(layers.values()) == sorted(layers.values())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.folder)
@pytest.mark.parametrize(
    ("device", "dense", "sparse"), [("cpu", "cpu", "cpu"), ("cuda:0", "gpu", "hybrid")]
)
def test_one_file_is_chosen_for_a_device(family, device, dense, sparse):
    chosen = select_rules(family.architectures, device=device, registry=registry())
    variant = sparse if family.experts else dense
    assert chosen.path.endswith(f"rules/{family.folder}/{variant}.yaml")


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 0), (0, 9), (3, 7), (0, 30), (9, 10), (15, 29), (31, 61), (47, 93), (60, 60), (0, 99)],
)
def test_a_number_pattern_matches_its_numbers_and_no_others(first, last):
    found = [n for n in range(200) if re.fullmatch(number_pattern(first, last), str(n))]
    assert found == list(range(first, last + 1))


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (5, 4), (90, 100)])
def test_other_numbers_are_refused(first, last):
    with pytest.raises(ValueError, match="at most two digits"):
        number_pattern(first, last)
