"""Device names as text: whether one is well-formed, not whether the device is there."""

from __future__ import annotations

import re

_NAME = re.compile(r"(cpu|cuda|xpu|npu)(?::([0-9]+))?\Z")
_LIKE = re.compile(r"([a-z]+)[\s:_-]*([0-9]*)\Z")
_MEANT = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "rocm": "cuda",
    "hip": "cuda",
    "host": "cpu",
    "ram": "cpu",
    "cudnn": "cuda",
}
KINDS = ("cpu", "cuda", "xpu", "npu")


def kind_of(device: str) -> str | None:
    """Return ``"cuda"`` for ``"cuda:1"``; ``None`` if ``device`` is not well-formed."""
    found = _NAME.match(device)
    if found is None:
        return None
    kind, number = found.groups()
    if number is not None and (str(int(number[:6])) != number or (kind == "cpu" and number != "0")):
        return None
    return kind


def meant_by(device: str) -> str | None:
    """Return what a malformed device name was probably meant to be."""
    found = _LIKE.match(device.strip().lower())
    if found is None:
        return None
    word, number = found.groups()
    kind = _MEANT.get(word, word)
    if kind not in KINDS:
        from kt_core.rules.suggest import did_you_mean

        near = did_you_mean(kind, KINDS)
        if near is None:
            return None
        kind = near
    if kind == "cpu" or not number:
        return kind
    return f"{kind}:{int(number[:4])}"
