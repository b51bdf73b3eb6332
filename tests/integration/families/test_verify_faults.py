"""Faults, planted one by one wherever weights or results pass, are found and the module is named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kt_core.models import transforms
from kt_core.models.family import Family
from kt_core.operators.torch_experts import TorchExperts
from kt_core.operators.torch_linear import TorchLinear
from kt_core.rules import check_text
from kt_core.runtime.apply import apply_plan
from kt_core.runtime.bound_weights import BoundWeights
from kt_core.runtime.load import prepare
from kt_core.verify.report import lines
from kt_core.verify.run import verify

from .gguf_of_model import write_gguf
from .tiny_models import CASES

LAYER = "model.layers.1"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    made = {}

    def of(case_id):
        if case_id not in made:
            case = next(c for c in CASES if c.id == case_id)
            made[case_id] = folder / f"{case_id}.gguf"
            write_gguf(case.build(), made[case_id], case.gguf, "F32", case.style)
        return made[case_id]

    return of


def checked(file, *, rules="torch", after=None, dtype="float32"):
    """Load, let ``after`` damage what was loaded, verify."""
    prepared = prepare(file, rules=rules, device="cpu", dtype=dtype)
    vocabulary = prepared.model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (1, 14), generator=torch.Generator().manual_seed(0))
    with prepared.source as source:
        apply_plan(prepared.model, prepared.plan, source, prepared.registry)
        if after is not None:
            with torch.no_grad():
                after(prepared.model)
        return verify(prepared.model, prepared.plan, source, prepared.registry, tokens, decode=2)


def expect(report, *modules, says="", what=None):
    printed = "\n".join(lines(report))
    assert report.verdict == "broken", printed
    assert report.culprits == modules, printed
    assert says in printed
    if what is not None:
        assert {f.what for f in report.findings if f.verdict == "broken" and not f.inside} == what
    for module in modules:
        assert module in printed


def in_layer(path, name):
    return path.startswith(f"{LAYER}.") and path.endswith(name)


# --- the adapter ----------------------------------------------------------------------------------


def test_experts_whose_gate_and_up_change_places_in_the_adapter(file_of, monkeypatch):
    original = Family.bind_experts

    def swapped(self, path, experts, present):
        found = original(self, path, experts, present)
        if not in_layer(path, ".experts"):
            return found
        return dataclasses.replace(found, gate=found.up, up=found.gate)

    monkeypatch.setattr(Family, "bind_experts", swapped)
    report = checked(file_of("qwen3-moe"))
    expect(report, f"{LAYER}.mlp.experts", says="gate: it holds the values of its up weights")
    assert "gate and up have changed places" in "\n".join(lines(report))


def test_a_dense_gate_and_up_that_change_places_in_the_adapter(file_of, monkeypatch):
    original = Family.gguf_names

    def swapped(self, parameter, layers):
        names = original(self, parameter, layers)
        if not in_layer(parameter, "_proj.weight"):
            return names
        pair = {"ffn_gate": "ffn_up", "ffn_up": "ffn_gate"}
        return tuple(
            name.replace(word, pair[word]) if (word := name.split(".")[2]) in pair else name
            for name in names
        )

    monkeypatch.setattr(Family, "gguf_names", swapped)
    expect(
        checked(file_of("llama")),
        f"{LAYER}.mlp.gate_proj",
        f"{LAYER}.mlp.up_proj",
        says=f"weight: it holds the values of {LAYER}.mlp.up_proj.weight",
    )


def test_a_k_b_that_is_transposed(file_of, monkeypatch):
    def straight(tensors, heads):
        key, value = (t.dequantize().reshape(heads, -1, t.shape[-1]) for t in tensors)
        values = torch.cat([torch.from_numpy(key), torch.from_numpy(value)], dim=1)
        return transforms.packed_from_array("x", values.reshape(-1, values.shape[-1]).numpy())

    one = transforms.TRANSFORMS["join_kv_b"]
    monkeypatch.setitem(transforms.TRANSFORMS, "join_kv_b", dataclasses.replace(one, run=straight))
    report = checked(file_of("deepseek-v3"))
    expect(report, *(f"model.layers.{i}.self_attn.kv_b_proj" for i in range(3)))


def test_rotary_rows_that_stay_in_the_files_order(file_of, monkeypatch):
    one = transforms.TRANSFORMS["unpermute_rope"]
    kept = dataclasses.replace(one, run=lambda tensors, heads: tensors[0])
    monkeypatch.setitem(transforms.TRANSFORMS, "unpermute_rope", kept)
    expect(
        checked(file_of("llama")),
        *(f"model.layers.{i}.self_attn.{part}_proj" for i in range(2) for part in "qk"),
        says="weight: it holds the right values in another order",
    )


def test_a_norm_whose_offset_is_forgotten(file_of, monkeypatch):
    one = transforms.TRANSFORMS["subtract_one"]
    kept = dataclasses.replace(one, run=lambda tensors: tensors[0])
    monkeypatch.setitem(transforms.TRANSFORMS, "subtract_one", kept)
    report = checked(file_of("gemma-3"))
    assert report.verdict == "broken"
    assert f"{LAYER}.input_layernorm" in report.culprits
    assert "model.norm" in report.culprits
    assert "weight: every value is off by 1" in "\n".join(lines(report))


@pytest.mark.parametrize("rules", ["torch", None])
def test_a_bias_that_the_configuration_leaves_out(rules, file_of, monkeypatch):
    from kt_core.models.families.llama import Llama

    original = Llama.config
    monkeypatch.setattr(
        Llama, "config", lambda self, m, t: {**original(self, m, t), "attention_bias": False}
    )
    report = checked(file_of("llama-bias"), rules=rules)
    assert report.verdict == "broken"
    assert f"{LAYER}.self_attn.q_proj" in report.culprits
    says = "its bias is dropped" if rules else "nothing takes blk.1.attn_q.bias"
    assert says in "\n".join(lines(report))


def test_weights_on_a_wrong_scale(file_of, monkeypatch):
    original = BoundWeights.packed

    def scaled(self, parameter):
        found = original(self, parameter)
        if self._plan.path != f"{LAYER}.self_attn.v_proj":
            return found
        return transforms.packed_from_array(found.name, found.dequantize() * 1.5)

    monkeypatch.setattr(BoundWeights, "packed", scaled)
    expect(
        checked(file_of("llama")),
        f"{LAYER}.self_attn.v_proj",
        says="weight: it is 1.5 times what it should be",
    )


# --- kernels --------------------------------------------------------------------------------------


def test_a_kernel_that_drops_its_bias(file_of, monkeypatch):
    original = TorchLinear.load

    def forgetful(self, weight, bias):
        original(self, weight, None if in_layer(self.context.name, "o_proj") else bias)

    monkeypatch.setattr(TorchLinear, "load", forgetful)
    expect(checked(file_of("llama-bias")), f"{LAYER}.self_attn.o_proj", says="its bias is dropped")


def test_a_small_bias_is_missed_too(file_of, monkeypatch, tmp_path):
    """One that hardly shows among rounded activations."""
    case = next(c for c in CASES if c.id == "llama-bias")
    model = case.build()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.mul_(0.01)
    file = tmp_path / "small.gguf"
    write_gguf(model, file, case.gguf, "F32", case.style)
    original = TorchLinear.load
    monkeypatch.setattr(
        TorchLinear, "load", lambda self, weight, bias: original(self, weight, None)
    )
    report = checked(file, dtype="bfloat16")
    assert f"{LAYER}.mlp.down_proj" in report.culprits
    assert "its bias is dropped" in "\n".join(lines(report))


def test_a_kernel_on_a_wrong_scale(file_of, monkeypatch):
    original = TorchLinear.forward

    def louder(self, x):
        factor = 1.25 if in_layer(self.context.name, "down_proj") else 1.0
        return original(self, x) * factor

    monkeypatch.setattr(TorchLinear, "forward", louder)
    expect(
        checked(file_of("llama")),
        f"{LAYER}.mlp.down_proj",
        says="it is 1.25 times what it should be",
        what={"prefill", "decode"},
    )


def test_a_kernel_of_experts_that_swaps_gate_and_up(file_of, monkeypatch):
    original = TorchExperts.load

    def swapped(self, weights):
        if in_layer(self.context.name, "experts"):
            weights = dataclasses.replace(weights, gate=weights.up, up=weights.gate)
        original(self, weights)

    monkeypatch.setattr(TorchExperts, "load", swapped)
    expect(
        checked(file_of("mixtral")),
        f"{LAYER}.mlp.experts",
        says="gate and up have changed places",
        what={"prefill", "decode", "experts"},
    )


def test_one_expert_that_no_token_of_the_prompt_chooses(file_of, monkeypatch):
    original = TorchExperts.load

    def one_wrong(self, weights):
        if in_layer(self.context.name, "experts"):
            down = list(weights.down)
            down[3] = down[2]
            weights = dataclasses.replace(weights, down=down)
        original(self, weights)

    monkeypatch.setattr(TorchExperts, "load", one_wrong)

    def never(model):
        # The router of a family without a correction bias: its row decides alone.
        model.get_submodule(f"{LAYER}.mlp.gate").weight[3] = 0.0

    report = checked(file_of("qwen3-moe"), after=never)
    assert f"{LAYER}.mlp.experts" in report.culprits
    assert "1 of 6 experts are wrong: 3" in "\n".join(lines(report))


def test_only_the_kernel_of_one_phase(file_of, monkeypatch):
    original = TorchLinear.forward

    def once(self, x):
        y = original(self, x)
        tokens = x.numel() // x.shape[-1]
        return y * 3 if in_layer(self.context.name, "q_proj") and tokens == 1 else y

    monkeypatch.setattr(TorchLinear, "forward", once)
    expect(checked(file_of("llama")), f"{LAYER}.self_attn.q_proj", what={"decode"})


def test_values_that_are_not_finite_are_named_with_their_token(file_of, monkeypatch):
    original = TorchLinear.forward

    def infinite(self, x):
        y = original(self, x)
        if in_layer(self.context.name, "up_proj") and y.numel() > y.shape[-1] * 3:
            y = y.clone()
            y.view(-1, y.shape[-1])[3, 5:7] = float("nan")
        return y

    monkeypatch.setattr(TorchLinear, "forward", infinite)
    report = checked(file_of("llama"))
    expect(report, f"{LAYER}.mlp.up_proj", says="2 values are not finite, first for token 3")
    assert report.to_json()["findings"]


def test_one_output_among_many(file_of, monkeypatch):
    original = TorchLinear.forward

    def one_row(self, x):
        y = original(self, x)
        if in_layer(self.context.name, "gate_proj"):
            y = y.clone()
            y[..., 7] = y[..., 8]
        return y

    monkeypatch.setattr(TorchLinear, "forward", one_row)
    report = checked(file_of("llama"), dtype="bfloat16")
    assert report.culprits == (f"{LAYER}.mlp.gate_proj",)


# --- what was loaded, and what stands between modules ---------------------------------------------


def test_loaded_weights_that_were_changed(file_of):
    def damage(model):
        model.get_submodule(f"{LAYER}.input_layernorm").weight.mul_(1.1)

    expect(
        checked(file_of("llama"), after=damage),
        f"{LAYER}.input_layernorm",
        says="weight in memory: it is 1.1 times what it should be",
    )


def test_an_embedding_that_the_prompt_does_not_use(file_of):
    def damage(model):
        weight = model.get_submodule("model.embed_tokens").weight
        weight[50:] = weight[50:].flip(0)

    report = checked(file_of("llama"), after=damage)
    assert "model.embed_tokens" in report.culprits
    assert "loaded" in {f.what for f in report.findings if f.module == "model.embed_tokens"}


def test_a_router_in_four_bits(file_of):
    def quantise(model):
        weight = model.get_submodule(f"{LAYER}.mlp.gate").weight
        step = weight.abs().amax(dim=1, keepdim=True) / 7
        weight.copy_((weight / step).round() * step)

    expect(checked(file_of("qwen3-moe"), after=quantise), f"{LAYER}.mlp.gate")


def test_attention_on_a_wrong_scale(file_of):
    def damage(model):
        model.get_submodule(f"{LAYER}.self_attn").scaling *= 3.0

    expect(checked(file_of("llama"), after=damage), f"{LAYER}.self_attn")


def test_rotary_frequencies_of_another_base(file_of):
    def damage(model):
        model.get_submodule("model.rotary_emb").inv_freq.mul_(0.5)

    report = checked(file_of("llama"), after=damage)
    assert report.culprits[0] == "model.rotary_emb"


def test_a_cache_that_gives_back_something_else(file_of, monkeypatch):
    from kt_core.models import hf_cache

    original = hf_cache.AppendingLayer.update

    def forgets(self, keys, values, *args, **kwargs):
        keys, values = original(self, keys, values, *args, **kwargs)
        return keys, torch.cat([values[..., :1, :] * 0, values[..., 1:, :]], dim=-2)

    monkeypatch.setattr(hf_cache.AppendingLayer, "update", forgets)
    report = checked(file_of("llama"))
    assert set(report.culprits) == {"model.layers.0.self_attn", "model.layers.1.self_attn"}


def test_hidden_states_that_are_changed_between_layers(file_of):
    def damage(model):
        model.get_submodule(LAYER).register_forward_pre_hook(
            lambda _, args: (args[0] * 2, *args[1:])
        )

    report = checked(file_of("llama"), after=damage)
    assert report.culprits == (LAYER,)
    assert "it does not get what model.layers.0 gave" in "\n".join(lines(report))


RULES_OF_INT8 = """
- match: {name: experts$}
  replace: {class: kt_core.Experts}
"""


def test_a_sound_model_has_no_finding_but_ok(file_of):
    ruleset = check_text(RULES_OF_INT8, "rules.yaml").ruleset
    report = checked(file_of("mixtral"), rules=ruleset)
    assert report.verdict == "ok"
    assert report.culprits == ()
    assert {f.what for f in report.findings} >= {
        "prefill",
        "decode",
        "weights",
        "loaded",
        "experts",
    }
