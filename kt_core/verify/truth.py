"""What each parameter must hold, read from the file a second time and in another way.

The adapters in :mod:`kt_core.models.families` say how a parameter is made of stored tensors. If
``kt verify`` asked them too, a mistake of theirs would be on both sides of the comparison. So this
module knows the conventions of the files once more, as a table of names and plain float32
arithmetic, and shares no table, transform or binding with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kt_core.weights import PackedTensor, WeightSource

Rows = slice | np.ndarray[Any, Any] | None
"""Which rows of a matrix are wanted; ``None``: all."""

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)\.(\w+)$")

# Module inside a layer -> the tensor's name inside its block. Of several the first that is present
# counts. The ending (.weight, .bias) is that of the parameter.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "input_layernorm": ("attn_norm",),
    # Where both are present, ffn_norm is the norm before the feed-forward part (Gemma 3).
    "post_attention_layernorm": ("post_attention_norm", "ffn_norm"),
    "pre_feedforward_layernorm": ("ffn_norm",),
    "post_feedforward_layernorm": ("post_ffw_norm",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
    "self_attn.q_a_proj": ("attn_q_a",),
    "self_attn.q_a_layernorm": ("attn_q_a_norm",),
    "self_attn.q_b_proj": ("attn_q_b",),
    "self_attn.kv_a_proj_with_mqa": ("attn_kv_a_mqa",),
    "self_attn.kv_a_layernorm": ("attn_kv_a_norm",),
    "self_attn.kv_b_proj": ("attn_kv_b",),
    "linear_attn.in_proj_qkvz": ("ssm_in",),
    "linear_attn.in_proj_ba": ("ssm_ba", "ssm_beta_alpha"),
    "linear_attn.out_proj": ("ssm_out",),
    "linear_attn.norm": ("ssm_norm",),
    "linear_attn.conv1d": ("ssm_conv1d",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_down",),
    "mlp.gate": ("ffn_gate_inp",),
    "mlp.router": ("ffn_gate_inp",),
    "block_sparse_moe.primary_router": ("ffn_gate_inp",),
    "mlp.shared_expert_gate": ("ffn_gate_inp_shexp",),
    **{
        f"mlp.{shared}.{part}_proj": (f"ffn_{part}_shexp",)
        for shared in ("shared_expert", "shared_experts")
        for part in ("gate", "up", "down")
    },
}
_OUTSIDE = {
    "model.embed_tokens.weight": ("token_embd.weight",),
    "model.norm.weight": ("output_norm.weight",),
    "lm_head.weight": ("output.weight", "token_embd.weight"),
    "lm_head.bias": ("output.bias",),
}
_BARE = {
    "self_attn.sinks": ("attn_sinks.weight", "attn_sinks"),
    "linear_attn.A_log": ("ssm_a",),
    "linear_attn.dt_bias": ("ssm_dt.bias",),
    "mlp.e_score_correction_bias": ("exp_probs_b.bias", "exp_probs_b"),
    "mlp.gate.e_score_correction_bias": ("exp_probs_b.bias", "exp_probs_b"),
}
_OWNERS = {word: module for module, words in reversed(list(_NAMES.items())) for word in words}
_EXPERT_PART = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
# What files hold that no module has: rotary tables, and layers that predict further tokens ahead.
_APART = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight|.*rotary_emb\.inv_freq")


class Truth(Protocol):
    """Where the reference's weights come from. All values are float32 on the CPU."""

    def parameter(self, name: str, shape: Sequence[int], rows: Rows = None) -> torch.Tensor | None:
        """One parameter by its dotted name, or rows of it; ``None`` if this source has none."""

    def experts(
        self, path: str, parameter: str, numbers: Sequence[int], columns: bool
    ) -> torch.Tensor | None:
        """The fused ``parameter`` of some experts, as transformers lays it out.

        ``columns``: weights are ``(in, out)`` and gate and up alternate.
        """

    def left_over(self) -> dict[str, str]:
        """Stored tensors that nothing asked for, each with the module that it is meant for, or ""."""


class GgufTruth:
    """Reads a GGUF file by the conventions of the format's own converter."""

    def __init__(self, source: WeightSource, config: Any) -> None:
        self._source = source
        self._config = config
        self._architecture = str(source.metadata.get("general.architecture"))
        self._asked: set[str] = set()

    def parameter(self, name: str, shape: Sequence[int], rows: Rows = None) -> torch.Tensor | None:
        """See :class:`Truth`."""
        special = self._special(name)
        if special is not None:
            values = special.reshape(tuple(shape))
            return values if rows is None else values[_index(rows)]
        stored = self._find(self._spellings(name))
        if stored is None:
            return None
        packed = self._source.tensor(stored)
        if rows is not None and name in _OUTSIDE:  # the large ones, of which rows can be read alone
            return _floats(packed.rows(rows))
        values = self._undo(name, _floats(packed)).reshape(tuple(shape))
        return values if rows is None else values[_index(rows)]

    def experts(
        self, path: str, parameter: str, numbers: Sequence[int], columns: bool
    ) -> torch.Tensor | None:
        """See :class:`Truth`."""
        block = _block(path)
        kind = "bias" if parameter.endswith("_bias") else "weight"
        parts = _EXPERT_PART[parameter.removesuffix("_bias")]
        together = self._stacked(block, "gate_up", kind, numbers) if len(parts) == 2 else None
        if together is not None:
            return together
        found = [self._stacked(block, part, kind, numbers) for part in parts]
        if any(values is None for values in found):
            return None
        values = [
            v.transpose(1, 2) if columns and kind == "weight" else v for v in found if v is not None
        ]
        if len(values) == 1:
            return values[0].contiguous()
        if not columns:
            return torch.cat(values, dim=1)
        return torch.stack(values, dim=-1).flatten(-2)

    def left_over(self) -> dict[str, str]:
        """See :class:`Truth`."""
        layers = int(self._config.num_hidden_layers)
        names = {}
        for name in self._source.tensors:
            found = re.match(r"blk\.(\d+)\.(.+)\.\w+$", name)
            ahead = found is not None and int(found[1]) >= layers
            if name in self._asked or _APART.fullmatch(name) or ahead:
                continue
            owner = "" if found is None else _OWNERS.get(found[2], "")
            names[name] = f"model.layers.{found[1]}.{owner}" if found and owner else ""
        return names

    def _stacked(
        self, block: str, part: str, kind: str, numbers: Sequence[int]
    ) -> torch.Tensor | None:
        name = f"{block}.ffn_{part}_exps.{kind}"
        if name in self._source.tensors:
            self._asked.add(name)
            whole = self._source.tensor(name)
            if len(whole.shape) == 2:
                return _floats(whole)[list(numbers)]
            each = whole.unstack()
            return torch.stack([_floats(each[number]) for number in numbers])
        names = [f"{block}.ffn_{part}.{number}.{kind}" for number in numbers]
        if any(name not in self._source.tensors for name in names):
            return None
        self._asked.update(names)
        return torch.stack([_floats(self._source.tensor(name)) for name in names])

    def _spellings(self, name: str) -> tuple[str, ...]:
        found = _LAYER.match(name)
        if found is None:
            return _OUTSIDE.get(name, ())
        number, module, last = found.groups()
        bare = _BARE.get(f"{module}.{last}", ())
        words = bare or tuple(f"{word}.{last}" for word in _NAMES.get(module, ()))
        return tuple(f"blk.{number}.{word}" for word in words)

    def _find(self, names: Sequence[str]) -> str | None:
        stored = next((name for name in names if name in self._source.tensors), None)
        if stored is not None:
            self._asked.add(stored)
        return stored

    def _undo(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Take back what the converter changes in some architectures."""
        config = self._config
        if self._architecture in ("llama", "internlm2"):
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
            for ending, count in heads.items():
                if f".self_attn.{ending}." in name:
                    return _halves_apart(values, int(count))
        if self._architecture in ("gemma3", "qwen3next") and name.endswith("norm.weight"):
            return values if ".linear_attn." in name else values - 1.0
        return values

    def _special(self, name: str) -> torch.Tensor | None:
        """Parameters that are more than one stored tensor, or another function of it."""
        found = _LAYER.match(name)
        if found is None:
            return None
        block, inner = f"blk.{found[1]}", f"{found[2]}.{found[3]}"
        make: Callable[[str], torch.Tensor | None] | None = {
            "self_attn.kv_b_proj.weight": self._kv_b,
            "linear_attn.A_log": self._a_log,
            "linear_attn.in_proj_qkvz.weight": self._qkvz,
        }.get(inner)
        return None if make is None else make(block)

    def _kv_b(self, block: str) -> torch.Tensor | None:
        pair = [f"{block}.attn_k_b.weight", f"{block}.attn_v_b.weight"]
        whole = self._find([f"{block}.attn_kv_b.weight"])
        self._asked.update(name for name in pair if name in self._source.tensors)
        if whole is not None or any(name not in self._source.tensors for name in pair):
            return None
        config = self._config
        heads, rank = int(config.num_attention_heads), int(config.kv_lora_rank)
        key = _floats(self._source.tensor(pair[0])).reshape(heads, rank, config.qk_nope_head_dim)
        value = _floats(self._source.tensor(pair[1])).reshape(heads, config.v_head_dim, rank)
        rows = [row for head in range(heads) for row in (key[head].T, value[head])]
        return torch.cat(rows)

    def _a_log(self, block: str) -> torch.Tensor | None:
        stored = self._find([f"{block}.ssm_a"])
        return None if stored is None else torch.log(-_floats(self._source.tensor(stored)))

    def _qkvz(self, block: str) -> torch.Tensor | None:
        pair = [f"{block}.attn_qkv.weight", f"{block}.attn_gate.weight"]
        if any(name not in self._source.tensors for name in pair):
            return None
        self._asked.update(pair)
        config = self._config
        heads, key = int(config.linear_num_key_heads), int(config.linear_key_head_dim)
        value = int(config.linear_num_value_heads) * int(config.linear_value_head_dim) // heads
        qkv, z = (_floats(self._source.tensor(name)) for name in pair)
        q, k, v = torch.split(qkv, [heads * key, heads * key, heads * value])
        parts = [p.reshape(heads, -1, p.shape[-1]) for p in (q, k, v, z)]
        return torch.cat(parts, dim=1).flatten(0, 1)


class SafetensorsTruth:
    """Reads a Hugging Face checkpoint, whose names are the parameters' own but for the experts'."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._asked: set[str] = set()

    def parameter(self, name: str, shape: Sequence[int], rows: Rows = None) -> torch.Tensor | None:
        """See :class:`Truth`."""
        names = [*_checkpoint_names(name)]
        if name == "lm_head.weight":
            names.append("model.embed_tokens.weight")
        stored = next((n for n in names if n in self._source.tensors), None)
        if stored is None:
            return None
        self._asked.add(stored)
        packed = self._source.tensor(stored)
        if rows is not None:
            return _floats(packed.rows(rows))
        return _floats(packed).reshape(tuple(shape))

    def experts(
        self, path: str, parameter: str, numbers: Sequence[int], columns: bool
    ) -> torch.Tensor | None:
        """See :class:`Truth`."""
        for place in _checkpoint_names(path):
            if f"{place}.{parameter}" in self._source.tensors:
                self._asked.add(f"{place}.{parameter}")
                each = self._source.tensor(f"{place}.{parameter}").unstack()
                return torch.stack([_floats(each[number]) for number in numbers])
            for words in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
                wanted = words[2:] if parameter == "down_proj" else words[:2]
                if f"{place}.0.{wanted[0]}.weight" not in self._source.tensors:
                    continue
                rows = [
                    torch.cat([self._one(f"{place}.{number}.{word}.weight") for word in wanted])
                    for number in numbers
                ]
                return torch.stack(rows)
        return None

    def _one(self, name: str) -> torch.Tensor:
        self._asked.add(name)
        return _floats(self._source.tensor(name))

    def left_over(self) -> dict[str, str]:
        """See :class:`Truth`; checkpoints carry tensors of other tasks, so nothing is said."""
        return {}


def truth_of(source: WeightSource, config: Any) -> Truth:
    """Return the reading of ``source`` that fits its format."""
    if source.format == "gguf":
        return GgufTruth(source, config)
    return SafetensorsTruth(source)


def _checkpoint_names(name: str) -> Iterator[str]:
    yield name
    if ".mlp." in name:
        yield name.replace(".mlp.", ".block_sparse_moe.", 1)


def _floats(packed: PackedTensor) -> torch.Tensor:
    return torch.from_numpy(np.array(packed.dequantize(), dtype=np.float32))


def _index(rows: Rows) -> Any:
    return torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows


def _block(path: str) -> str:
    return f"blk.{path.split('.')[2]}"


def _halves_apart(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotary pairs side by side -> all first halves of a head before all second halves."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return torch.cat([pairs[:, :, 0], pairs[:, :, 1]], dim=1).reshape(values.shape)
