"""Reading a library's symbols without loading it: right answers, and one error class for the rest."""

from __future__ import annotations

import contextlib

import pytest

from kt_ops_amd_blis import elf

SOURCE = (
    "int present(void) { return 1; } extern int absent(void); int use(void) { return absent(); }"
)


@pytest.fixture(scope="module")
def library(compile_library):
    return compile_library(SOURCE, "libthing.so", "-Wl,--no-as-needed", "-lm")


def test_defined_and_needed(library):
    found = elf.read(library, ("present", "absent", "nowhere"))
    assert found.defined == {"present"}
    assert any(name.startswith("libm.so") for name in found.needed)


def test_name_of_a_symbol_is_compared_whole(library):
    assert elf.read(library, ("presen", "resent")).defined == frozenset()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"x" * 100, "not an ELF file"),
        (b"/* GNU ld script */ INPUT(libblis.a)", "linker script"),
        (b"\x7fELF" + b"\x01\x01" + b"\0" * 60, "not a 64-bit"),
        (b"\x7fELF\x02\x01", "cut short"),
    ],
    ids=["empty", "text", "script", "32-bit", "header"],
)
def test_not_a_library(tmp_path, content, words):
    path = tmp_path / "libblis.so"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError, match=words):
        elf.read(path, ("present",))


def test_other_processor(library, tmp_path):
    data = bytearray(library.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")  # AArch64
    path = tmp_path / "libblis.so"
    path.write_bytes(data)
    with pytest.raises(elf.ElfError, match="another processor"):
        elf.read(path, ("present",))


def test_cut_anywhere_is_an_error_or_an_answer(library, tmp_path):
    whole = library.read_bytes()
    path = tmp_path / "libblis.so"
    for length in [*range(0, 256, 5), *range(256, len(whole), 197)]:
        path.write_bytes(whole[:length])
        with pytest.raises(elf.ElfError):  # the section table is at the end, so every cut loses it
            elf.read(path, ("present",))


def test_damaged_fields_never_raise_anything_else(library, tmp_path):
    whole = library.read_bytes()
    section_table = int.from_bytes(whole[40:48], "little")
    path = tmp_path / "libblis.so"
    for at in [*range(16, 64, 2), *range(section_table, len(whole) - 8, 8)]:
        for value in (0, 1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, 1 << 63):
            data = bytearray(whole)
            data[at : at + 8] = value.to_bytes(8, "little")
            path.write_bytes(data)
            with contextlib.suppress(elf.ElfError):
                elf.read(path, ("present",))
