"""Random packed weights of every stored type, for tests of kernels."""

from __future__ import annotations

import numpy as np

from kt_core.weights import LAYOUTS, PLAIN, PackedTensor, QuantType

# Where a block keeps its fp16 scale(s). Random bytes there would be NaN, infinite or huge.
_HALF_SCALES: dict[QuantType, tuple[int, ...]] = {
    QuantType.Q4_0: (0,),
    QuantType.Q4_1: (0, 2),
    QuantType.Q5_0: (0,),
    QuantType.Q5_1: (0, 2),
    QuantType.Q8_0: (0,),
    QuantType.Q2_K: (80, 82),
    QuantType.Q3_K: (108,),
    QuantType.Q4_K: (0, 2),
    QuantType.Q5_K: (0, 2),
    QuantType.Q6_K: (208,),
    QuantType.IQ1_S: (0,),
    QuantType.IQ2_XXS: (0,),
    QuantType.IQ2_XS: (0,),
    QuantType.IQ2_S: (0,),
    QuantType.IQ3_XXS: (0,),
    QuantType.IQ3_S: (0,),
    QuantType.IQ4_NL: (0,),
    QuantType.IQ4_XS: (0,),
    QuantType.TQ1_0: (52,),
    QuantType.TQ2_0: (64,),
}

_NUMPY = {QuantType.F32: np.float32, QuantType.F16: np.float16}


def random_packed(
    stored: QuantType | str, shape: tuple[int, ...], seed: int = 0, scale: float = 0.02
) -> PackedTensor:
    """Make a valid tensor of ``shape`` (values, row-major) whose values are of the order ``scale``.

    The last dimension must be whole blocks of the ``stored`` type.
    """
    type = QuantType(stored)  # noqa: A001 - GGML's own word
    layout = LAYOUTS[type]
    generator = np.random.default_rng(seed)
    if shape[-1] % layout.block_size:
        raise ValueError(f"{type} rows come in blocks of {layout.block_size}, got {shape[-1]}")
    if type in PLAIN:
        return _plain(type, shape, generator, scale)
    blocks = int(np.prod(shape)) // layout.block_size
    data = generator.integers(0, 256, (blocks, layout.block_bytes), dtype=np.uint8)
    _scale_blocks(type, data, generator, scale)
    row_bytes = shape[-1] // layout.block_size * layout.block_bytes
    packed = data.reshape(*shape[:-1], row_bytes)
    # The magnitude of an unscaled block differs from type to type; bring it to the one asked for.
    found = float(np.abs(PackedTensor("probe", shape, type, packed).dequantize()).mean())
    if type in _HALF_SCALES and found:
        factor = scale / found
        for offset in _HALF_SCALES[type]:
            half = data[:, offset : offset + 2].view(np.float16)
            half[:] = (half.astype(np.float32) * factor).astype(np.float16)
    return PackedTensor(f"random.{type}", shape, type, packed)


def _plain(
    type: QuantType, shape: tuple[int, ...], generator: np.random.Generator, scale: float
) -> PackedTensor:
    values = (generator.standard_normal(shape) * scale).astype(np.float32)
    if type is QuantType.BF16:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = values.astype(_NUMPY[type]).view(np.uint8)
    return PackedTensor(f"random.{type}", shape, type, data)


def _scale_blocks(
    type: QuantType, data: np.ndarray, generator: np.random.Generator, scale: float
) -> None:
    blocks = len(data)
    for offset in _HALF_SCALES.get(type, ()):
        values = (0.5 + generator.random(blocks)) * scale
        data[:, offset : offset + 2] = values.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if type is QuantType.MXFP4:
        # An exponent byte: 2 ** (e - 127), halved once more by the format's tables.
        exponent = round(127 + np.log2(scale / 2))
        data[:, 0] = exponent + generator.integers(-1, 2, blocks)
    if type is QuantType.IQ1_M:
        # The fp16 scale is spread over the top four bits of the four 16-bit scale words.
        words = data[:, 48:56].view(np.uint16)
        half = np.full(blocks, scale, np.float16).view(np.uint16)
        for index in range(4):
            nibble = (half >> (4 * index)) & 0xF
            words[:, index] = (words[:, index] & 0x0FFF) | (nibble << 12)
