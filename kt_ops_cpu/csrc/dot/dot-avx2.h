/* The dot kernels for AVX2: half a panel (8 rows) by 4 tokens in registers.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds pairs into 16 bits with saturation. Unsigned
 * families fit as they are (31 * 127 * 2). Signed ones are multiplied as |w| * (x with the sign of w),
 * at most 128 * 127 * 2 = 32512, so they never saturate either. */
#ifndef KT_DOT_AVX2_H
#define KT_DOT_AVX2_H

#include <immintrin.h>

#include "core/layout.h"

#define KT_INLINE static inline __attribute__((always_inline))
#define KT_TILE_TOKENS 4

KT_INLINE __m256 kt_fmadd_corr(int32_t corr, const float *min, __m256 sum) {
  return _mm256_fmadd_ps(_mm256_set1_ps((float)corr), _mm256_loadu_ps(min), sum);
}

/* Rows [row, row + 8) of a panel by `tokens` blocks. */
KT_INLINE void kt_tile_avx2(const int family, const int tokens, const struct kt_panel *panel, int row,
                            const struct kt_xq8 *x, const int values, float *c) {
  const int group = kt_family_group(family), is_signed = kt_family_signed(family);
  const int per_32 = kt_family_x_kind(family) == KT_X_Q8_32;
  const __m256i ones = _mm256_set1_epi16(1), bias = _mm256_set1_epi8((char)0x80);
  __m256 sum[KT_TILE_TOKENS];
  for (int t = 0; t < tokens; t++) sum[t] = _mm256_setzero_ps();
  for (int g = 0; g < values / group; g++) {
    __m256i dot[KT_TILE_TOKENS];
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) dot[t] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < group / 4; i++) {
      const int k4 = g * (group / 4) + i;
      __m256i w = _mm256_loadu_si256((const __m256i *)panel->q[k4][row]), magnitude = w;
      if (is_signed) {
        w = _mm256_xor_si256(w, bias);
        magnitude = _mm256_abs_epi8(w);
      }
#pragma GCC unroll 4
      for (int t = 0; t < tokens; t++) {
        int32_t four;
        __builtin_memcpy(&four, x[t].q + 4 * k4, 4);
        __m256i b = _mm256_set1_epi32(four);
        if (is_signed) b = _mm256_sign_epi8(b, w);
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, b);
        dot[t] = _mm256_add_epi32(dot[t], _mm256_madd_epi16(pairs, ones));
      }
    }
    const __m256 scale = _mm256_loadu_ps(&panel->scale[g][row]);
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) {
      const int32_t corr = group == 16 ? x[t].corr16[g] : x[t].corr32[g];
      const __m256 part = _mm256_cvtepi32_ps(dot[t]);
      if (per_32) {
        __m256 scaled = _mm256_mul_ps(part, scale);
        if (!is_signed) scaled = kt_fmadd_corr(corr, &panel->min[g][row], scaled);
        sum[t] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(x[t].scale[g]), sum[t]);
      } else {
        sum[t] = _mm256_fmadd_ps(part, scale, sum[t]);
        if (!is_signed) sum[t] = kt_fmadd_corr(corr, &panel->min[g][row], sum[t]);
      }
    }
  }
  for (int t = 0; t < tokens; t++) {
    float *out = c + t * KT_STRIP_ROWS + row;
    const __m256 scale = _mm256_set1_ps(per_32 ? 1.0f : x[t].scale[0]);
    _mm256_storeu_ps(out, _mm256_fmadd_ps(sum[t], scale, _mm256_loadu_ps(out)));
  }
}

KT_INLINE void kt_float_tile_avx2(const int tokens, const struct kt_panel *panel, int row,
                                  const struct kt_xf32 *x, const int values, float *c) {
  __m256 sum[KT_TILE_TOKENS];
  for (int t = 0; t < tokens; t++) sum[t] = _mm256_loadu_ps(c + t * KT_STRIP_ROWS + row);
  for (int k = 0; k < values; k++) {
    const __m256 w = _mm256_loadu_ps(&panel->w[k][row]);
#pragma GCC unroll 4
    for (int t = 0; t < tokens; t++) sum[t] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[t].x[k]), sum[t]);
  }
  for (int t = 0; t < tokens; t++) _mm256_storeu_ps(c + t * KT_STRIP_ROWS + row, sum[t]);
}

#define KT_DOT_AVX2(name, xtype, TILE)                                                         \
  static void kt_dot_##name##_avx2(const struct kt_panel *panels, int count, const void *rows, \
                                   int tokens, int values, float *out) {                       \
    const struct xtype *x = rows;                                                              \
    for (int left = tokens; left > 0; left -= KT_TILE_TOKENS, x += KT_TILE_TOKENS,             \
             out += KT_TILE_TOKENS * KT_STRIP_ROWS)                                            \
      for (int v = 0; v < count; v++)                                                          \
        for (int row = 0; row < KT_PANEL_ROWS; row += 8) {                                     \
          const struct kt_panel *panel = panels + v;                                           \
          float *c = out + v * KT_PANEL_ROWS;                                                  \
          switch (left) {                                                                      \
            case 1: TILE(1); break;                                                            \
            case 2: TILE(2); break;                                                            \
            case 3: TILE(3); break;                                                            \
            default: TILE(4);                                                                  \
          }                                                                                    \
        }                                                                                      \
  }

#define KT_TILE_K32(t) kt_tile_avx2(KT_FAMILY_K32, t, panel, row, x, values, c)
#define KT_TILE_K32_MIN(t) kt_tile_avx2(KT_FAMILY_K32_MIN, t, panel, row, x, values, c)
#define KT_TILE_K16(t) kt_tile_avx2(KT_FAMILY_K16, t, panel, row, x, values, c)
#define KT_TILE_K16_MIN(t) kt_tile_avx2(KT_FAMILY_K16_MIN, t, panel, row, x, values, c)
#define KT_TILE_B32(t) kt_tile_avx2(KT_FAMILY_B32, t, panel, row, x, values, c)
#define KT_TILE_B32_MIN(t) kt_tile_avx2(KT_FAMILY_B32_MIN, t, panel, row, x, values, c)
#define KT_TILE_FLOAT(t) kt_float_tile_avx2(t, panel, row, x, values, c)

KT_DOT_AVX2(k32, kt_xq8, KT_TILE_K32)
KT_DOT_AVX2(k32_min, kt_xq8, KT_TILE_K32_MIN)
KT_DOT_AVX2(k16, kt_xq8, KT_TILE_K16)
KT_DOT_AVX2(k16_min, kt_xq8, KT_TILE_K16_MIN)
KT_DOT_AVX2(b32, kt_xq8, KT_TILE_B32)
KT_DOT_AVX2(b32_min, kt_xq8, KT_TILE_B32_MIN)
KT_DOT_AVX2(float, kt_xf32, KT_TILE_FLOAT)

#endif
