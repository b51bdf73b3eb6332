"""The same file through our reader and the gguf package: where they differ, it is on purpose."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import WeightsError
from kt_core.weights import LAYOUTS, QuantType, open_weights

from .gguf_cases import ACCEPTED, BASE, CASES

ACCEPTED_BY_GGUF_ONLY = {
    "G3-big-endian": "kt reads little-endian files only",
    "G8-empty-key": "",
    "G8-long-key": "",
    "G9-key-nul": "names that cannot be printed",
    "G9-key-newline": "",
    "G9-key-escape": "",
    "G9-key-c1": "",
    "G9-key-bidi": "",
    "G9-name-nul": "",
    "G9-name-newline": "",
    "G9-name-escape": "",
    "G9-name-c1": "",
    "G9-name-bidi": "",
    "G19-empty-name": "",
    "G19-name-64": "too long for ggml",
    "G30-first-offset-32": "a gap",
    "G30-offset-2^64-1": "the sum wraps to another place",
    "G31-unaligned": "",
    "G32-overlap": "one tensor reads another's bytes",
    "G32-overlap-half": "",
    "G32-gap": "",
    "G34-joined": "all parts but the first are lost",
    "G34-joined-unpadded": "",
}
"""Files that gguf 0.19 opens and kt refuses, each on purpose."""

NOT_GIVEN_TO_GGUF = ("G1", "G5", "G6", "G7", "G11", "G13")
"""Cases on which gguf may run, or grow, without end."""


def accepted_by_gguf(path) -> bool:
    try:
        gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError):
        return False
    return True


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if not case.id.startswith(NOT_GIVEN_TO_GGUF)],
    ids=lambda case: case.id,
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_differences_are_the_intended_ones(case, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(case.data)
    with pytest.raises(WeightsError):
        open_weights(path)
    assert accepted_by_gguf(path) == (case.id in ACCEPTED_BY_GGUF_ONLY)


@pytest.mark.parametrize(
    "id",
    # gguf cannot map an empty header
    sorted({*ACCEPTED, "base"} - {"no-pairs", "nothing"}),
)
def test_what_both_accept_reads_alike(id, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(ACCEPTED.get(id, BASE))
    compare(path)


def compare(path) -> None:
    reader = gguf.GGUFReader(path)
    with open_weights(path) as source:
        theirs = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.")
        }
        ours = dict(source.metadata)
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            # gguf gives None for an array without items
            assert ours[key] == ([] if value is None else value) or (value != value), key
            assert type(ours[key]) is type([] if value is None else value), key
        assert source.details["alignment"] == reader.alignment
        assert [t.name for t in reader.tensors] == list(source.tensors)
        for t in reader.tensors:
            info = source.tensors[t.name]
            assert info.offset == t.data_offset
            assert info.nbytes == t.n_bytes
            assert info.shape == tuple(reversed(t.shape.tolist()))
            assert info.type == t.tensor_type.name
            if info.nbytes:
                assert source.tensor(t.name).data.tobytes() == t.data.tobytes()


names = st.text("abcxyz._0123456789é", min_size=1, max_size=20)
scalars = st.one_of(
    st.tuples(st.just("uint8"), st.integers(0, 255)),
    st.tuples(st.just("int8"), st.integers(-128, 127)),
    st.tuples(st.just("uint16"), st.integers(0, 2**16 - 1)),
    st.tuples(st.just("int16"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("uint32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("int32"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("uint64"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("int64"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("float32"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("string"), st.text(min_size=1, max_size=30)),
    st.tuples(st.just("array"), st.lists(st.text(max_size=8), min_size=1, max_size=8)),
    st.tuples(st.just("array"), st.lists(st.integers(-9, 9), min_size=1, max_size=8)),
)
QUANTS = [kind for kind, layout in LAYOUTS.items() if layout.ggml is not None]


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.dictionaries(names, scalars, max_size=6),
    tensors=st.dictionaries(
        names,
        st.tuples(st.sampled_from(QUANTS), st.lists(st.integers(1, 3), min_size=1, max_size=4)),
        max_size=5,
    ),
    alignment=st.sampled_from([None, 8, 32, 128]),
)
def test_random_files_read_alike(tmp_path_factory, pairs, tensors, alignment):
    path = tmp_path_factory.mktemp("random") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, (kind, value) in pairs.items():
        getattr(writer, f"add_{kind}")("k." + key, value)
    rng = np.random.default_rng(0)
    for name, (kind, shape) in tensors.items():
        layout = LAYOUTS[kind]
        packed = (*shape[:-1], shape[-1] * layout.block_bytes)
        writer.add_tensor(
            name,
            rng.integers(0, 256, packed, np.uint8),
            raw_shape=packed,
            raw_dtype=gguf.GGMLQuantizationType[kind],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    compare(path)
    with open_weights(path) as source:
        assert {name: info.type for name, info in source.tensors.items()} == {
            name: QuantType(kind) for name, (kind, _) in tensors.items()
        }
