"""A tiny Llama as a GGUF file, with the transformers model it must equal. For tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tiny_llama(
    path: str | Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 96,
    tied: bool = True,
    bias: bool = False,
    tokenizer: bool = True,
    quantization: str = "F32",
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> Any:
    """Write a random Llama to ``path`` and return the float32 transformers model it was made from.

    ``quantization`` is any type that ``gguf`` can quantise to (F32, F16, BF16, Q8_0, Q4_0, …); the
    returned model then holds the dequantised values. ``metadata`` overrides keys of the file; a
    value of ``None`` leaves the key out.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = _vocabulary()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than usual, so that random logits differ clearly from each other.
            parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 1.0))
    _write(Path(path), model, vocabulary if tokenizer else None, quantization, metadata or {})
    return model


def _vocabulary() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return [*SPECIAL, *sorted(ByteLevel.alphabet())]


def _write(
    path: Path,
    model: Any,
    vocabulary: list[str] | None,
    quantization: str,
    overrides: dict[str, Any],
) -> None:
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    keys: dict[str, Any] = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if vocabulary is not None:
        keys |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": vocabulary,
            "tokenizer.ggml.token_type": [3] * len(SPECIAL)
            + [1] * (len(vocabulary) - len(SPECIAL)),
            "tokenizer.ggml.merges": ["a b"] if "ab" in vocabulary else [],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": CHAT_TEMPLATE,
        }
    keys |= overrides
    for key, value in keys.items():
        _add(writer, key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    stored_type = gguf.GGMLQuantizationType[quantization]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
            values = _permuted(name, parameter, config)
            if values.ndim == 1:
                writer.add_tensor(stored, values)
                continue
            packed = gguf.quants.quantize(values, stored_type)
            writer.add_tensor(stored, packed, raw_dtype=stored_type)
            rounded = torch.from_numpy(gguf.quants.dequantize(packed, stored_type).copy())
            parameter.copy_(_unpermuted(name, rounded.reshape(parameter.shape), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None or value == []:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _heads(name: str, config: Any) -> int:
    if ".q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".k_proj." in name else 0


def _permuted(name: str, parameter: torch.Tensor, config: Any) -> np.ndarray[Any, Any]:
    """The converter's row order of q and k: rotary pairs side by side."""
    values = parameter.detach()
    heads = _heads(name, config)
    if heads:
        rows = values.shape[0]
        split = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
        values = split.transpose(1, 2).reshape(values.shape)
    return np.ascontiguousarray(values.numpy())


def _unpermuted(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    heads = _heads(name, config)
    if not heads:
        return values
    rows = values.shape[0]
    split = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return split.transpose(1, 2).reshape(values.shape)
