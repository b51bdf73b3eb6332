/* The dot kernels for AVX-512 VNNI: tiles of up to 2 panels (32 rows) by 6 tokens in registers. */
#ifndef KT_DOT_AVX512_H
#define KT_DOT_AVX512_H

#include <immintrin.h>

#include "core/layout.h"

#define KT_INLINE static inline __attribute__((always_inline))
#define KT_TILE_TOKENS 6

KT_INLINE __m512 kt_scale_of(const float *row_values) { return _mm512_loadu_ps(row_values); }

/* One tile of a step. Everything but the pointers and `values` is a constant after inlining. */
KT_INLINE void kt_tile_avx512(const int family, const int panels, const int tokens,
                              const struct kt_panel *panel, const struct kt_xq8 *x, const int values,
                              float *c) {
  const int group = kt_family_group(family), is_signed = kt_family_signed(family);
  const int per_32 = kt_family_x_kind(family) == KT_X_Q8_32;
  __m512 sum[KT_STRIP_PANELS][KT_TILE_TOKENS];
  for (int v = 0; v < panels; v++)
    for (int t = 0; t < tokens; t++)
      sum[v][t] = per_32 ? _mm512_loadu_ps(c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS) : _mm512_setzero_ps();
  for (int g = 0; g < values / group; g++) {
    __m512i dot[KT_STRIP_PANELS][KT_TILE_TOKENS];
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
      const int32_t *corr = group == 16 ? x[t].corr16 : x[t].corr32;
#pragma GCC unroll 2
      for (int v = 0; v < panels; v++)
        dot[v][t] = is_signed ? _mm512_set1_epi32(corr[g]) : _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int i = 0; i < group / 4; i++) {
      const int k4 = g * (group / 4) + i;
      __m512i w[KT_STRIP_PANELS];
#pragma GCC unroll 2
      for (int v = 0; v < panels; v++) w[v] = _mm512_loadu_si512(panel[v].q[k4]);
#pragma GCC unroll 6
      for (int t = 0; t < tokens; t++) {
        int32_t four;
        __builtin_memcpy(&four, x[t].q + 4 * k4, 4);
        const __m512i b = _mm512_set1_epi32(four);
#pragma GCC unroll 2
        for (int v = 0; v < panels; v++) dot[v][t] = _mm512_dpbusd_epi32(dot[v][t], w[v], b);
      }
    }
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
      const int32_t *corr = group == 16 ? x[t].corr16 : x[t].corr32;
#pragma GCC unroll 2
      for (int v = 0; v < panels; v++) {
        const __m512 part = _mm512_cvtepi32_ps(dot[v][t]), scale = kt_scale_of(panel[v].scale[g]);
        if (per_32) {
          __m512 scaled = _mm512_mul_ps(part, scale);
          if (!is_signed)
            scaled = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(corr[g])),
                                     kt_scale_of(panel[v].min[g]), scaled);
          sum[v][t] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x[t].scale[g]), sum[v][t]);
        } else {
          sum[v][t] = _mm512_fmadd_ps(part, scale, sum[v][t]);
          if (!is_signed)
            sum[v][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_set1_epi32(corr[g])),
                                        kt_scale_of(panel[v].min[g]), sum[v][t]);
        }
      }
    }
  }
  for (int t = 0; t < tokens; t++)
    for (int v = 0; v < panels; v++) {
      float *out = c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS;
      __m512 total = sum[v][t];
      if (!per_32) total = _mm512_fmadd_ps(total, _mm512_set1_ps(x[t].scale[0]), _mm512_loadu_ps(out));
      _mm512_storeu_ps(out, total);
    }
}

KT_INLINE void kt_float_tile_avx512(const int panels, const int tokens, const struct kt_panel *panel,
                                    const struct kt_xf32 *x, const int values, float *c) {
  __m512 sum[KT_STRIP_PANELS][KT_TILE_TOKENS];
  for (int t = 0; t < tokens; t++)
    for (int v = 0; v < panels; v++) sum[v][t] = _mm512_loadu_ps(c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS);
  for (int k = 0; k < values; k++) {
    __m512 w[KT_STRIP_PANELS];
#pragma GCC unroll 2
    for (int v = 0; v < panels; v++) w[v] = _mm512_loadu_ps(panel[v].w[k]);
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
      const __m512 b = _mm512_set1_ps(x[t].x[k]);
#pragma GCC unroll 2
      for (int v = 0; v < panels; v++) sum[v][t] = _mm512_fmadd_ps(w[v], b, sum[v][t]);
    }
  }
  for (int t = 0; t < tokens; t++)
    for (int v = 0; v < panels; v++) _mm512_storeu_ps(c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS, sum[v][t]);
}

/* Tokens of the next tile: full tiles while there are plenty, then two even ones. */
KT_INLINE int kt_next_tile(int left) {
  if (left <= KT_TILE_TOKENS) return left;
  return left < 2 * KT_TILE_TOKENS ? (left + 1) / 2 : KT_TILE_TOKENS;
}

/* Define a dot kernel from a tile function: FLOAT tiles take no family. */
#define KT_TILE_CASE(TILE, panels, tokens) \
  case tokens: TILE(panels, tokens); break;
#define KT_TILE_CASES(TILE, panels)                                                              \
  switch (tile) {                                                                                \
    KT_TILE_CASE(TILE, panels, 1)                                                                \
    KT_TILE_CASE(TILE, panels, 2)                                                                \
    KT_TILE_CASE(TILE, panels, 3)                                                                \
    KT_TILE_CASE(TILE, panels, 4)                                                                \
    KT_TILE_CASE(TILE, panels, 5)                                                                \
    default: TILE(panels, 6);                                                                    \
  }
#define KT_DOT_AVX512(name, xtype, TILE)                                                         \
  static void kt_dot_##name##_avx512(const struct kt_panel *panel, int panels, const void *rows, \
                                     int tokens, int values, float *c) {                         \
    const struct xtype *x = rows;                                                                \
    while (tokens > 0) {                                                                         \
      const int tile = kt_next_tile(tokens);                                                     \
      if (panels == 2) {                                                                         \
        KT_TILE_CASES(TILE, 2)                                                                   \
      } else {                                                                                   \
        KT_TILE_CASES(TILE, 1)                                                                   \
      }                                                                                          \
      tokens -= tile;                                                                            \
      x += tile;                                                                                 \
      c += tile * KT_STRIP_ROWS;                                                                 \
    }                                                                                            \
  }

#define KT_TILE_K32(p, t) kt_tile_avx512(KT_FAMILY_K32, p, t, panel, x, values, c)
#define KT_TILE_K32_MIN(p, t) kt_tile_avx512(KT_FAMILY_K32_MIN, p, t, panel, x, values, c)
#define KT_TILE_K16(p, t) kt_tile_avx512(KT_FAMILY_K16, p, t, panel, x, values, c)
#define KT_TILE_K16_MIN(p, t) kt_tile_avx512(KT_FAMILY_K16_MIN, p, t, panel, x, values, c)
#define KT_TILE_B32(p, t) kt_tile_avx512(KT_FAMILY_B32, p, t, panel, x, values, c)
#define KT_TILE_B32_MIN(p, t) kt_tile_avx512(KT_FAMILY_B32_MIN, p, t, panel, x, values, c)
#define KT_TILE_FLOAT(p, t) kt_float_tile_avx512(p, t, panel, x, values, c)

KT_DOT_AVX512(k32, kt_xq8, KT_TILE_K32)
KT_DOT_AVX512(k32_min, kt_xq8, KT_TILE_K32_MIN)
KT_DOT_AVX512(k16, kt_xq8, KT_TILE_K16)
KT_DOT_AVX512(k16_min, kt_xq8, KT_TILE_K16_MIN)
KT_DOT_AVX512(b32, kt_xq8, KT_TILE_B32)
KT_DOT_AVX512(b32_min, kt_xq8, KT_TILE_B32_MIN)
KT_DOT_AVX512(float, kt_xf32, KT_TILE_FLOAT)

#endif
