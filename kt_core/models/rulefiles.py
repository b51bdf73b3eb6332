"""The shipped rule files of all families, made from one description, so that none can rot.

``python -m kt_core.models.rulefiles rules`` writes them again; a test holds the files against it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kt_core.models.described import FAMILIES, Described

CPU_LINEAR, CPU_EXPERTS = "kt_ops_cpu.linear", "kt_ops_cpu.experts"
GPU_LINEAR, GPU_EXPERTS = "kt_ops_cuda.marlin", "kt_ops_cuda.experts"
INT8_LINEAR, INT8_EXPERTS = "kt_ops_amd_blis.linear_int8", "kt_ops_amd_blis.moe_int8"
TORCH_LINEAR, TORCH_EXPERTS = "kt_core.torch_linear", "kt_core.torch_experts"


@dataclass(frozen=True)
class _Rule:
    comment: str
    name: str | None
    match_class: str | None
    replace: str
    kwargs: Mapping[str, str]
    recursive: bool = True

    def text(self) -> str:
        lines = [f"  # {self.comment}", "  - match:"]
        if self.name is not None:
            lines.append(f"      name: {_scalar(self.name)}")
        if self.match_class is not None:
            lines.append(f"      class: {self.match_class}")
        lines += ["    replace:", f"      class: {self.replace}", "      kwargs:"]
        lines += [f"        {key}: {value}" for key, value in self.kwargs.items()]
        if not self.recursive:
            lines.append("    recursive: false")
        return "\n".join(lines)


def _scalar(text: str) -> str:
    """A pattern as YAML: plain where that is safe, else in single quotes."""
    plain = text[0] in "^\\" and not any(mark in text for mark in (": ", " #", "'"))
    return text if plain else "'" + text.replace("'", "''") + "'"


def _kwargs(
    device: str, prefill_op: str | None = None, decode_op: str | None = None
) -> dict[str, str]:
    placed = {"generate_device": device, "prefill_device": device}
    if prefill_op is None:
        return placed
    return {**placed, "generate_op": decode_op or prefill_op, "prefill_op": prefill_op}


def _linears(
    family: Described, kwargs: Mapping[str, str], layers: str | None = None, more: str = ""
) -> _Rule:
    """All linear layers of the decoder layers that ``layers`` finds, but for those that are kept."""
    kept = f"(?!.*\\.{family.kept}$)" if family.kept else ""
    begin = f"^{kept}model\\.layers\\.{layers or ''}"
    said = f"but for {family.kept}, kept in the model's dtype" if kept else "all of them"
    return _Rule(
        f"Linear layers, {said}{more}.",
        begin + (r"\." if layers else ""),
        "torch.nn.Linear",
        "kt_core.Linear",
        kwargs,
    )


def _head(kwargs: Mapping[str, str]) -> _Rule:
    return _Rule("The head.", "^lm_head$", "torch.nn.Linear", "kt_core.Linear", kwargs)


def _experts(
    family: Described, comment: str, kwargs: Mapping[str, str], layers: str | None = None
) -> _Rule:
    begin = "" if layers is None else rf"^model\.layers\.{layers}"
    name = rf"{begin}\.{family.part}\.experts$"
    return _Rule(comment, name, None, "kt_core.Experts", kwargs, recursive=False)


def _attention(family: Described, device: str, layers: str | None = None) -> Iterator[_Rule]:
    """Latent attention, for the families that have it."""
    if family.latent:
        name = r"\.self_attn$" if layers is None else rf"^model\.layers\.{layers}\.self_attn$"
        said = "Attention to the compressed cache as it is, expanded for long calls only."
        yield _Rule(said, name, None, "kt_core.MlaAttention", _kwargs(device))


def _block(family: Described, device: str, layers: str | None = None) -> Iterator[_Rule]:
    """Blocks with shared experts, where those are on another device than the routed ones."""
    if family.block:
        name = None if layers is None else rf"^model\.layers\.{layers}\.mlp$"
        said = "Shared experts run on the GPU while the CPU computes the routed ones."
        yield _Rule(said, name, family.block_class, "kt_core.MoeBlock", _kwargs(device))


def _rest(device: str, comment: str = "Embeddings, norms, routers and all else.") -> _Rule:
    return _Rule(comment, ".", None, "default", _kwargs(device))


# Decoding waits for the weights, so that 16 bits cost it 3 %; a prompt would take up to 1.8 times as long.
_DECODE_BITS = {"decode_activation_bits": "16"}
_DECODE_SAID = "activations in 16 bits for decoding"


def _cpu(family: Described) -> Iterator[_Rule]:
    if family.experts:
        yield _experts(
            family,
            f"Routed experts, on the blocks as they lie in the file; {_DECODE_SAID}.",
            {**_kwargs("cpu", CPU_EXPERTS), **_DECODE_BITS},
        )
    # Every value passes the linear layers, and small models feel activations of 8 bits there: SmolLM2
    # answers otherwise than unquantised. It costs a sixth of a MoE's prompt.
    kwargs = {**_kwargs("cpu", CPU_LINEAR), "activation_bits": "16"}
    more = ", activations rounded to 16 bits"
    yield from _attention(family, "cpu")
    yield from _fused(family, "kt_ops_cpu", "cpu")
    yield _linears(family, kwargs, more=more)
    yield _head(kwargs)
    yield _rest("cpu")


def _torch(family: Described) -> Iterator[_Rule]:
    if family.experts:
        yield _experts(family, "Routed experts, dequantised.", _kwargs("cpu", TORCH_EXPERTS))
    yield from _attention(family, "cpu")
    yield _linears(family, _kwargs("cpu", TORCH_LINEAR))
    yield _head(_kwargs("cpu", TORCH_LINEAR))
    yield _rest("cpu")


def _amd_int8(family: Described) -> Iterator[_Rule]:
    prefill, decode = INT8_LINEAR, CPU_LINEAR
    if family.experts:
        yield _experts(
            family,
            "Routed experts: int8 GEMMs for prompts, the file's packed blocks token by token.",
            _kwargs("cpu", INT8_EXPERTS, CPU_EXPERTS),
        )
        prefill = CPU_LINEAR
    yield from _attention(family, "cpu")
    yield from _fused(family, "kt_ops_cpu", "cpu")
    yield _linears(family, _kwargs("cpu", prefill, decode))
    yield _head(_kwargs("cpu", CPU_LINEAR))
    yield _rest("cpu")


def _fused(family: Described, package: str, device: str) -> Iterator[_Rule]:
    """What surrounds the products: without these a decode step has four times as many kernels."""
    for what, name, operator, comment in (
        (
            "attention",
            r"^model\.layers\.\d+$",
            "DecoderLayer",
            "A layer's sums belong to its norms.",
        ),
        ("attention", r"\.self_attn$", "Attention", "Attention, one kernel in a decode step."),
        ("attention", "norm$", "RMSNorm", "Norms, one kernel each."),
        ("router", r"\.mlp\.gate$", "Router", "Routers, in the model's dtype."),
    ):
        if what in family.fused.split():
            yield _Rule(comment, name, None, f"{package}.{operator}", _kwargs(device))


def _gpu(family: Described) -> Iterator[_Rule]:
    if family.experts:
        yield _experts(family, "Routed experts.", _kwargs("cuda", GPU_EXPERTS))
    yield from _fused(family, "kt_ops_cuda", "cuda")
    yield from _attention(family, "cuda")
    yield _linears(family, _kwargs("cuda", GPU_LINEAR))
    yield _head(_kwargs("cuda", GPU_LINEAR))
    yield _rest("cuda")


_ON_CPU = (
    "Routed experts stay in the host's memory. A prefill_device of cuda would hold them there too."
)


def _hybrid(family: Described) -> Iterator[_Rule]:
    yield _experts(
        family, _ON_CPU, {**_kwargs("cpu", CPU_EXPERTS), "out_device": "cuda", **_DECODE_BITS}
    )
    yield from _block(family, "cuda")
    yield from _attention(family, "cuda")
    yield from _fused(family, "kt_ops_cuda", "cuda")
    yield _linears(family, _kwargs("cuda", GPU_LINEAR), more="; shared experts are among them")
    yield _head(_kwargs("cuda", GPU_LINEAR))
    yield _embedding()
    yield _rest("cuda", "Norms, routers and all else.")


def _embedding() -> _Rule:
    return _Rule(
        "A table look-up costs nothing on the host and much memory on the GPU.",
        r"^model\.embed_tokens$",
        None,
        "default",
        _kwargs("cpu"),
    )


def _multi_gpu(family: Described, count: int) -> Iterator[_Rule]:
    """Layers in equal shares; the last GPU, which also holds the head, gets no more than the others."""
    bounds = [family.layers * part // count for part in range(count + 1)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        layers, device = number_pattern(first, end - 1), f"cuda:{number}"
        where = f"layers {first} to {end - 1}"
        kwargs = {**_kwargs("cpu", CPU_EXPERTS), "out_device": device, **_DECODE_BITS}
        yield _experts(family, f"Routed experts of {where}, in the host's memory.", kwargs, layers)
        yield from _block(family, device, layers)
        yield from _attention(family, device, layers)
        yield _linears(family, _kwargs(device, GPU_LINEAR), layers, f"; {where}")
        yield _Rule(
            f"All else in {where}.",
            rf"^model\.layers\.{layers}\.",
            None,
            "default",
            _kwargs(device),
        )
    last = f"cuda:{count - 1}"
    yield _head(_kwargs(last, GPU_LINEAR))
    yield _Rule("The last norm.", r"^model\.norm$", None, "default", _kwargs(last))
    yield _embedding()
    yield _rest("cuda:0", "All else.")


def number_pattern(first: int, last: int) -> str:
    """A regular expression for the whole numbers from ``first`` to ``last``, at most two digits.

    Raises:
        ValueError: for other numbers.
    """
    if not 0 <= first <= last <= 99:
        raise ValueError(f"{first} to {last} are not numbers of at most two digits")
    tens_of: dict[str, list[int]] = {}  # what may stand behind a digit -> the digits
    for tens in range(first // 10, last // 10 + 1):
        units = _digits(max(first - 10 * tens, 0), min(last - 10 * tens, 9))
        tens_of.setdefault(units if tens else f" {units}", []).append(tens)
    parts = [
        units.strip() if units[0] == " " else _digits(tens[0], tens[-1]) + units
        for units, tens in tens_of.items()
    ]
    return f"({'|'.join(parts)})"


def _digits(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


_VARIANTS = {
    "cpu": (_cpu, "On the CPU, computed on the file's packed blocks."),
    "torch": (_torch, "On the CPU with nothing but torch: every weight dequantised."),
    "amd-int8": (_amd_int8, "On the CPU, prompts in int8 through AMD BLIS (AVX512-VNNI)."),
    "gpu": (_gpu, "On one GPU."),
}


def rule_files() -> dict[str, str]:
    """Return every generated file: path below ``rules/`` -> text."""
    found = {}
    for family in FAMILIES:
        for variant, (rules, what) in _VARIANTS.items():
            found[f"{family.folder}/{variant}.yaml"] = _text(family, what, rules(family))
        if family.experts:
            what = "On one GPU, but for the routed experts, which the CPU computes."
            found[f"{family.folder}/hybrid.yaml"] = _text(family, what, _hybrid(family))
        for count in (2, 4, 8) if family.layers else ():
            what = f"{family.layers} layers over {count} GPUs, their routed experts on the CPU."
            text = _text(family, what, _multi_gpu(family, count))
            found[f"{family.folder}/multi-gpu-{count}.yaml"] = text
    return found


def _text(family: Described, what: str, rules: Iterator[_Rule]) -> str:
    head = [
        f"# {family.title}.",
        "# Written by kt_core/models/rulefiles.py: change that, not this. A file of your own may",
        "# begin as a copy.",
        "version: 1",
        f"architectures: [{', '.join(family.architectures)}]",
        f"description: {json.dumps(what)}",
        "rules:",
    ]
    return "\n".join(head) + "\n" + "\n\n".join(rule.text() for rule in rules) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write all files below the folder that is named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="the checkout's rules/")
    folder = parser.parse_args(argv).folder
    for path, text in rule_files().items():
        target = folder / path
        target.parent.mkdir(exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
