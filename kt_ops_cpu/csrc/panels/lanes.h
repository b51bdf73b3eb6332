/* Vectors of 32-bit lanes, one lane per weight row, as wide as the variant's registers.
 *
 * The panel sources are written once on GCC's vector types; this file supplies the few operations
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

typedef uint32_t kt_vu __attribute__((vector_size(4 * KT_LANES)));
typedef int32_t kt_vi __attribute__((vector_size(4 * KT_LANES)));
typedef float kt_vf __attribute__((vector_size(4 * KT_LANES)));
typedef uint32_t kt_vu_any __attribute__((vector_size(4 * KT_LANES), aligned(4), may_alias));
typedef uint32_t kt_quad __attribute__((vector_size(16)));
typedef uint32_t kt_quad_any __attribute__((vector_size(16), aligned(1), may_alias));

static inline kt_vf kt_to_float(kt_vi v) { return __builtin_convertvector(v, kt_vf); }

/* Load 16 bytes of KT_LANES rows; out[j] holds dword j of every row. */
static inline void kt_load_quads(const uint8_t *p, int64_t row_bytes, kt_vu out[4]) {
#define KT_ROW(r) (*(const kt_quad_any *)(p + (r) * row_bytes))
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

/* Replace every byte, which must be below 16, by table[byte]. */
static inline kt_vu kt_lookup(kt_vu index, const uint8_t table[16]) {
#if KT_LANES == 16
  const __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
  return (kt_vu)_mm512_shuffle_epi8(t, (__m512i)index);
#elif KT_LANES == 8
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
  return (kt_vu)_mm256_shuffle_epi8(t, (__m256i)index);
#else
  kt_vu out;
  for (int l = 0; l < KT_LANES; l++) {
    const uint32_t i = index[l];
    out[l] = table[i & 15] | (uint32_t)table[i >> 8 & 15] << 8 | (uint32_t)table[i >> 16 & 15] << 16 |
             (uint32_t)table[i >> 24] << 24;
  }
  return out;
#endif
}

/* The float16 in the low half of every lane; the high half must be zero. */
static inline kt_vf kt_lanes_half(kt_vu bits) {
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

/* The 16 bits at p of KT_LANES rows, one per lane. Scalar loads: a gather would read 32 bits. */
static inline kt_vu kt_load_halves(const uint8_t *p, int64_t row_bytes) {
  uint64_t four[KT_LANES / 4];
  for (int i = 0; i < KT_LANES / 4; i++) {
    const uint8_t *q = p + 4 * i * row_bytes;
    four[i] = kt_load_u16(q) | (uint64_t)kt_load_u16(q + row_bytes) << 16 |
              (uint64_t)kt_load_u16(q + 2 * row_bytes) << 32 |
              (uint64_t)kt_load_u16(q + 3 * row_bytes) << 48;
  }
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

static inline kt_vf kt_load_half(const uint8_t *p, int64_t row_bytes) {
  return kt_lanes_half(kt_load_halves(p, row_bytes));
}

/* Store quad-k `k4` (values 4 k4 .. 4 k4 + 3) of the rows that start at `row`. */
static inline void kt_put(struct kt_panel *out, int k4, int row, kt_vu v) {
  *(kt_vu_any *)out->q[k4][row] = v;
}

static inline void kt_put_scale(struct kt_panel *out, int group, int row, kt_vf v) {
  *(kt_vu_any *)&out->scale[group][row] = (kt_vu)v;
}

/* The minimum itself goes in; the panel holds it times -1/128. */
static inline void kt_put_min(struct kt_panel *out, int group, int row, kt_vf v) {
  *(kt_vu_any *)&out->min[group][row] = (kt_vu)(v * -0.0078125f);
}

static inline kt_vu kt_splat(uint32_t value) { return value - (kt_vu){0}; }

/* Four bits to the bottom of four bytes. */
static inline kt_vu kt_spread_bits(kt_vu four) { return (four * 0x00204081u) & kt_splat(0x01010101u); }

#endif
