"""Hostile GGUF files: one row a case, with the code and the field its error must name."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from .gguf_bytes import (
    ARRAY,
    F32,
    I32,
    PAIRS,
    STRING,
    TENSORS,
    U8,
    U32,
    File,
    Pair,
    Tensor,
    aligned,
    array,
    string,
    text,
    u32,
    u64,
    without,
)


@dataclass(frozen=True)
class Case:
    """``data`` must be refused with ``code``; ``field`` and ``says`` must be in the error."""

    id: str
    data: bytes
    code: str
    field: str = ""
    says: str = ""


BASE = File().build()
N_PAIRS = len(PAIRS)


def _with_pair(pair: Pair) -> bytes:
    return File(pairs=[*PAIRS, pair]).build()


def _first(**changes: object) -> bytes:
    return File(tensors=[replace(TENSORS[0], **changes), *TENSORS[1:]]).build()


def _last(tail: bytes = b"", **changes: object) -> bytes:
    return File(tensors=[*TENSORS[:2], replace(TENSORS[2], **changes)], tail=tail).build()


def _swapped() -> bytes:
    return b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64)


def _long(value: int) -> str:
    return {2**63: "2^63", 2**64 - 1: "2^64-1"}.get(value, str(value))


def _header_cases() -> list[Case]:
    cases = [Case("G1-empty", b"", "KT408", says="is empty")]
    cases += [
        Case(f"G2-cut-{n}", BASE[:n], "KT408", says=f"ends at byte {n}") for n in range(1, 24)
    ]
    cases += [
        Case("G3-FUGG", b"FUGG" + BASE[4:], "KT409", says="big-endian"),
        Case("G3-xGUF", b"xGUF" + BASE[4:], "KT407", "magic"),
        Case("G3-big-endian", _swapped(), "KT409", "version", "big-endian GGUF file (version 3)"),
    ]
    cases += [
        Case(f"G4-version-{n}", File(version=n).build(), "KT409", "version", f"version {n};")
        for n in (0, 1, 4, 2**32 - 1)
    ]
    for n in (2**63, 2**64 - 1):
        cases.append(Case(f"G5-n_kv-{_long(n)}", File(n_pairs=n).build(), "KT411", "kv_count"))
        cases.append(
            Case(f"G6-n_tensors-{_long(n)}", File(n_tensors=n).build(), "KT411", "tensor_count")
        )
    most = (len(BASE) - 24) // 14
    cases.append(Case("G5-one-more-than-fits", File(n_pairs=most + 1).build(), "KT411", "kv_count"))
    # As many as could fit by size: the walk runs into the tensors and must end in an error too.
    cases.append(Case("G5-all-that-fits", File(n_pairs=most).build(), "KT41"))
    cases.append(Case("G6-one-more", File(n_tensors=len(TENSORS) + 1).build(), "KT41"))
    return cases


def _name_cases() -> list[Case]:
    cases = []
    after_key = len(File(pairs=PAIRS[:1]).build()) - 24 - 8
    for n in (2**63, 2**64 - 1, 2**64 - 8, after_key + 1):
        cases += [
            Case(
                f"G7-key-length-{_long(n)}",
                File(pairs=[replace(PAIRS[0], key_length=n)]).build(),
                "KT41",
                "kv[0].key",
            ),
            Case(
                f"G7-name-length-{_long(n)}",
                File(tensors=[replace(TENSORS[0], name_length=n)]).build(),
                "KT41",
                "tensor[0].name",
            ),
        ]
    for n in (2**63, 2**64 - 1, 2**64 - 8, len(BASE)):
        cases += [
            Case(
                f"G7-value-length-{_long(n)}",
                _with_pair(Pair("k", STRING, u64(n) + b"abc")),
                "KT411",
                f"kv[{N_PAIRS}] k",
            ),
            Case(
                f"G7-item-length-{_long(n)}",
                _with_pair(Pair("k", ARRAY, u32(STRING) + u64(2) + string("a") + u64(n) + b"b")),
                "KT411",
                f"kv[{N_PAIRS}] k[1]",
            ),
        ]
    cases += [
        Case("G8-empty-key", _with_pair(text("", "x")), "KT412", f"kv[{N_PAIRS}].key", "empty"),
        Case("G8-long-key", _with_pair(text("k" * 65_536, "x")), "KT412", says="65536 bytes"),
        Case("G19-empty-name", _first(name=""), "KT412", "tensor[0].name", "empty"),
        Case("G19-name-64", _first(name="n" * 64), "KT412", "tensor[0].name", "64 bytes"),
        Case("G20-same-tensor", _last(name=TENSORS[0].name), "KT415", "tensor[2].name"),
        Case("G20-same-key", _with_pair(text("a.u8", "x")), "KT415", f"kv[{N_PAIRS}].key"),
    ]
    bad = {"utf8": (b"\xff\xfe", "\\xff"), "nul": (b"a\0b", "\\x00"), "newline": (b"a\nb", "\\n")}
    bad |= {"escape": (b"\x1b[2J", "\\x1b"), "c1": ("a\x9bb".encode(), "\\x9b")}
    bad |= {"bidi": ("a\u202eb".encode(), "\\u202e"), "cut-utf8": (b"a\xe2\x82", "\\xe2")}
    for what, (raw, shown) in bad.items():
        cases.append(Case(f"G9-key-{what}", _with_pair(text(raw, "x")), "KT412", ".key", shown))
        cases.append(Case(f"G9-name-{what}", _first(name=raw), "KT412", ".name", shown))
    return cases


def _value_cases() -> list[Case]:
    cases = [
        Case(
            f"G10-type-{n % 2**32}",
            _with_pair(Pair("k", n, bytes(16))),
            "KT413",
            f"kv[{N_PAIRS}] k",
            f"type {n % 2**32}",
        )
        for n in (13, 99, -1)
    ]
    cases += [
        Case(
            "G11-2^62-bytes-in-49",
            b"GGUF" + u32(3) + u64(0) + u64(1) + string("k") + u32(ARRAY) + u32(U8) + u64(2**62),
            "KT411",
            "kv[0] k",
        ),
        *(
            Case(
                f"G11-{_long(count)}-items-of-{item}",
                _with_pair(array("k", item, [], count)),
                "KT411",
                f"kv[{N_PAIRS}] k",
            )
            for item in (U8, STRING, 12)
            for count in (2**62, 2**63, 2**64 - 1, len(BASE) + 1)
        ),
        Case("G12-item-type-99", _with_pair(Pair("k", ARRAY, u32(99) + u64(1))), "KT413"),
        Case(
            "G13-nested-20000",
            _with_pair(Pair("k", ARRAY, (u32(ARRAY) + u64(1)) * 20_000 + u32(U8) + u64(0))),
            "KT413",
            f"kv[{N_PAIRS}] k",
            "array of arrays",
        ),
    ]
    cases += [
        Case(
            f"G15-alignment-{n}",
            File(pairs=aligned(n)).build(),
            "KT414",
            "general.alignment",
            f"is {n};",
        )
        for n in (0, 13, 33, 2**31, 2**32 - 1)
    ]
    cases += [
        Case("G15-alignment-i32", File(pairs=aligned(32, I32)).build(), "KT414", says="int32"),
        Case("G15-alignment-f32", File(pairs=aligned(32, F32)).build(), "KT414", says="float32"),
        Case(
            "G15-alignment-string",
            File(pairs=[*without("general.alignment"), text("general.alignment", "32")]).build(),
            "KT414",
            says="string",
        ),
        Case(
            "G15-alignment-array",
            File(
                pairs=[*without("general.alignment"), array("general.alignment", U32, [32])]
            ).build(),
            "KT414",
            says="uint32[1]",
        ),
        Case("G15-alignment-unmet", File(pairs=aligned(64)).build(), "KT41"),
    ]
    return cases


def _tensor_cases() -> list[Case]:
    cases = [
        Case(f"G22-n_dims-{n}", _first(n_dims=n), "KT416", "tensor[0]", f"{n} dimensions")
        for n in (5, 1_000_000, 2**31, 2**32 - 1)
    ]
    shapes = {
        "G23-dim-2^64-1": ((2**64 - 1,), "negative"),
        "G23-dim-2^63": ((2**63, 1), "negative"),
        "G25-2^32x2^32": ((2**32, 2**32), "more values"),
        "G26-wraps-to-4": ((2**62 + 1, 4), "more values"),
        "G26-triple-wraps-to-4": ((2**31, 2**31, 2**2 + 2**34), "more values"),
        "G26-zero-of-2^62": ((0, 2**62, 4), "more values"),
        "G26-all-2^63-1": ((2**63 - 1,) * 4, "more values"),
    }
    cases += [
        Case(name, _first(dims=dims), "KT416", "tensor[0]", says)
        for name, (dims, says) in shapes.items()
    ]
    cases += [
        Case(
            "G24-half-a-block",
            File(tensors=[TENSORS[0], replace(TENSORS[1], dims=(48, 2))]).build(),
            "KT416",
            "tensor[1]",
            "rows of 48 values; Q4_0 stores blocks of 32",
        ),
        Case(
            "G24-scalar-of-blocks",
            File(tensors=[replace(TENSORS[1], dims=())]).build(),
            "KT416",
            "tensor[0]",
        ),
        *(
            Case(
                f"G27-sum-of-{_long(size)}",
                File(
                    tensors=[
                        Tensor("a", (size,), 24, bytes(32)),
                        Tensor("b", (size,), 24, bytes(32), offset=size),
                    ]
                ).build(),
                code,
                "tensor[0] a",
            )
            for size, code in ((2**63 - 64, "KT416"), (2**55, "KT419"))
        ),
    ]
    cases += [
        Case(
            f"G28-type-{n % 2**32}",
            _first(type=n),
            "KT417",
            "tensor[0] blk.0.attn_q.weight",
            f"type {n % 2**32}",
        )
        for n in (-1, 4, 5, 31, 36, 999)
    ]
    cases += [
        Case("G30-offset-2^64-1", _last(offset=2**64 - 1), "KT418", "tensor[2]"),
        Case("G30-offset-2^40", _last(offset=2**40), "KT418", "tensor[2]", "gap"),
        Case("G30-offset-eof-1", _last(offset=len(BASE) - 1), "KT418", "tensor[2]"),
        Case("G30-first-offset-32", _first(offset=32), "KT418", "tensor[0]", "gap"),
        Case("G31-unaligned", _last(bytes(64), offset=97), "KT418", "tensor[2]", "alignment 32"),
        Case("G32-overlap", _last(offset=0), "KT418", "tensor[2]", "inside an earlier tensor"),
        Case("G32-overlap-half", _last(offset=64), "KT418", "tensor[2]", "inside"),
        Case("G32-gap", _last(bytes(64), offset=128), "KT418", "tensor[2]", "gap"),
        Case(
            "G32-out-of-order",
            File(tensors=[replace(TENSORS[0], offset=32), replace(TENSORS[2], offset=0)]).build(),
            "KT418",
            "tensor[0]",
        ),
        Case("G33-cut-1", BASE[:-1], "KT419", "tensor[2] output.weight", "at least 1 bytes"),
        Case("G33-cut-block", BASE[:-32], "KT419", says="cut off"),
        Case("G33-cut-half", BASE[: len(BASE) - 64], "KT419", "tensor[1]"),
        Case("G33-no-data", BASE[: len(BASE) - 106], "KT419", "tensor[0]"),
    ]
    cases += [
        Case("G34-joined", File(pad_last=True).build() + BASE, "KT425", says="joined with cat"),
        Case("G34-joined-unpadded", BASE + BASE, "KT425", says="joined with cat"),
    ]
    return cases


def _foreign_cases() -> list[Case]:
    pointer = (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:"
        + b"0" * 64
        + b"\nsize 98362432\n"
    )
    return [
        Case("F1-lfs-pointer", pointer, "KT405", says="git lfs pull"),
        Case("F2-zip", b"PK\x03\x04" + bytes(60), "KT406", says="convert the model"),
        *(
            Case(
                f"F3-pickle-{n}", bytes([0x80, n]) + b"}q\x00." + bytes(60), "KT406", says="pickle"
            )
            for n in range(2, 6)
        ),
        Case("F4-ggml", b"tjgg" + bytes(60), "KT406", says="before GGUF"),
        Case("F5-html", b"<!DOCTYPE html><html>404</html>", "KT407", says="web page"),
        Case("F6-gzip", b"\x1f\x8b\x08" + bytes(60), "KT407", says="compressed"),
        Case("F7-json", b'{"error": "not found"}', "KT407", "magic"),
        Case("F8-zeros", bytes(4096), "KT407", "magic"),
        Case("F9-escape", b"\x1b[2J" * 8, "KT407", says="\\x1b[2J"),
    ]


CASES = [
    *_header_cases(),
    *_name_cases(),
    *_value_cases(),
    *_tensor_cases(),
    *_foreign_cases(),
]

ACCEPTED = {
    "G4-version-2": File(version=2).build(),
    "G4-version-3": BASE,
    "G15-alignment-1": File(pairs=aligned(1), alignment=1).build(),
    "G15-alignment-8": File(pairs=aligned(8), alignment=8).build(),
    "G15-alignment-64": File(pairs=aligned(64), alignment=64).build(),
    "G15-no-alignment": File(pairs=without("general.alignment")).build(),
    "G19-name-63": _first(name="n" * 63),
    "G8-key-65535": _with_pair(text("k" * 65_535, "x")),
    "G22-scalar": File(tensors=[Tensor("s", (), 0, bytes(4))]).build(),
    "G22-zero-dim": File(tensors=[Tensor("z", (32, 0), 2, b""), TENSORS[0]]).build(),
    "G22-4-dims": File(tensors=[Tensor("d", (2, 1, 2, 1), 0, bytes(16))]).build(),
    "no-tensors": File(tensors=[]).build(),
    "no-pairs": File(pairs=[]).build(),
    "nothing": File(pairs=[], tensors=[]).build(),
    "padded-end": File(pad_last=True).build(),
}
