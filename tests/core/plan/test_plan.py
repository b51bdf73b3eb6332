"""The plan: what it decides, what it refuses and what it says about rules that do nothing."""

from __future__ import annotations

import json

import pytest
import torch

from kt_core import KernelSpec, OperatorSpec, Plan, Rejected, hookimpl
from kt_core.errors import PlanError, Severity
from kt_core.operators import plugin as core_plugin
from kt_core.plan.build import make_plan
from kt_core.plan.render import module_lines, summary
from kt_core.plan.why import why
from kt_core.registry.registry import Registry
from kt_core.rules import check_text, load_rules
from kt_core.runtime.load import prepare
from kt_core.testing.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "tiny.gguf"
    write_tiny_llama(file, layers=4, quantization="Q8_0")
    return file


def plan_of(tiny, tmp_path, text, registry=None, **options):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    options.setdefault("device", "cpu")
    options.setdefault("dtype", "bfloat16")
    prepared = prepare(tiny, rules=path, registry=registry, **options)
    prepared.source.close()
    return prepared.plan


def codes(plan, severity=Severity.ERROR):
    return [problem.code for problem in plan.problems if problem.severity is severity]


LINEARS = """
- match: {class: torch.nn.Linear}
  replace: {class: kt_core.Linear, kwargs: {generate_op: kt_core.torch_linear}}
"""


def test_every_linear_gets_its_operator_kernels_and_tensors(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, LINEARS)
    module = plan.module("model.layers.2.self_attn.q_proj")
    assert module.operator == "kt_core.Linear"
    assert module.prefill.name == module.decode.name == "kt_core.torch_linear"
    assert module.tensors == ("blk.2.attn_q.weight",)
    assert module.bindings[0].transform == "unpermute_rope"
    assert module.types == ("Q8_0",)
    assert module.stored == 64 * 64 // 32 * 34
    assert module.resident == {"cpu": 64 * 64 * 2}
    assert module.place.endswith("rules.yaml:2:3")
    assert not plan.problems


def test_bytes_add_up_and_ties_count_once(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, "- {match: {name: ^x$}, replace: {class: default}}\n")
    values = 259 * 64 + 64 + 4 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
    assert plan.resident == {"cpu": values * 2}
    head = plan.module("lm_head")
    assert head.tied_to == "model.embed_tokens.weight"
    assert head.resident == {}


def test_cache_estimate(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, LINEARS, context=100)
    assert plan.cache.bytes_per_token == 4 * 2 * 2 * 16 * 2
    assert plan.cache.bytes_per_device == {"cpu": 100 * plan.cache.bytes_per_token}


def test_json_round_trip(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, LINEARS + "- {match: {name: ^y$}, replace: {class: default}}\n")
    assert Plan.from_json(json.loads(plan.dumps())) == plan


@pytest.mark.parametrize(
    "damage", [{"format": 2}, {"modules": None}, {"rules": [1]}, {"cache": {}}]
)
def test_json_that_is_no_plan_is_refused(tiny, tmp_path, damage):
    data = json.loads(plan_of(tiny, tmp_path, LINEARS).dumps())
    with pytest.raises(PlanError, match="KT303"):
        Plan.from_json(data | damage)


def test_rules_that_do_nothing_are_named(tiny, tmp_path):
    plan = plan_of(
        tiny,
        tmp_path,
        LINEARS
        + "- {match: {name: '^model\\.layer\\.'}, replace: {class: default}}\n"
        + "- {match: {name: q_proj$}, replace: {class: default}}\n",
    )
    assert codes(plan, Severity.WARNING) == ["KT330", "KT331"]
    dead, shadowed = plan.rules[1:]
    assert (dead.matched, dead.won) == (0, 0)
    assert (shadowed.matched, shadowed.won, dict(shadowed.lost_to)) == (4, 0, {0: 4})


def test_a_rule_that_another_keeps_away_is_told_which(tiny, tmp_path):
    plan = plan_of(
        tiny,
        tmp_path,
        "- {match: {name: self_attn$}, replace: {class: default}, recursive: false}\n"
        "- {match: {name: q_proj$}, replace: {class: default}}\n",
    )
    assert codes(plan, Severity.WARNING) == ["KT330"]
    (problem,) = plan.problems
    assert problem.message == "rule 2 is kept from all 4 modules it would match"
    assert problem.facts == ("kept away by recursive: false of: rule 1 (4)",)
    assert plan.rules[1].kept_away == {0: 4}
    assert Plan.from_json(json.loads(plan.dumps())) == plan


def test_a_router_that_a_kernel_would_round_coarsely_is_named(tmp_path, monkeypatch):
    from kt_core.models.hf import config_from_values, skeleton_model
    from kt_core.operators.kernel import Accuracy
    from kt_core.operators.torch_linear import TorchLinear

    small = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_experts": 4}
    config = config_from_values("qwen2_moe", ("Qwen2MoeForCausalLM",), small)
    model = skeleton_model(config, torch.bfloat16)
    rules = check_text(LINEARS, "rules.yaml").ruleset
    assert codes(make_plan(model, rules), Severity.WARNING) == []
    monkeypatch.setattr(TorchLinear, "accuracy", classmethod(lambda *args: Accuracy(0.2, "4 bits")))
    plan = make_plan(model, rules)
    assert codes(plan, Severity.WARNING) == ["KT334"]
    assert "2 routers coarsely, model.layers.0.mlp.shared_expert_gate" in plan.problems[0].message
    assert plan.problems[0].location.line == 2


def test_continue_merges_kwargs_from_later_rules(tiny, tmp_path):
    plan = plan_of(
        tiny,
        tmp_path,
        """
- match: {class: torch.nn.Linear}
  replace: {class: kt_core.Linear}
  continue: true
- match: {name: q_proj$}
  replace: {kwargs: {decode_max_tokens: 4}}
""",
    )
    assert plan.module("model.layers.0.self_attn.q_proj").kwargs == {"decode_max_tokens": 4}
    assert plan.module("model.layers.0.self_attn.q_proj").operator == "kt_core.Linear"
    assert plan.module("model.layers.0.self_attn.k_proj").kwargs == {}


def test_recursive_false_protects_the_children(tiny, tmp_path):
    plan = plan_of(
        tiny,
        tmp_path,
        "- {match: {name: 'layers\\.1\\.mlp$'}, replace: {class: default}, recursive: false}\n"
        + LINEARS,
    )
    assert plan.module("model.layers.1.mlp.up_proj").operator == "default"
    assert plan.module("model.layers.0.mlp.up_proj").operator == "kt_core.Linear"


def test_an_operator_refuses_a_module_it_cannot_stand_for(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, "- {match: {name: norm$}, replace: {class: kt_core.Linear}}\n")
    assert set(codes(plan)) == {"KT310"}
    with pytest.raises(PlanError, match=r"model\.norm"):
        plan.raise_for_errors()


def test_experts_on_a_dense_module_are_refused(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, "- {match: {name: mlp$}, replace: {class: kt_core.Experts}}\n")
    assert set(codes(plan)) == {"KT311"}


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", "xpu"])
def test_a_device_that_is_not_here_is_refused_and_can_be_assumed(tiny, tmp_path, device):
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    text = LINEARS.replace("generate_op", f"generate_device: '{device}', generate_op")
    assert set(codes(plan_of(tiny, tmp_path, text))) == {"KT321"}
    plan = plan_of(tiny, tmp_path, text, assume_devices=[device])
    assert not plan.errors
    name = device if ":" in device else f"{device}:0"
    assert plan.module("lm_head").decode.device == name
    assert plan.cache.bytes_per_device[name] > 0


def test_two_phases_on_two_devices_count_on_both(tiny, tmp_path):
    plan = plan_of(
        tiny,
        tmp_path,
        LINEARS.replace(
            "generate_op", "prefill_device: 'cuda:0', generate_device: cpu, generate_op"
        ),
        assume_devices=["cuda:0"],
    )
    module = plan.module("lm_head")
    assert (module.prefill.device, module.decode.device) == ("cuda:0", "cpu")
    assert module.resident == {"cpu": 259 * 64 * 2, "cuda:0": 259 * 64 * 2}


class Plugin:
    """A kernel that reads only F32, one that cannot run here, and one that refuses the shape."""

    KT_PLUGIN_API = 1
    __name__ = "picky"

    @staticmethod
    @hookimpl
    def kt_register_kernels():
        common = {"kind": "linear", "devices": ("cpu",), "summary": "picky"}
        target = "kt_core.operators.torch_linear:TorchLinear"
        return [
            KernelSpec(name="picky.f32", target=target, weight_formats=("F32",), **common),
            KernelSpec(name="picky.absent", target=target, weight_formats=("*",), **common),
            KernelSpec(
                name="picky.gone", target="picky.nowhere:No", weight_formats=("*",), **common
            ),
        ]

    @staticmethod
    @hookimpl
    def kt_register_operators():
        return [
            OperatorSpec(
                name="picky.Norm", target="picky.nowhere:Norm", summary="nowhere to be found"
            )
        ]

    @staticmethod
    @hookimpl
    def kt_probe(spec, env):
        if spec.name == "picky.absent":
            return Rejected(("needs a unicorn",), "buy a unicorn")
        return None


@pytest.mark.parametrize(
    ("op", "code", "word"),
    [
        ("picky.f32", "KT324", "Q8_0"),
        ("picky.absent", "KT214", "needs a unicorn"),
        ("picky.gone", "KT216", "picky.nowhere"),
        ("picky.typo", "KT215", "picky.typo"),
    ],
)
def test_a_kernel_that_cannot_serve_is_one_coded_error(tiny, tmp_path, op, code, word):
    registry = Registry.of(core_plugin, Plugin())
    rules = check_text(LINEARS.encode(), "rules.yaml", Registry.of(core_plugin)).ruleset
    rule = rules.rules[0]
    object.__setattr__(rule, "kwargs", {"generate_op": op})
    prepared = prepare(tiny, rules=rules, registry=registry, device="cpu")
    prepared.source.close()
    assert set(codes(prepared.plan)) == {code}
    assert word in prepared.plan.errors[0].render()


def test_transfer_map_is_checked_against_the_layers(tiny, tmp_path):
    text = """
- match: {name: '^model\\.layers\\.[01]\\.'}
  replace: {class: default, kwargs: {generate_device: cpu}}
- match: {name: '^model\\.layers\\.[23]\\.'}
  replace: {class: default, kwargs: {generate_device: 'cuda:0'}}
- match: {name: ^model$}
  replace:
    class: ktransformers.operators.models.KLlamaModel
    kwargs: {transfer_map: {LAYER: 'cuda:0'}}
"""
    good = plan_of(tiny, tmp_path, text.replace("LAYER", "2"), assume_devices=["cuda:0"])
    assert "KT332" not in codes(good)
    bad = plan_of(tiny, tmp_path, text.replace("LAYER", "1"), assume_devices=["cuda:0"])
    assert codes(bad) == ["KT332"]
    assert "layer 1 on cuda:0, but other rules put it on cpu" in bad.errors[0].message
    beyond = plan_of(tiny, tmp_path, text.replace("LAYER", "7"), assume_devices=["cuda:0"])
    assert codes(beyond) == ["KT332"]


def test_a_layer_in_the_middle_of_a_transfer_map_counts_too(tiny, tmp_path):
    text = """
- match: {name: '^model\\.layers\\.3\\.'}
  replace: {class: default, kwargs: {generate_device: cpu}}
- match: {name: ^model$}
  replace:
    class: ktransformers.operators.models.KLlamaModel
    kwargs: {transfer_map: {1: 'cuda:0'}}
"""
    plan = plan_of(tiny, tmp_path, text, assume_devices=["cuda:0"])
    assert codes(plan) == ["KT332"]
    assert "layer 3" in plan.errors[0].message


def test_transfer_map_places_what_other_rules_do_not(tiny, tmp_path):
    text = """
- match: {class: torch.nn.Linear}
  replace: {class: kt_core.Linear}
- match: {name: ^model$}
  replace:
    class: ktransformers.operators.models.KLlamaModel
    kwargs: {transfer_map: {1: 'cuda:0', 3: 'cuda:1'}}
"""
    plan = plan_of(tiny, tmp_path, text, assume_devices=["cuda:0", "cuda:1"])
    assert codes(plan) == []
    devices = ["cpu", "cuda:0", "cuda:0", "cuda:1"]
    for layer, device in enumerate(devices):
        path = f"model.layers.{layer}"
        assert plan.module(f"{path}.input_layernorm").device == device
        assert plan.module(f"{path}.mlp.up_proj").decode.device == device
        assert plan.module(f"{path}.mlp.up_proj").prefill.device == device
    for outside in ("model.embed_tokens", "model.norm", "lm_head"):
        assert plan.module(outside).device == "cpu"


def test_a_rule_file_for_another_model_is_refused(tiny, tmp_path):
    text = "architectures: [Qwen3MoeForCausalLM]\nrules:" + LINEARS
    plan = plan_of(tiny, tmp_path, text)
    assert codes(plan) == ["KT305"]
    assert plan.errors[0].location.line == 1
    assert "LlamaForCausalLM" in plan.errors[0].message
    fitting = text.replace("Qwen3MoeForCausalLM", "Qwen3MoeForCausalLM, LlamaForCausalLM")
    assert not plan_of(tiny, tmp_path, fitting).errors


def test_why_names_winner_and_losers(tiny, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(LINEARS + "- {match: {name: q_proj$}, replace: {class: default}}\n")
    prepared = prepare(tiny, rules=path, device="cpu")
    prepared.source.close()
    text = why(prepared.model, prepared.rules, prepared.plan, "model.layers.0.self_attn.q_proj")
    assert "rule 1" in text
    assert "wins" in text
    assert "rule 2" in text
    assert "loses" in text
    assert "blk.0.attn_q.weight" in text
    with pytest.raises(PlanError, match=r"KT350(.|\n)*model\.layers\.0"):
        why(prepared.model, prepared.rules, prepared.plan, "model.layer.0")


def test_summary_and_module_list_fit_the_plan(tiny, tmp_path):
    plan = plan_of(tiny, tmp_path, LINEARS)
    text = summary(plan)
    assert "29       Linear" in text
    assert "kt_core.torch_linear on cpu" in text
    assert str(plan.weights) in text
    lines = list(module_lines(plan))
    assert len(lines) == len(plan.modules) + 1


def test_nothing_but_headers_is_read(tiny, tmp_path, monkeypatch):
    from kt_core.weights import PackedTensor

    def fail(*args, **kwargs):
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(PackedTensor, "__init__", fail)
    assert not plan_of(tiny, tmp_path, LINEARS).errors


def test_the_plan_needs_no_weights(tmp_path):
    original = write_tiny_llama(tmp_path / "unused.gguf")
    original.config.save_pretrained(tmp_path / "model")
    path = tmp_path / "rules.yaml"
    path.write_text(LINEARS)
    plan = prepare(None, model=tmp_path / "model", rules=path, dtype="bfloat16", device="cpu").plan
    assert plan.module("lm_head").resident == {"cpu": 259 * 64 * 2}
    assert not plan.errors


def test_deepseek_v3_is_planned_in_no_time(tmp_path):
    """61 layers of 256 experts against 40 rules: the issue allows 3 s and 1 GiB."""
    import time

    from transformers import AutoConfig

    from kt_core.models.hf import skeleton_model

    config = AutoConfig.for_model("deepseek_v3")
    config.architectures = ["DeepseekV3ForCausalLM"]
    rules = "".join(
        f"- match: {{name: '^model\\.layers\\.({n}|{n + 1})\\.mlp\\.experts$'}}\n"
        "  replace: {class: kt_core.Experts}\n"
        for n in range(2, 80, 2)
    )
    path = tmp_path / "rules.yaml"
    path.write_text(rules + LINEARS)
    ruleset = load_rules(path, Registry.of(core_plugin))
    assert len(ruleset.rules) == 40
    model = skeleton_model(config, torch.bfloat16)
    started = time.perf_counter()
    plan = make_plan(model, ruleset)
    assert time.perf_counter() - started < 1.0
    experts = [module for module in plan.modules if module.operator == "kt_core.Experts"]
    assert len(experts) == 58
    assert plan.resident["cpu"] > 1 << 40
