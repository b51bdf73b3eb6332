"""A GGUF file from a transformers model, by the conventions of the format's own converter.

This is the way out; the adapters in ``kt_core.models.families`` are the way in. The two are written
apart from each other, so that a mistake in one does not cancel a mistake in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Named = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Style:
    """Which of the spellings a file may have it gets.

    ``experts``: ``stacked``, ``each`` or ``merged``. ``kv_b``: ``whole``, ``split`` or ``flat``
    (split, two-dimensional). ``qkvz``: ``whole`` or ``split``, for Qwen3-Next. ``router_bias`` is
    the ending of the correction bias. ``old_keys`` leaves out the metadata that converters began to
    write later. ``ahead`` appends a layer that predicts ahead.
    """

    experts: str = "stacked"
    kv_b: str = "split"
    qkvz: str = "split"
    router_bias: str = ".bias"
    old_keys: bool = False
    ahead: bool = False


def write_gguf(
    model: Any,
    path: Path,
    architecture: str,
    quantization: str = "F32",
    style: Style | None = None,
    *,
    without: Collection[str] = (),
    keys: Mapping[str, Any] | None = None,
    general: Mapping[str, Any] | None = None,
) -> None:
    """Write ``model`` to ``path``; matrices whose rows divide into blocks get ``quantization``.

    To make damaged files: ``without`` are tensors to leave out, ``keys`` replace metadata. ``general``
    is metadata that does not belong to the architecture.
    """
    style = style or Style()
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata(config, architecture, style) | dict(keys or {})).items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in dict(general or {}).items():
        _add(writer, key, value)
    blocks = config.num_hidden_layers + style.ahead
    kind = gguf.GGMLQuantizationType[quantization]
    for name, values in tensors(model, architecture, style, blocks):
        if name not in without:
            _write(writer, name, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write(writer: Any, name: str, values: torch.Tensor, kind: Any) -> None:
    array = np.ascontiguousarray(values.detach().float().numpy())
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    small = array.ndim == 1 or array.shape[-1] % block or "ssm" in name or "ffn_gate_inp" in name
    if small:
        writer.add_tensor(name, array)
    elif kind is gguf.GGMLQuantizationType.Q4_K:
        writer.add_tensor(name, ternary_q4_k(array), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)


def ternary_q4_k(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Blocks of Q4_K, which gguf itself does not write, for values that are -s, 0 and s.

    A block is two halves ``d`` and ``dmin``, eight scales and minima of 6 bits in 12 bytes, all 1 here,
    and 256 nibbles, 32 values in the low ones of 32 bytes and the next 32 in the high ones. A value is
    ``d * scale * nibble - dmin * minimum``.
    """
    blocks = array.reshape(-1, 256)
    step = np.abs(array).max()
    nibbles = np.rint(blocks / step + 1).astype(np.uint8)
    if not np.array_equal((nibbles.astype(np.float32) - 1) * step, blocks):
        raise ValueError("values must be -s, 0 and s")
    halves = nibbles.reshape(-1, 4, 2, 32)
    scales = np.full((len(blocks), 2), step, np.float16).view(np.uint8)
    ones = np.array([1] * 8 + [0x11] * 4, np.uint8)
    packed = np.concatenate(
        [
            scales,
            np.broadcast_to(ones, (len(blocks), 12)),
            (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(-1, 128),
        ],
        axis=1,
    )
    return packed.reshape(*array.shape[:-1], -1)


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
        return
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    add[type(value)](key, value)


# Metadata -----------------------------------------------------------------------------------------


def metadata(config: Any, architecture: str, style: Style) -> dict[str, Any]:
    """The keys the converter writes, without the architecture in front."""
    get = lambda *names: next(  # noqa: E731
        (v for n in names if (v := getattr(config, n, None)) is not None), None
    )
    rope = config.rope_parameters
    whole = rope.get("full_attention", rope)
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers + style.ahead,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(whole["rope_theta"]),
        "expert_count": get("num_local_experts", "num_experts", "n_routed_experts"),
        "expert_used_count": get("num_experts_per_tok"),
        "expert_feed_forward_length": get("moe_intermediate_size"),
        "vocab_size": config.vocab_size,
        "nextn_predict_layers": 1 if style.ahead else None,
    }
    if whole["rope_type"] in ("linear", "yarn"):
        keys["rope.scaling.type"] = whole["rope_type"]
        keys["rope.scaling.factor"] = float(whole["factor"])
    if whole["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = whole["original_max_position_embeddings"]
        if not style.old_keys:
            keys["rope.scaling.yarn_beta_fast"] = float(whole.get("beta_fast", 32))
            keys["rope.scaling.yarn_beta_slow"] = float(whole.get("beta_slow", 1))
    if "sliding_attention" in rope and not style.old_keys:
        keys["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if architecture != "deepseek2":
        width = get("head_dim") or config.hidden_size // config.num_attention_heads
        share = whole.get("partial_rotary_factor", 1.0)
        keys["rope.dimension_count"] = int(width * share)
        if get("head_dim") is not None:
            keys["attention.key_length"] = keys["attention.value_length"] = width
    keys |= _BY_ARCHITECTURE.get(architecture, lambda config, style: {})(config, style)
    return keys


def _deepseek(config: Any, style: Style) -> dict[str, Any]:
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    absorbed = style.kv_b != "whole"
    v3 = config.model_type == "deepseek_v3"
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1 if absorbed else config.num_attention_heads,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim if absorbed else key,
        "attention.value_length": config.kv_lora_rank if absorbed else config.v_head_dim,
        "attention.key_length_mla": key if absorbed else None,
        "attention.value_length_mla": config.v_head_dim if absorbed else None,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "rope.dimension_count": config.qk_rope_head_dim,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": True if v3 and config.norm_topk_prob else None,
    }
    scale = config.rope_parameters.get("mscale_all_dim")
    if scale is not None:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * scale
    if not style.old_keys:
        keys["expert_group_count"] = config.n_group
        keys["expert_group_used_count"] = config.topk_group
        keys["expert_gating_func"] = 2 if v3 else 1
    return keys


def _glm4(config: Any, style: Style) -> dict[str, Any]:
    return {
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


def _qwen3_next(config: Any, style: Style) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def _gemma3(config: Any, style: Style) -> dict[str, Any]:
    return {"attention.sliding_window": config.sliding_window}


def _shared_expert(config: Any, style: Style) -> dict[str, Any]:
    if style.old_keys:
        return {"expert_feed_forward_length": None}
    return {"expert_shared_feed_forward_length": config.shared_expert_intermediate_size}


def _gpt_oss(config: Any, style: Style) -> dict[str, Any]:
    return {
        "attention.sliding_window": config.sliding_window,
        "expert_feed_forward_length": config.intermediate_size,
    }


def _minimax(config: Any, style: Style) -> dict[str, Any]:
    return {"expert_feed_forward_length": config.intermediate_size, "expert_gating_func": 2}


def _smallthinker(config: Any, style: Style) -> dict[str, Any]:
    windowed = any(config.sliding_window_layout)
    return {
        "expert_gating_func": 1 if config.moe_primary_router_apply_softmax else 2,
        "attention.sliding_window": config.sliding_window_size if windowed else None,
    }


_BY_ARCHITECTURE: dict[str, Callable[[Any, Style], dict[str, Any]]] = {
    "deepseek2": _deepseek,
    "gemma3": _gemma3,
    "glm4moe": _glm4,
    "gpt-oss": _gpt_oss,
    "minimax-m2": _minimax,
    "qwen2moe": _shared_expert,
    "qwen3next": _qwen3_next,
    "smallthinker": _smallthinker,
}


# Tensors ------------------------------------------------------------------------------------------


def tensors(model: Any, architecture: str, style: Style, blocks: int) -> Named:
    """Names and values as the file has them."""
    config = model.config
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], blocks)
    for path, value in model.state_dict().items():
        if path == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for renamed, changed in _changed(path, value, config, architecture, style):
            stored = names.get_name(renamed, try_suffixes=(".weight", ".bias"))
            yield stored or renamed, changed
    if style.ahead:
        yield f"blk.{blocks - 1}.nextn.eh_proj.weight", torch.zeros(config.hidden_size, 64)
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_divisors(model, rope["rope_theta"])


def _changed(path: str, value: torch.Tensor, config: Any, architecture: str, style: Style) -> Named:
    """What the converter makes of one parameter. Names are those it looks up in gguf's table."""
    block = "blk." + path.split(".")[2] if path.startswith("model.layers.") else ""
    if ".experts." in path:
        yield from _experts(path, value, block, architecture == "gpt-oss", style)
    elif path.endswith("e_score_correction_bias"):
        yield f"{block}.exp_probs_b{style.router_bias}", value
    elif architecture in ("llama", "internlm2") and (".q_proj." in path or ".k_proj." in path):
        heads = config.num_attention_heads if ".q_" in path else config.num_key_value_heads
        yield path, _pairs_together(value, heads)
    elif path.endswith(".kv_b_proj.weight") and style.kv_b != "whole":
        heads = config.num_attention_heads
        parts = value.view(heads, config.qk_nope_head_dim + config.v_head_dim, -1)
        key, values = parts.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        key = key.transpose(1, 2)
        flat = style.kv_b == "flat"
        yield f"{block}.attn_k_b.weight", key.flatten(0, 1) if flat else key
        yield f"{block}.attn_v_b.weight", values.flatten(0, 1) if flat else values
    elif path.endswith(".sinks"):
        yield f"{block}.attn_sinks.weight", value
    elif path.endswith("norm.weight") and architecture in ("gemma3", "qwen3next"):
        yield path, value if path.endswith("linear_attn.norm.weight") else value + 1
    elif ".linear_attn." in path:
        yield from _linear_attention(path, value, block, config, style)
    else:
        yield path, value


def _experts(path: str, value: torch.Tensor, block: str, columns: bool, style: Style) -> Named:
    bias = path.endswith("_bias")
    ending = "bias" if bias else "weight"
    if columns and not bias:
        value = value.transpose(1, 2)
    if "down_proj" in path:
        parts = {"down": value}
    elif columns:
        parts = {"gate": value[:, 0::2], "up": value[:, 1::2]}
    elif style.experts == "merged":
        parts = {"gate_up": value}
    else:
        gate, up = value.chunk(2, dim=1)
        parts = {"gate": gate, "up": up}
    for part, stacked in parts.items():
        if style.experts == "each":
            for number, one in enumerate(stacked):
                yield f"{block}.ffn_{part}.{number}.{ending}", one
        else:
            yield f"{block}.ffn_{part}_exps.{ending}", stacked


def _linear_attention(
    path: str, value: torch.Tensor, block: str, config: Any, style: Style
) -> Named:
    if path.endswith(".A_log"):
        yield f"{block}.ssm_a", -torch.exp(value)
    elif path.endswith(".dt_bias"):
        yield f"{block}.ssm_dt.bias", value
    elif ".conv1d." in path:
        yield path, value.squeeze(1)
    elif ".in_proj_qkvz." in path and style.qkvz == "split":
        heads, key = config.linear_num_key_heads, config.linear_key_head_dim
        rows = config.linear_num_value_heads // heads * config.linear_value_head_dim
        per_head = value.view(heads, 2 * key + 2 * rows, -1)
        q, k, v, z = (p.flatten(0, 1) for p in per_head.split([key, key, rows, rows], dim=1))
        yield f"{block}.attn_qkv.weight", torch.cat([q, k, v])
        yield f"{block}.attn_gate.weight", z
    else:
        yield path, value


def _pairs_together(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Each head's rotary pairs side by side, instead of all first halves before all second ones."""
    rows = value.shape[0] // heads
    split = value.reshape(heads, 2, rows // 2, *value.shape[1:])
    return split.transpose(1, 2).reshape(value.shape)


def _llama3_divisors(model: Any, theta: float) -> torch.Tensor:
    """By how much Llama 3.1's scaling divides each plain frequency."""
    width = model.config.head_dim
    plain = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    return plain / model.model.rotary_emb.inv_freq
