"""SmallThinker, whose classes are kt's own, against a plain computation written apart from them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from kt_core.models.hf import config_from_folder, dynamic_cache, forward_logits
from kt_core.runtime.load import load

from .gguf_of_model import write_gguf
from .tiny_models import CASES

# float32 against float64.
TOLERANCE = 2e-5

TINY = tuple(case for case in CASES if case.model_type == "smallthinker")
LENGTH = 21


def norm(x, weight, eps):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotated(x, position, theta):
    """Turn the pairs ``(i, i + half)`` of each head by the position times a falling frequency."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attention(weights, c, layer, x):
    """One token after the other, one head after the other."""
    heads, kv_heads, dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, k, v = (x @ weights[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q = q.view(-1, heads, dim)
    k, v = k.view(-1, kv_heads, dim), v.view(-1, kv_heads, dim)
    if c.rope_layout[layer]:
        theta = c.rope_parameters["rope_theta"]
        q = torch.stack([rotated(row, at, theta) for at, row in enumerate(q)])
        k = torch.stack([rotated(row, at, theta) for at, row in enumerate(k)])
    output = torch.zeros_like(q)
    for at in range(len(x)):
        begin = max(0, at + 1 - c.sliding_window_size) if c.sliding_window_layout[layer] else 0
        for head in range(heads):
            group = head * kv_heads // heads
            scores = k[begin : at + 1, group] @ q[at, head] / dim**0.5
            output[at, head] = scores.softmax(0) @ v[begin : at + 1, group]
    return output.flatten(1) @ weights["self_attn.o_proj.weight"].T


def experts(weights, c, router_input, x):
    moe = "block_sparse_moe"
    output = torch.zeros_like(x)
    for at in range(len(x)):
        logits = weights[f"{moe}.primary_router.weight"] @ router_input[at]
        chosen = logits.argsort(descending=True)[: c.moe_num_active_primary_experts]
        if c.moe_primary_router_apply_softmax:
            share = logits[chosen].exp()
        else:
            share = 1 / (1 + (-logits[chosen]).exp())
        share = share / share.sum()
        for expert, part in zip(chosen, share, strict=True):
            gate, up = (weights[f"{moe}.experts.gate_up_proj"][expert] @ x[at]).chunk(2)
            y = weights[f"{moe}.experts.down_proj"][expert] @ (gate.clamp(min=0) * up)
            output[at] += part * y
    return output


def reference(model, ids):
    c = model.config
    state = {name: value.double() for name, value in model.state_dict().items()}
    x = state["model.embed_tokens.weight"][ids[0]]
    for layer in range(c.num_hidden_layers):
        begin = f"model.layers.{layer}."
        own = {n.removeprefix(begin): v for n, v in state.items() if n.startswith(begin)}
        entered = x
        normed = norm(x, own["input_layernorm.weight"], c.rms_norm_eps)
        x = x + attention(own, c, layer, normed)
        normed = norm(x, own["post_attention_layernorm.weight"], c.rms_norm_eps)
        x = x + experts(own, c, entered, normed)
    return norm(x, state["model.norm.weight"], c.rms_norm_eps) @ state["lm_head.weight"].T


def prompt():
    return torch.randint(0, 96, (1, LENGTH), generator=torch.Generator().manual_seed(6))


def within(found, expected):
    limit = TOLERANCE * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_the_classes_compute_the_reference(case):
    model = case.build()
    with torch.inference_mode():
        within(model(prompt()).logits[0], reference(model, prompt()))


@pytest.mark.parametrize("case", TINY, ids=str)
@pytest.mark.parametrize("rules", ["torch", None], ids=str)
def test_a_file_computes_the_reference_over_a_cache(case, rules, tmp_path):
    model = case.build()
    file = tmp_path / "model.gguf"
    write_gguf(model, file, case.gguf, "F32", case.style)
    loaded = load(file, rules=rules, dtype="float32", device="cpu").model
    expected = reference(model, prompt())
    cache = dynamic_cache(loaded)
    found = [
        forward_logits(loaded, prompt()[:, start:stop], cache, keep=0)[0]
        for start, stop in ((0, 7), (7, 19), (19, 20), (20, 21))
    ]
    within(torch.cat(found), expected)


def test_a_published_checkpoint_has_each_expert_by_itself(tmp_path):
    """The names and configuration keys of the checkpoints, whose code is not needed."""
    case = TINY[0]
    model = case.build()
    tensors = {}
    for name, value in model.state_dict().items():
        place, _, last = name.rpartition(".")
        if last == "gate_up_proj":
            for expert, both in enumerate(value):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    tensors[f"{place}.{expert}.{part}.weight"] = half.clone()
        elif last == "down_proj":
            for expert, one in enumerate(value):
                tensors[f"{place}.{expert}.down.weight"] = one.clone()
        else:
            tensors[name] = value.clone()
    save_file(tensors, tmp_path / "model.safetensors")
    values = model.config.to_dict() | {
        "architectures": ["SmallThinkerForCausalLM"],
        "rope_theta": 10000.0,
        "auto_map": {"AutoConfig": "configuration_smallthinker.SmallThinkerConfig"},
        "moe_layer_layout": [1] * 5,
    }
    for key in ("rope_parameters", "layer_types"):
        del values[key]
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert config_from_folder(tmp_path).rope_layout == [0, 1, 1, 1, 0]
    (tmp_path / "tokenizer.json").write_text(EMPTY_TOKENIZER)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    loaded = load(tmp_path, rules="torch", dtype="float32", device="cpu").model
    within(forward_logits(loaded, prompt(), None, keep=0)[0], reference(model, prompt()))


EMPTY_TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
)
