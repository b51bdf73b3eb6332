"""Device names as text: whether one is well-formed, not whether the device is there."""

from __future__ import annotations

import re

from kt_core.devices.kinds import known_kinds, split

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_LIKE = re.compile(r"([a-z]+)[\s:_-]*([0-9]*)\Z")
_MEANT = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "rocm": "cuda",
    "hip": "cuda",
    "host": "cpu",
    "ram": "cpu",
    "cudnn": "cuda",
    "metal": "mps",
    "apple": "mps",
    "ascend": "npu",
}


def kind_of(device: str) -> str | None:
    """Return ``"cuda"`` for ``"cuda:1"``; ``None`` if ``device`` is not well-formed."""
    found = split(device)
    if found is None:
        return None
    number = device.partition(":")[2]
    return found[0] if not number or _NUMBER.fullmatch(number) else None


def meant_by(device: str) -> str | None:
    """Return what a malformed device name was probably meant to be."""
    found = _LIKE.match(device.strip().lower())
    if found is None:
        return None
    word, number = found.groups()
    kind = _MEANT.get(word, word)
    if kind not in known_kinds():
        from kt_core.rules.suggest import did_you_mean

        near = did_you_mean(kind, known_kinds())
        if near is None:
            return None
        kind = near
    if kind in ("cpu", "mps") or not number:
        return kind
    return f"{kind}:{int(number[:4])}"
