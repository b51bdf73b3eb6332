// How packed weights lie in memory, and how they become operands of the matrix instructions.
//
// A weight matrix (N rows of K values) is cut into chunks of 64 rows by 128 values of K, stored one
// after another: chunk[row block][k step]. A chunk is contiguous, so one bulk copy brings it: first
// the quantised values, then what scales them.
//
// Values: pieces of 512 bytes, piece[k part][tile of 16 rows]; a lane of a warp owns 16 bytes of each
// piece, which hold its share of the A operand of mma m16n8k16 (and of one warp's quarter of wgmma
// m64nNk16) for k steps of 16: row g = lane / 4 and row g + 8, columns 2t, 2t+1, 2t+8, 2t+9 with
// t = lane % 4. With 4 bits a word is one k step and a piece spans K 64; with 8 bits two words are
// one k step and a piece spans K 32.
//   4 bits, nibble i of each half word: i = 0 row g, 1 row g+8, 2 row g at k+8, 3 row g+8 at k+8;
//           low half word the even column, high half word the odd one.
//   8 bits, word j: bytes 0, 2 row g; bytes 1, 3 row g+8; j = 0 columns 2t, 2t+1; j = 1 those + 8.
//
// High bits of formats with 5 or 6: after the 4-bit pieces, piece[tile] of 256 or 512 bytes, a lane's 8
// or 16 in its order. Byte b of a word belongs to byte b of 8-bit words (two for each k step, as
// above); each of those takes one or two bits, lowest first.
//
// Scales: entry[tile][group in chunk][g][row g or g + 8]. A weight is scale * q + offset; what q is
// (an integer as stored, or looked up in a table) is the format's matter.
#pragma once

#include "kt_ops_cuda.h"
#include "ptx.cuh"

namespace kt {

constexpr int kChunkRows = 64;
constexpr int kChunkDepth = 128;
constexpr int kPieceBytes = 512;

// `bits` per value, of which `high` lie apart; `groups` of scales per chunk along K, `entry` bytes
// each; `extra` bytes for each row of the chunk behind the entries.
template <int kFormat>
struct Format;

// fp16 scale for 128 values, offset -8 * scale.
template <>
struct Format<KT_W4_G128> {
    static constexpr int bits = 4, high = 0, groups = 1, entry = 2, extra = 0;
};
// fp16 scale and fp16 offset for 128 values.
template <>
struct Format<KT_W4_G128_OFFSET> {
    static constexpr int bits = 4, high = 0, groups = 1, entry = 4, extra = 0;
};
// fp16 scale and fp16 offset for 32 values. Q4_0 and Q4_1 exactly.
template <>
struct Format<KT_W4_G32_OFFSET> {
    static constexpr int bits = 4, high = 0, groups = 4, entry = 4, extra = 0;
};
// GGML's Q4_K and Q5_K as they are: a byte of scale and a byte of minimum for 32 values, and behind all
// of them fp16 d and dmin for the row's 128 values: scale = d * byte, offset = -dmin * byte.
template <>
struct Format<KT_Q4_K> {
    static constexpr int bits = 4, high = 0, groups = 4, entry = 2, extra = 4;
};
template <>
struct Format<KT_Q5_K> {
    static constexpr int bits = 5, high = 1, groups = 4, entry = 2, extra = 4;
};
// GGML's Q6_K: a signed byte of scale for 16 values, fp16 d for 128; offset -32 * scale.
template <>
struct Format<KT_Q6_K> {
    static constexpr int bits = 6, high = 2, groups = 8, entry = 1, extra = 2;
};
// GGML's IQ4_XS: q looked up in a table of 16; a byte of scale + 32 for 32 values, fp16 d for 128.
template <>
struct Format<KT_IQ4_XS> {
    static constexpr int bits = 4, high = 0, groups = 4, entry = 1, extra = 2;
};
// OCP MXFP4: q twice an e2m1 value; scale 2^(byte - 128) for 32 values.
template <>
struct Format<KT_MXFP4> {
    static constexpr int bits = 4, high = 0, groups = 4, entry = 1, extra = 0;
};
// fp16 scale for 128 or 32 values, offset -128 * scale. Q8_0 is the latter exactly.
template <>
struct Format<KT_W8_G128> {
    static constexpr int bits = 8, high = 0, groups = 1, entry = 2, extra = 0;
};
template <>
struct Format<KT_W8_G32> {
    static constexpr int bits = 8, high = 0, groups = 4, entry = 2, extra = 0;
};

template <int kFormat>
struct Chunk {
    using F = Format<kFormat>;
    static constexpr bool wide = F::bits == 8;  // pieces of bytes rather than of nibbles
    // Whether q goes into the product by way of 8-bit words.
    static constexpr bool expands = F::high > 0 || kFormat == KT_IQ4_XS || kFormat == KT_MXFP4;
    static constexpr int low_bytes = kChunkRows * kChunkDepth * (wide ? 8 : 4) / 8;
    static constexpr int high_bytes = kChunkRows * kChunkDepth * F::high / 8;
    static constexpr int value_bytes = low_bytes + high_bytes;
    static constexpr int entry_bytes = kChunkRows * F::groups * F::entry;
    static constexpr int bytes = value_bytes + entry_bytes + kChunkRows * F::extra;
    static constexpr int steps_per_piece = wide ? 2 : 4;
    static constexpr int words_per_step = wide ? 2 : 1;
    static constexpr int steps_per_group = 8 / F::groups;
    static constexpr int high_words = F::high > 0 ? 2 * F::high : 1;  // a lane's, for one tile
    static_assert(bytes % 16 == 0, "bulk copies move multiples of 16");
};

// A byte under the exponent of 2^23 is 2^23 plus that byte; the subtraction is exact.
template <int kByte>
__device__ __forceinline__ float byte_to_float(uint32_t word) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440 + kByte)) - 8388608.f;
}

// Scale and offset of rows g and g + 8 of a tile, for one group of the chunk.
struct RowScales {
    float scale[2];
    float offset[2];
};

template <int kFormat>
__device__ __forceinline__ RowScales load_scales(const uint8_t* chunk, int tile, int group, int g) {
    using F = Format<kFormat>;
    using C = Chunk<kFormat>;
    const uint8_t* entries = chunk + C::value_bytes;
    const uint8_t* extras = entries + C::entry_bytes + (tile * 8 + g) * 2 * F::extra;
    const int index = ((tile * F::groups + group) * 8 + g) * 2;
    RowScales out;
    if constexpr (kFormat == KT_Q4_K || kFormat == KT_Q5_K) {
        const uint32_t bytes = *reinterpret_cast<const uint32_t*>(entries + index * 2);
        const uint2 d = *reinterpret_cast<const uint2*>(extras);
        const float2 d0 = __half22float2(*reinterpret_cast<const half2*>(&d.x));
        const float2 d1 = __half22float2(*reinterpret_cast<const half2*>(&d.y));
        out.scale[0] = d0.x * byte_to_float<0>(bytes);
        out.offset[0] = -d0.y * byte_to_float<1>(bytes);
        out.scale[1] = d1.x * byte_to_float<2>(bytes);
        out.offset[1] = -d1.y * byte_to_float<3>(bytes);
    } else if constexpr (kFormat == KT_Q6_K || kFormat == KT_IQ4_XS) {
        // Q6_K's scale is a signed byte: flipping its top bit adds 128.
        constexpr bool kSigned = kFormat == KT_Q6_K;
        const uint32_t bytes =
            *reinterpret_cast<const uint16_t*>(entries + index) ^ (kSigned ? 0x8080u : 0u);
        const float2 d = __half22float2(*reinterpret_cast<const half2*>(extras));
        out.scale[0] = d.x * (byte_to_float<0>(bytes) - (kSigned ? 128.f : 32.f));
        out.scale[1] = d.y * (byte_to_float<1>(bytes) - (kSigned ? 128.f : 32.f));
        out.offset[0] = out.scale[0] * (kSigned ? -32.f : -128.f);
        out.offset[1] = out.scale[1] * (kSigned ? -32.f : -128.f);
    } else if constexpr (kFormat == KT_MXFP4) {
        const uint32_t bytes = *reinterpret_cast<const uint16_t*>(entries + index);
        // 2^(byte - 128), by way of 2^(byte - 127); byte 0 comes out as 0 rather than 2^-128.
        out.scale[0] = 0.5f * __uint_as_float((bytes & 0xFFu) << 23);
        out.scale[1] = 0.5f * __uint_as_float((bytes >> 8) << 23);
        out.offset[0] = -12.f * out.scale[0];
        out.offset[1] = -12.f * out.scale[1];
    } else if constexpr (F::entry == 4) {
        const uint2 e = *reinterpret_cast<const uint2*>(entries + index * 4);
        const float2 e0 = __half22float2(*reinterpret_cast<const half2*>(&e.x));
        const float2 e1 = __half22float2(*reinterpret_cast<const half2*>(&e.y));
        out.scale[0] = e0.x;
        out.offset[0] = e0.y;
        out.scale[1] = e1.x;
        out.offset[1] = e1.y;
    } else {
        const float2 s =
            __half22float2(*reinterpret_cast<const half2*>(entries + index * 2));
        constexpr float kZero = F::bits == 4 ? -8.f : -128.f;
        out.scale[0] = s.x;
        out.offset[0] = s.x * kZero;
        out.scale[1] = s.y;
        out.offset[1] = s.y * kZero;
    }
    return out;
}

template <uint32_t kMask, uint32_t kOr>
__device__ __forceinline__ uint32_t and_or(uint32_t word) {
    uint32_t out;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(out) : "r"(word), "n"(kMask), "n"(kOr));
    return out;
}

// ---- what a lane holds of one tile -----------------------------------------------------------------

template <int kFormat>
__device__ __forceinline__ void load_high(uint32_t (&high)[Chunk<kFormat>::high_words],
                                          const uint8_t* chunk, int tile, int lane) {
    using C = Chunk<kFormat>;
    const uint8_t* at = chunk + C::low_bytes + (tile * 32 + lane) * C::high_words * 4;
    if constexpr (Format<kFormat>::high == 2) {
        const uint4 words = *reinterpret_cast<const uint4*>(at);
        high[0] = words.x;
        high[1] = words.y;
        high[2] = words.z;
        high[3] = words.w;
    } else if constexpr (Format<kFormat>::high == 1) {
        const uint2 words = *reinterpret_cast<const uint2*>(at);
        high[0] = words.x;
        high[1] = words.y;
    }
}

// Four table entries, picked by the low nibbles of the bytes of `index`.
__device__ __forceinline__ uint32_t look_up(uint32_t index, uint32_t t0, uint32_t t1, uint32_t t2,
                                            uint32_t t3) {
    // PRMT reads a nibble for each byte it makes; bring the four nibbles together first.
    const uint32_t nibbles = __byte_perm(index | (index >> 4), 0, 0x4420);
    const uint32_t low = __byte_perm(t0, t1, nibbles & 0x7777u);
    const uint32_t high = __byte_perm(t2, t3, nibbles & 0x7777u);
    const uint32_t choose = 0x3210u | ((nibbles & 0x8888u) >> 1);
    return __byte_perm(low, high, choose);
}

// The two 8-bit words of a k step (0..7, known when compiled) from its 4-bit word and the high bits.
template <int kFormat>
__device__ __forceinline__ void expand(uint32_t (&out)[2], uint32_t word, const uint32_t* high,
                                       int step) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const uint32_t w = u == 0 ? word : word >> 8;
        uint32_t bytes = (w & 0x000F000Fu) | ((w << 4) & 0x0F000F00u);
        constexpr int kHigh = Format<kFormat>::high;
        if constexpr (kHigh > 0) {
            constexpr int kPerWord = 8 / kHigh;  // 8-bit words that share a word of high bits
            constexpr uint32_t kMask = kHigh == 2 ? 0x30303030u : 0x10101010u;
            const int at = step * 2 + u;
            const int shift = 4 - at % kPerWord * kHigh;
            const uint32_t bits = high[at / kPerWord];
            bytes |= (shift >= 0 ? bits << shift : bits >> -shift) & kMask;
        } else if constexpr (kFormat == KT_IQ4_XS) {
            // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113, each plus 128
            bytes = look_up(bytes, 0x3F2D1801u, 0x766A5D4Fu, 0xA6998D81u, 0xF1D9C5B5u);
        } else if constexpr (kFormat == KT_MXFP4) {
            // 0 1 2 3 4 6 8 12 and their negatives, each plus 12
            bytes = look_up(bytes, 0x0F0E0D0Cu, 0x18141210u, 0x090A0B0Cu, 0x00040608u);
        }
        out[u] = bytes;
    }
}

// ---- integers as they are, for scales that are folded in after the products ---------------------
//
// fp16: the bits of q alone are the subnormal q * 2^-24, which the tensor cores multiply exactly, so
// a single AND makes an operand. Row g + 8 keeps its nibble four bits higher and comes out 16 times
// larger. bf16 has no such room (its subnormals underflow in float), so there q rides on 128.
// `Raw::unscale[h]` and `Raw::bias` say what to undo.
template <typename T, int kBits>
struct Raw;

template <>
struct Raw<half, 4> {
    static constexpr float unscale0 = 16777216.f, unscale1 = 1048576.f, bias = 0.f;
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words) {
        const uint32_t w = words[0];
        const uint32_t high = w >> 8;
        a[0] = w & 0x000F000Fu;
        a[1] = w & 0x00F000F0u;
        a[2] = high & 0x000F000Fu;
        a[3] = high & 0x00F000F0u;
    }
};

template <>
struct Raw<__nv_bfloat16, 4> {
    static constexpr float unscale0 = 1.f, unscale1 = 1.f, bias = 128.f;
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words) {
        const uint32_t w = words[0];
        a[0] = and_or<0x000F000Fu, 0x43004300u>(w);
        a[1] = and_or<0x000F000Fu, 0x43004300u>(w >> 4);
        a[2] = and_or<0x000F000Fu, 0x43004300u>(w >> 8);
        a[3] = and_or<0x000F000Fu, 0x43004300u>(w >> 12);
    }
};

template <>
struct Raw<half, 8> {
    static constexpr float unscale0 = 16777216.f, unscale1 = 16777216.f, bias = 0.f;
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words) {
        a[0] = words[0] & 0x00FF00FFu;
        a[1] = (words[0] >> 8) & 0x00FF00FFu;
        a[2] = words[1] & 0x00FF00FFu;
        a[3] = (words[1] >> 8) & 0x00FF00FFu;
    }
};

template <>
struct Raw<__nv_bfloat16, 8> {
    static constexpr float unscale0 = 1.f, unscale1 = 1.f, bias = 0.f;
    // Integers up to 255 are exact in bf16; the way there is a float whose exponent is 2^23.
    __device__ __forceinline__ static uint32_t pair(uint32_t word, uint32_t low, uint32_t high) {
        const float magic = 8388608.f;
        const float x = __uint_as_float(__byte_perm(word, 0x4B000000u, low)) - magic;
        const float y = __uint_as_float(__byte_perm(word, 0x4B000000u, high)) - magic;
        const __nv_bfloat162 packed = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<const uint32_t*>(&packed);
    }
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words) {
        a[0] = pair(words[0], 0x7440, 0x7442);
        a[1] = pair(words[0], 0x7441, 0x7443);
        a[2] = pair(words[1], 0x7440, 0x7442);
        a[3] = pair(words[1], 0x7441, 0x7443);
    }
};

// ---- weights with their scales applied, for wgmma ------------------------------------------------

template <typename T>
struct Pair;
template <>
struct Pair<half> {
    using type = half2;
    __device__ __forceinline__ static half2 both(float v) { return __float2half2_rn(v); }
};
template <>
struct Pair<__nv_bfloat16> {
    using type = __nv_bfloat162;
    __device__ __forceinline__ static __nv_bfloat162 both(float v) {
        return __float2bfloat162_rn(v);
    }
};

template <typename P>
__device__ __forceinline__ P as_pair(uint32_t word) {
    return *reinterpret_cast<P*>(&word);
}
template <typename P>
__device__ __forceinline__ uint32_t as_word(P pair) {
    return *reinterpret_cast<uint32_t*>(&pair);
}

// The A operand of one k step: fma(q, scale, offset) with q exact and one rounding.
template <typename T, int kBits>
struct Scaled;

template <>
struct Scaled<half, 4> {
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words,
                                                   const half2 (&scale)[2],
                                                   const half2 (&offset)[2]) {
        const half2 bias = as_pair<half2>(0x64006400u);         // 1024
        const half2 sixteenth = as_pair<half2>(0x2C002C00u);    // 1 / 16
        const half2 minus_64 = as_pair<half2>(0xD400D400u);     // -64
        const uint32_t w = words[0];
        const uint32_t high = w >> 8;
        const half2 q0 = __hsub2(as_pair<half2>(and_or<0x000F000Fu, 0x64006400u>(w)), bias);
        const half2 q1 =
            __hfma2(as_pair<half2>(and_or<0x00F000F0u, 0x64006400u>(w)), sixteenth, minus_64);
        const half2 q2 = __hsub2(as_pair<half2>(and_or<0x000F000Fu, 0x64006400u>(high)), bias);
        const half2 q3 =
            __hfma2(as_pair<half2>(and_or<0x00F000F0u, 0x64006400u>(high)), sixteenth, minus_64);
        a[0] = as_word(__hfma2(q0, scale[0], offset[0]));
        a[1] = as_word(__hfma2(q1, scale[1], offset[1]));
        a[2] = as_word(__hfma2(q2, scale[0], offset[0]));
        a[3] = as_word(__hfma2(q3, scale[1], offset[1]));
    }
};

template <>
struct Scaled<half, 8> {
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words,
                                                   const half2 (&scale)[2],
                                                   const half2 (&offset)[2]) {
        const half2 bias = as_pair<half2>(0x64006400u);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const half2 q0 =
                __hsub2(as_pair<half2>(and_or<0x00FF00FFu, 0x64006400u>(words[j])), bias);
            const half2 q1 =
                __hsub2(as_pair<half2>(and_or<0x00FF00FFu, 0x64006400u>(words[j] >> 8)), bias);
            a[2 * j] = as_word(__hfma2(q0, scale[0], offset[0]));
            a[2 * j + 1] = as_word(__hfma2(q1, scale[1], offset[1]));
        }
    }
};

template <int kBits>
struct Scaled<__nv_bfloat16, kBits> {
    __device__ __forceinline__ static void operand(uint32_t (&a)[4], const uint32_t* words,
                                                   const __nv_bfloat162 (&scale)[2],
                                                   const __nv_bfloat162 (&offset)[2]) {
        uint32_t raw[4];
        Raw<__nv_bfloat16, kBits>::operand(raw, words);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            __nv_bfloat162 q = as_pair<__nv_bfloat162>(raw[i]);
            if constexpr (kBits == 4) q = __hsub2(q, as_pair<__nv_bfloat162>(0x43004300u));
            a[i] = as_word(__hfma2(q, scale[i & 1], offset[i & 1]));
        }
    }
};

// ---- operands of a format ------------------------------------------------------------------------

// How many bits wide the integers are once they go into a product.
template <int kFormat>
constexpr int kProductBits = Chunk<kFormat>::wide || Chunk<kFormat>::expands ? 8 : 4;

template <typename T, int kFormat>
__device__ __forceinline__ void raw_operand(uint32_t (&a)[4], const uint32_t* words,
                                            const uint32_t* high, int step) {
    if constexpr (Chunk<kFormat>::expands) {
        uint32_t bytes[2];
        expand<kFormat>(bytes, words[0], high, step);
        Raw<T, 8>::operand(a, bytes);
    } else {
        Raw<T, Format<kFormat>::bits>::operand(a, words);
    }
}

template <typename T, int kFormat>
__device__ __forceinline__ void scaled_operand(uint32_t (&a)[4], const uint32_t* words,
                                               const uint32_t* high, int step,
                                               const typename Pair<T>::type (&scale)[2],
                                               const typename Pair<T>::type (&offset)[2]) {
    if constexpr (Chunk<kFormat>::expands) {
        uint32_t bytes[2];
        expand<kFormat>(bytes, words[0], high, step);
        Scaled<T, 8>::operand(a, bytes, scale, offset);
    } else {
        Scaled<T, Format<kFormat>::bits>::operand(a, words, scale, offset);
    }
}

}  // namespace kt
