"""What a file is by its first bytes, so that a wrong file is named for what it is."""

from __future__ import annotations

from dataclasses import dataclass

from kt_core.weights.files import WeightFile
from kt_core.weights.text import error, raw_name

GGUF_MAGIC = b"GGUF"
MAX_SAFETENSORS_HEADER = 100_000_000
"""Longest safetensors header in bytes (the format's own limit)."""

FORMATS = ("gguf", "safetensors")

CONVERT = (
    "kt never opens pickle files; convert the model to safetensors "
    "(save_pretrained with safe_serialization=True) or to GGUF"
)


@dataclass(frozen=True)
class Foreign:
    """A kind of file that is no weight file of ours: how it begins, what it is, what to do."""

    starts: tuple[bytes, ...]
    code: str
    what: str
    help: str


FOREIGN = (
    Foreign(
        (b"version https://git-lfs.github.com/spec/",),
        "KT405",
        "is a Git LFS pointer; the model itself was not downloaded",
        "git lfs pull",
    ),
    Foreign(
        (b"FUGG",),
        "KT409",
        "is a GGUF file with its magic in big-endian order; kt reads little-endian files",
        "download the little-endian file, or convert it with gguf-convert-endian",
    ),
    Foreign((b"PK\x03\x04", b"PK\x05\x06"), "KT406", "is a ZIP archive or a torch pickle", CONVERT),
    Foreign(
        tuple(b"\x80" + bytes([protocol]) for protocol in range(1, 6)),
        "KT406",
        "is a pickle",
        CONVERT,
    ),
    Foreign(
        (b"lmgg", b"fmgg", b"tjgg", b"algg"),
        "KT406",
        "is a GGML file from before GGUF",
        "convert the model again with a current converter",
    ),
    Foreign(
        (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"7z\xbc\xaf\x27\x1c"),
        "KT407",
        "is a compressed archive",
        "unpack it first",
    ),
    Foreign(
        (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML", b"<?xml"),
        "KT407",
        "is a web page, probably an error message saved in place of the download",
        "download the file again from its direct link",
    ),
    Foreign(
        (b"Entry not found", b"Not Found", b"Invalid username"),
        "KT407",
        "is a server's error message saved in place of the download",
        "download the file again; the model may need a licence to be accepted or a token",
    ),
    Foreign((b"\x89HDF\r\n",), "KT406", "is an HDF5 file", CONVERT),
    Foreign((b"\x93NUMPY",), "KT407", "is a numpy array", "give the GGUF or safetensors file"),
    Foreign((b"\x7fELF",), "KT407", "is a program", "give the GGUF or safetensors file"),
)


def looks_like(file: WeightFile) -> str | None:
    """Return ``"gguf"`` or ``"safetensors"`` by content, else by name, ``None`` if neither says."""
    head = file.read(0, min(9, file.size))
    actual = _actual(head)
    if actual or any(head.startswith(foreign.starts) for foreign in FOREIGN):
        return actual
    lower = file.path.lower()
    return next((name for name in FORMATS if lower.endswith("." + name)), None)


def refuse_foreign(file: WeightFile, wanted: str | None) -> None:
    """Raise ``WeightsError`` if ``file`` cannot be of the format ``wanted`` by its first bytes."""
    head = file.read(0, min(64, file.size))
    path = file.path
    if not head:
        raise error(
            "KT408",
            path,
            "is empty",
            offset=0,
            help="download the file again; the download stopped before its first byte",
        )
    actual = _actual(head)
    if actual is not None and actual == wanted:
        return
    if actual is not None:
        raise error(
            "KT407",
            path,
            f"is a {actual} file, not {wanted}",
            field="magic",
            offset=0,
            help=f"open it with format={actual!r}, or without a format",
        )
    for foreign in FOREIGN:
        if head.startswith(foreign.starts):
            raise error(foreign.code, path, foreign.what, offset=0, help=foreign.help)
    if wanted == "safetensors":
        return  # its first eight bytes are a length, which has its own checks
    if wanted == "gguf" and GGUF_MAGIC.startswith(head):
        raise error(
            "KT408",
            path,
            f"the header is cut off: the file ends at byte {file.size}",
            field="magic",
            offset=0,
            help="download the file again; the download stopped early",
        )
    raise error(
        "KT407",
        path,
        f"is no {wanted} file" if wanted else "is neither a GGUF nor a safetensors file",
        field="magic",
        offset=0,
        facts=(f"it begins: {raw_name(head[:16])}  (hex {head[:16].hex(' ')})",),
        help="give the .gguf or .safetensors file, or the folder that holds it",
    )


def _actual(head: bytes) -> str | None:
    if head.startswith(GGUF_MAGIC):
        return "gguf"
    # Before the foreign kinds: a header length of 640 begins like a pickle.
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and length <= MAX_SAFETENSORS_HEADER:
        return "safetensors"
    return None
