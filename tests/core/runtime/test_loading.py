"""A model loaded by a plan equals the transformers model its file was written from."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from kt_core.errors import KtError, PlanError, UsageError, WeightsError
from kt_core.models.hf import config_from_values, dynamic_cache, forward_logits, skeleton_model
from kt_core.runtime.inject import optimize_and_load_gguf
from kt_core.runtime.load import load, prepare
from kt_core.testing.tiny import write_tiny_llama

# Same operations on the same float32 weights; only the order of sums may differ.
TOLERANCE = 2e-5

RULES = """
- match: {class: torch.nn.Linear}
  replace:
    class: KTransformersLinear
    kwargs: {generate_device: cpu, generate_op: KLinearTorch, prefill_op: KLinearTorch}
"""


def logits(model, ids):
    return forward_logits(model, ids, dynamic_cache(model), keep=0)


def reference(model, ids):
    with torch.inference_mode():
        return model(ids).logits


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"bias": True}, {"kv_heads": 4}], ids=str)
@pytest.mark.parametrize("quantization", ["F32", "BF16", "Q8_0", "Q5_1"])
@pytest.mark.parametrize("use_rules", [True, False], ids=["rules", "no-rules"])
def test_logits_equal_the_original(tmp_path, rules, options, quantization, use_rules):
    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file, quantization=quantization, **options)
    loaded = load(file, rules=rules if use_rules else None, dtype="float32", device="cpu")
    ids = torch.arange(3, 40)[None]
    expected = reference(original, ids)
    torch.testing.assert_close(
        logits(loaded.model, ids), expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())
    )
    assert not [n for n, t in loaded.model.state_dict().items() if t.is_meta]
    assert not [n for n, b in loaded.model.named_buffers() if b.is_meta]


def test_optimize_and_load_gguf_on_a_model_the_caller_built(tmp_path, rules):
    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file)
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(original.config)
    plan = optimize_and_load_gguf(model, rules, file, original.config, default_device="cpu")
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(logits(model, ids), reference(original, ids), rtol=0, atol=1e-3)
    assert plan.module("lm_head").operator == "kt_core.Linear"
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape == (1, 21)
    with pytest.raises(UsageError, match="KT720"):
        optimize_and_load_gguf(model, rules, file, original.config, default_device="cpu")


def test_a_sharded_safetensors_folder_loads_too(tmp_path, rules):
    original = write_tiny_llama(tmp_path / "unused.gguf", tied=False, bias=True)
    folder = tmp_path / "checkpoint"
    original.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    prepared = prepare(folder, rules=rules, dtype="float32", device="cpu")
    prepared.plan.raise_for_errors()
    from kt_core.runtime.apply import apply_plan

    apply_plan(prepared.model, prepared.plan, prepared.source, prepared.registry)
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(
        logits(prepared.model, ids), reference(original, ids), rtol=0, atol=1e-3
    )


def test_llama3_rope_divisors_are_applied(tmp_path):
    """Llama 3.1 files carry their scaling as a tensor; without it long prompts derail."""
    import gguf
    import numpy as np

    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    reader = gguf.GGUFReader(file)
    scaled = tmp_path / "scaled.gguf"
    writer = gguf.GGUFWriter(scaled, "llama")
    for field in reader.fields.values():
        if field.name.startswith(("GGUF.", "general.architecture")):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = load(file, rules=None, dtype="float32", device="cpu").model.model.rotary_emb.inv_freq
    changed = load(
        scaled, rules=None, dtype="float32", device="cpu"
    ).model.model.rotary_emb.inv_freq
    torch.testing.assert_close(changed * torch.from_numpy(divisors), plain)


BROKEN_METADATA = [
    ("llama.block_count", 2**31, "KT431"),
    ("llama.block_count", 3, "KT431"),
    ("llama.block_count", "2", "KT431"),
    ("llama.block_count", None, "KT430"),
    ("llama.attention.head_count", 0, "KT431"),
    ("llama.attention.head_count", None, "KT430"),
    ("llama.attention.head_count_kv", 3, "KT431"),
    ("llama.embedding_length", 128, "KT313"),
    ("llama.feed_forward_length", 95, "KT313"),
    ("llama.attention.layer_norm_rms_epsilon", -1.0, "KT431"),
    ("llama.rope.scaling.type", "spiral", "KT431"),
    ("tokenizer.ggml.model", "rwkv", "KT435"),
    ("tokenizer.ggml.pre", "unheard-of", "KT435"),
    ("tokenizer.ggml.token_type", [1, 1], "KT436"),
    ("tokenizer.ggml.eos_token_id", 10**6, "KT436"),
]


@pytest.mark.parametrize(("key", "value", "code"), BROKEN_METADATA, ids=lambda v: str(v)[:40])
def test_metadata_that_does_not_fit_is_one_coded_error(tmp_path, key, value, code):
    file = tmp_path / "broken.gguf"
    write_tiny_llama(file, metadata={key: value})
    with pytest.raises(KtError) as caught:
        load(file, rules=None, dtype="float32", device="cpu")
    assert caught.value.code == code
    if code in ("KT430", "KT431"):
        assert key in str(caught.value)


def test_an_unknown_architecture_is_named_with_those_known(tmp_path):
    import gguf

    file = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(file, "wavenet")
    writer.add_tensor("token_embd.weight", torch.zeros(4, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match='KT433 .*"wavenet"'):
        load(file)


def test_a_missing_tensor_is_named_with_its_nearest(tmp_path):
    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file, bias=False)
    original.config.attention_bias = True
    model = skeleton_model(original.config, torch.float32)
    with pytest.raises(PlanError) as caught:
        optimize_and_load_gguf(model, empty_rules(tmp_path), file, default_device="cpu")
    assert caught.value.code == "KT314"
    assert "blk.0.attn_q.bias" in str(caught.value)
    assert "nearest: blk.0.attn_q.weight" in str(caught.value)
    assert all(parameter.is_meta for parameter in model.parameters())


def empty_rules(tmp_path: Path) -> Path:
    path = tmp_path / "empty.yaml"
    path.write_text("- match: {name: ^nothing$}\n  replace: {class: default}\n")
    return path


def test_a_failure_in_the_middle_leaves_the_model_as_it_was(tmp_path, rules, monkeypatch):
    from kt_core.operators.torch_linear import TorchLinear

    file = tmp_path / "tiny.gguf"
    original = write_tiny_llama(file)
    model = skeleton_model(original.config, torch.float32)
    before = {name: type(module) for name, module in model.named_modules()}
    calls = []

    def fail(self, weight, bias):
        calls.append(self.context.name)
        if len(calls) == 6:
            raise WeightsError.of("KT499", "the disk went away")

    monkeypatch.setattr(TorchLinear, "load", fail)
    with pytest.raises(WeightsError, match="KT499"):
        optimize_and_load_gguf(model, rules, file, default_device="cpu")
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert all(parameter.is_meta for parameter in model.parameters())


def test_nothing_of_the_file_stays_open(tmp_path, rules):
    import os

    file = tmp_path / "tiny.gguf"
    write_tiny_llama(file)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    load(file, rules=rules, dtype="float32", device="cpu")
    gc.collect()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before


def test_config_from_values_names_the_architecture():
    config = config_from_values("llama", ("LlamaForCausalLM",), {"num_hidden_layers": 1})
    assert config.architectures == ["LlamaForCausalLM"]
