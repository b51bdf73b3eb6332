"""A Mixture-of-Experts model that must answer like the dense Llama it was made of.

Each MLP's neurons are dealt out to experts of equal width. The router's weights are zero, so that
every expert is chosen with the same weight ``1 / experts``, and the experts' ``down`` matrices are
scaled by their number: the sum over the experts is the dense MLP. Real weights, real text, and an
exact answer to compare with; made for end-to-end tests of experts' kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.weights import PLAIN, PackedTensor, WeightSource, open_weights

Floats = npt.NDArray[np.float32]

_ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe"}

# Keys of the file that describe its splitting or packing rather than the model.
_NOT_COPIED = ("split.", "general.architecture", "general.file_type", "general.alignment")


def moe_from_dense(
    source: str | Path,
    target: str | Path,
    *,
    family: str = "mixtral",
    experts: int = 8,
    shared: int = 0,
    quantization: str = "F16",
) -> None:
    """Write the GGUF ``target``, a MoE made of the ``llama`` file ``source``.

    ``family`` is ``"mixtral"`` or ``"qwen2_moe"``, whose attention can carry Llama's exactly.
    ``shared`` neurons go to Qwen2-MoE's shared expert, the rest in equal shares to ``experts``; a
    power of two loses nothing by the scaling. ``quantization`` is the experts' stored type, any
    that ``gguf`` can quantise to; everything else stays as it is in ``source``.

    Raises:
        ValueError: for a source that is no dense Llama, or widths that do not divide.
    """
    import gguf

    architecture = _ARCHITECTURES.get(family)
    if architecture is None:
        raise ValueError(f"family must be one of {', '.join(_ARCHITECTURES)}, not {family!r}")
    with open_weights(source) as file:
        width = _checked_width(file, experts, shared, family)
        block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quantization]][0]
        if width % block or shared % block:
            raise ValueError(f"{quantization} needs widths in blocks of {block}, got {width}")
        writer = gguf.GGUFWriter(Path(target), architecture)
        for key, value in _metadata(file.metadata, architecture, experts, width, shared).items():
            _add(writer, key, value)
        kind = gguf.GGMLQuantizationType[quantization]
        for name in file.tensors:
            for stored, tensor in _changed(file, name, family, experts, shared):
                if isinstance(tensor, PackedTensor):
                    _copy(writer, stored, tensor)
                elif ".ffn_gate_inp" in stored or tensor.ndim == 1:
                    writer.add_tensor(stored, tensor)
                else:
                    packed = gguf.quants.quantize(np.ascontiguousarray(tensor), kind)
                    writer.add_tensor(stored, packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _checked_width(file: WeightSource, experts: int, shared: int, family: str) -> int:
    """Neurons of one expert."""
    values = file.metadata
    if values.get("general.architecture") != "llama" or values.get("llama.expert_count"):
        raise ValueError(f"{file.path} is no dense llama file")
    if (family == "qwen2_moe") != (shared > 0):
        raise ValueError("Qwen2-MoE needs shared neurons, and Mixtral has none")
    neurons = int(values["llama.feed_forward_length"]) - shared
    if experts < 1 or neurons < experts or neurons % experts:
        raise ValueError(f"{neurons} neurons cannot be dealt to {experts} experts")
    return neurons // experts


def _metadata(
    values: Mapping[str, Any], architecture: str, experts: int, width: int, shared: int
) -> dict[str, Any]:
    keys = {
        key.replace("llama.", f"{architecture}.", 1) if key.startswith("llama.") else key: value
        for key, value in values.items()
        if not key.startswith(_NOT_COPIED)
    }
    keys[f"{architecture}.expert_count"] = experts
    keys[f"{architecture}.expert_used_count"] = experts
    if shared:
        keys[f"{architecture}.expert_feed_forward_length"] = width
        keys[f"{architecture}.expert_shared_feed_forward_length"] = shared
    else:
        keys[f"{architecture}.feed_forward_length"] = width
    return keys


def _changed(
    file: WeightSource, name: str, family: str, experts: int, shared: int
) -> Iterator[tuple[str, PackedTensor | Floats]]:
    """What one tensor of the dense file becomes."""
    block, _, part = name.removesuffix(".weight").rpartition(".")
    tensor = file.tensor(name)
    if part in ("ffn_gate", "ffn_up", "ffn_down") and name.endswith(".weight"):
        values = tensor.dequantize()
        if part == "ffn_down":
            # The router gives each expert 1 / experts, the shared one's gate gives it a half.
            yield f"{block}.{part}_exps.weight", _dealt(values[:, shared:].T, experts, True)
            if shared:
                yield f"{block}.{part}_shexp.weight", values[:, :shared] * np.float32(2)
            return
        yield f"{block}.{part}_exps.weight", _dealt(values[shared:], experts, False)
        if shared:
            yield f"{block}.{part}_shexp.weight", values[:shared]
        if part == "ffn_gate":
            hidden = values.shape[1]
            yield f"{block}.ffn_gate_inp.weight", np.zeros((experts, hidden), np.float32)
            if shared:
                yield f"{block}.ffn_gate_inp_shexp.weight", np.zeros(hidden, np.float32)
        return
    if family == "qwen2_moe" and part in ("attn_q", "attn_k", "attn_v"):
        rows = tensor.shape[0]
        if part != "attn_v":
            tensor = tensor.rows(_halves_first(file.metadata, part, rows))
        yield f"{block}.{part}.bias", np.zeros(rows, np.float32)
    yield name, tensor


def _dealt(neurons: Floats, experts: int, down: bool) -> Floats:
    """``(neurons, hidden)`` as ``(experts, width, hidden)``; for ``down`` transposed and scaled."""
    each = neurons.reshape(experts, -1, neurons.shape[1])
    return each.swapaxes(1, 2) * np.float32(experts) if down else each


def _halves_first(values: Mapping[str, Any], part: str, rows: int) -> npt.NDArray[np.int64]:
    """Row order that Qwen's rotary embedding wants: a head's first halves, then its second ones."""
    heads = int(values["llama.attention.head_count"])
    if part == "attn_k":
        heads = int(values.get("llama.attention.head_count_kv", heads))
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2)
    return order.reshape(rows)


def _copy(writer: Any, name: str, tensor: PackedTensor) -> None:
    import gguf

    if tensor.type in PLAIN:
        # gguf tells shapes from bytes for packed types only.
        width = np.dtype({"F32": np.float32, "F16": np.float16}.get(tensor.type, np.uint16))
        values = np.ascontiguousarray(tensor.data).view(width).reshape(tensor.shape)
        writer.add_tensor(name, values, raw_dtype=gguf.GGMLQuantizationType[tensor.type])
    else:
        data = np.ascontiguousarray(tensor.data)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[tensor.type])


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif len(items := list(value)):
        writer.add_array(key, items)
