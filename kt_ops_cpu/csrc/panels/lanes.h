/* Vectors of 32-bit lanes, one lane per weight row, as wide as the variant's registers.
 *
 * The unpacking sources are written once on GCC's vector types; this file supplies the few operations
 * that have no operator: the transposing load, a byte table look-up and float16 conversion. */
#ifndef KT_LANES_H
#define KT_LANES_H

#include "core/half.h"
#include "core/layout.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define KT_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define KT_LANES 8
#else
#define KT_LANES 4
#endif

#define KT_INLINE static inline __attribute__((always_inline))

typedef uint32_t kt_vu __attribute__((vector_size(4 * KT_LANES)));
typedef int32_t kt_vi __attribute__((vector_size(4 * KT_LANES)));
typedef float kt_vf __attribute__((vector_size(4 * KT_LANES)));
typedef uint32_t kt_vu_any __attribute__((vector_size(4 * KT_LANES), aligned(4), may_alias));
typedef uint32_t kt_quad __attribute__((vector_size(16)));
typedef uint32_t kt_quad_any __attribute__((vector_size(16), aligned(1), may_alias));

KT_INLINE kt_vf kt_to_float(kt_vi v) { return __builtin_convertvector(v, kt_vf); }

/* a * b + c, rounded once where the variant can. */
KT_INLINE kt_vf kt_fma(kt_vf a, kt_vf b, kt_vf c) {
#if KT_LANES == 16
  return (kt_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif KT_LANES == 8
  return (kt_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

KT_INLINE kt_vf kt_splat_float(float value) { return value - (kt_vf){0}; }

/* Where KT_LANES rows begin: every fourth one, and how far apart they are. */
struct kt_rows {
  const uint8_t *fourth[KT_LANES / 4];
  int64_t bytes, bytes3;
};

/* The empty assembly keeps the compiler from folding the pointers back into one: each row is then a
 * base, a scaled index and a constant, with nothing to compute. */
KT_INLINE struct kt_rows kt_rows_at(const uint8_t *p, int64_t row_bytes) {
  struct kt_rows rows = {.bytes = row_bytes, .bytes3 = 3 * row_bytes};
  for (int i = 0; i < KT_LANES / 4; i++) {
    rows.fourth[i] = p + 4 * i * row_bytes;
    __asm__("" : "+r"(rows.fourth[i]));
  }
  __asm__("" : "+r"(rows.bytes3));
  return rows;
}

KT_INLINE const uint8_t *kt_row(const struct kt_rows *rows, int row, int64_t at) {
  const int64_t within[4] = {0, rows->bytes, 2 * rows->bytes, rows->bytes3};
  return rows->fourth[row / 4] + within[row % 4] + at;
}

/* Load 16 bytes at offset `at` of every row; out[j] holds dword j of each. */
KT_INLINE void kt_load_quads(const struct kt_rows *rows, int64_t at, kt_vu out[4]) {
#define KT_ROW(r) (*(const kt_quad_any *)kt_row(rows, r, at))
#if KT_LANES == 16
  /* Row 4 l + i goes to 128-bit lane l of vector i; transposing 4 x 4 within lanes then puts the rows
   * in order. */
  __m512i v[4];
  for (int i = 0; i < 4; i++) {
    v[i] = _mm512_castsi128_si512((__m128i)KT_ROW(i));
    v[i] = _mm512_inserti32x4(v[i], (__m128i)KT_ROW(4 + i), 1);
    v[i] = _mm512_inserti32x4(v[i], (__m128i)KT_ROW(8 + i), 2);
    v[i] = _mm512_inserti32x4(v[i], (__m128i)KT_ROW(12 + i), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = (kt_vu)_mm512_unpacklo_epi64(a, b);
  out[1] = (kt_vu)_mm512_unpackhi_epi64(a, b);
  out[2] = (kt_vu)_mm512_unpacklo_epi64(c, d);
  out[3] = (kt_vu)_mm512_unpackhi_epi64(c, d);
#elif KT_LANES == 8
  __m256i v[4];
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_castsi128_si256((__m128i)KT_ROW(i));
    v[i] = _mm256_inserti128_si256(v[i], (__m128i)KT_ROW(4 + i), 1);
  }
  const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
  const __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
  out[0] = (kt_vu)_mm256_unpacklo_epi64(a, b);
  out[1] = (kt_vu)_mm256_unpackhi_epi64(a, b);
  out[2] = (kt_vu)_mm256_unpacklo_epi64(c, d);
  out[3] = (kt_vu)_mm256_unpackhi_epi64(c, d);
#else
  const kt_quad r0 = KT_ROW(0), r1 = KT_ROW(1), r2 = KT_ROW(2), r3 = KT_ROW(3);
  const kt_quad a = __builtin_shuffle(r0, r1, (kt_quad){0, 4, 1, 5});
  const kt_quad b = __builtin_shuffle(r2, r3, (kt_quad){0, 4, 1, 5});
  const kt_quad c = __builtin_shuffle(r0, r1, (kt_quad){2, 6, 3, 7});
  const kt_quad d = __builtin_shuffle(r2, r3, (kt_quad){2, 6, 3, 7});
  out[0] = __builtin_shuffle(a, b, (kt_quad){0, 1, 4, 5});
  out[1] = __builtin_shuffle(a, b, (kt_quad){2, 3, 6, 7});
  out[2] = __builtin_shuffle(c, d, (kt_quad){0, 1, 4, 5});
  out[3] = __builtin_shuffle(c, d, (kt_quad){2, 3, 6, 7});
#endif
#undef KT_ROW
}

/* Sixteen bytes, in every 128 bits of a register where that is how look-ups work. */
#if KT_LANES == 16
typedef __m512i kt_table;
#elif KT_LANES == 8
typedef __m256i kt_table;
#else
typedef struct {
  uint8_t byte[16];
} kt_table;
#endif

/* A table of signed values, biased by 128. */
KT_INLINE kt_table kt_biased_table(const int8_t values[16]) {
#if KT_LANES >= 8
  const __m128i biased = _mm_xor_si128(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)0x80));
#endif
#if KT_LANES == 16
  return _mm512_broadcast_i32x4(biased);
#elif KT_LANES == 8
  return _mm256_broadcastsi128_si256(biased);
#else
  kt_table table;
  for (int i = 0; i < 16; i++) table.byte[i] = (uint8_t)(values[i] + 128);
  return table;
#endif
}

/* Replace every byte, which must be below 16, by the table's. */
KT_INLINE kt_vu kt_lookup(kt_vu index, kt_table table) {
#if KT_LANES == 16
  return (kt_vu)_mm512_shuffle_epi8(table, (__m512i)index);
#elif KT_LANES == 8
  return (kt_vu)_mm256_shuffle_epi8(table, (__m256i)index);
#else
  kt_vu out;
  for (int l = 0; l < KT_LANES; l++) {
    const uint32_t i = index[l];
    out[l] = table.byte[i & 15] | (uint32_t)table.byte[i >> 8 & 15] << 8 |
             (uint32_t)table.byte[i >> 16 & 15] << 16 | (uint32_t)table.byte[i >> 24 & 15] << 24;
  }
  return out;
#endif
}

/* The float16 in the low half of every lane; the high half must be zero. */
KT_INLINE kt_vf kt_lanes_half(kt_vu bits) {
#if KT_LANES == 16
  return (kt_vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)bits));
#elif KT_LANES == 8
  const __m256i pairs = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  const __m256i packed = _mm256_permute4x64_epi64(pairs, 0x08);
  return (kt_vf)_mm256_cvtph_ps(_mm256_castsi256_si128(packed));
#else
  kt_vf out;
  for (int l = 0; l < KT_LANES; l++) out[l] = kt_half_float((uint16_t)bits[l]);
  return out;
#endif
}

/* The 16 bits at offset `at` of every row, one per lane. Scalar loads: a gather would read 32 bits. */
KT_INLINE kt_vu kt_load_halves(const struct kt_rows *rows, int64_t at) {
  uint64_t four[KT_LANES / 4];
  for (int i = 0; i < KT_LANES / 4; i++)
    four[i] = kt_load_u16(kt_row(rows, 4 * i, at)) | (uint64_t)kt_load_u16(kt_row(rows, 4 * i + 1, at)) << 16 |
              (uint64_t)kt_load_u16(kt_row(rows, 4 * i + 2, at)) << 32 |
              (uint64_t)kt_load_u16(kt_row(rows, 4 * i + 3, at)) << 48;
#if KT_LANES == 16
  const __m128i low = _mm_set_epi64x((int64_t)four[1], (int64_t)four[0]);
  const __m128i high = _mm_set_epi64x((int64_t)four[3], (int64_t)four[2]);
  return (kt_vu)_mm512_cvtepu16_epi32(_mm256_set_m128i(high, low));
#elif KT_LANES == 8
  return (kt_vu)_mm256_cvtepu16_epi32(_mm_set_epi64x((int64_t)four[1], (int64_t)four[0]));
#else
  return (kt_vu){(uint32_t)four[0] & 0xffff, (uint32_t)(four[0] >> 16) & 0xffff,
                 (uint32_t)(four[0] >> 32) & 0xffff, (uint32_t)(four[0] >> 48)};
#endif
}

KT_INLINE kt_vf kt_load_half(const struct kt_rows *rows, int64_t at) {
  return kt_lanes_half(kt_load_halves(rows, at));
}

/* The 32 bits at offset `at` of every row. */
KT_INLINE kt_vu kt_load_dwords(const struct kt_rows *rows, int64_t at) {
  uint32_t dword[KT_LANES];
  for (int r = 0; r < KT_LANES; r++) dword[r] = kt_load_u32(kt_row(rows, r, at));
  kt_quad quad[KT_LANES / 4];
  for (int i = 0; i < KT_LANES / 4; i++)
    quad[i] = (kt_quad){dword[4 * i], dword[4 * i + 1], dword[4 * i + 2], dword[4 * i + 3]};
  kt_vu out;
  memcpy(&out, quad, sizeof out);
  return out;
}

/* The byte at offset `at` of every row, one per lane. */
KT_INLINE kt_vu kt_load_bytes(const struct kt_rows *rows, int64_t at) {
  uint32_t four[KT_LANES / 4];
  for (int i = 0; i < KT_LANES / 4; i++)
    four[i] = *kt_row(rows, 4 * i, at) | (uint32_t)*kt_row(rows, 4 * i + 1, at) << 8 |
              (uint32_t)*kt_row(rows, 4 * i + 2, at) << 16 | (uint32_t)*kt_row(rows, 4 * i + 3, at) << 24;
#if KT_LANES == 16
  const __m128i bytes = _mm_set_epi32((int)four[3], (int)four[2], (int)four[1], (int)four[0]);
  return (kt_vu)_mm512_cvtepu8_epi32(bytes);
#elif KT_LANES == 8
  return (kt_vu)_mm256_cvtepu8_epi32(_mm_set_epi32(0, 0, (int)four[1], (int)four[0]));
#else
  return (kt_vu){four[0] & 255, four[0] >> 8 & 255, four[0] >> 16 & 255, four[0] >> 24};
#endif
}

KT_INLINE kt_vu kt_splat(uint32_t value) { return value - (kt_vu){0}; }

/* Four bits to the bottom of four bytes. */
KT_INLINE kt_vu kt_spread_bits(kt_vu four) { return (four * 0x00204081u) & kt_splat(0x01010101u); }

#endif
