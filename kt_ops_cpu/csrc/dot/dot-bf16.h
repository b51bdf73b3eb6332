/* bfloat16 weights with AVX512_BF16: vdpbf16ps adds two products per lane. */
#ifndef KT_DOT_BF16_H
#define KT_DOT_BF16_H

#include "dot/dot-avx512.h"
#include "panels/panel-put.h"
#include "variants/x-quantize.h"

/* KT_STEP activations rounded to bfloat16; as far apart as the float32 ones of other variants. */
struct kt_xbf16 {
  uint16_t x[KT_STEP];
  uint16_t unused[KT_STEP];
} __attribute__((aligned(64)));

static void kt_x_bf16_pairs(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride) {
  float values[KT_STEP] __attribute__((aligned(64)));
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    uint16_t *block = ((struct kt_xbf16 *)out)->x;
    kt_x_load(dtype, x, cols, k, values);
    for (int i = 0; i < KT_STEP; i++) block[i] = kt_float_bf16(values[i]);
  }
}

static void kt_x_split_bf16_pairs(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride,
                                  int64_t second) {
  float values[KT_STEP] __attribute__((aligned(64)));
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    uint16_t *block = ((struct kt_xbf16 *)out)->x, *rest = ((struct kt_xbf16 *)(out + second))->x;
    kt_x_load(dtype, x, cols, k, values);
    for (int i = 0; i < KT_STEP; i++) {
      block[i] = kt_float_bf16(values[i]);
      rest[i] = kt_float_bf16(values[i] - kt_bf16_float(block[i]));
    }
  }
}

/* Pairs of values as they lie in a row: a dword of `q` per row and pair. `values` is a multiple of 8. */
static void kt_panel_bf16_pairs(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  const struct kt_rows rows = kt_rows_at(block, row_bytes);
  for (int k = 0; k < values; k += 8) {
    kt_vu v[4];
    kt_load_quads(&rows, 2 * k, v);
    for (int j = 0; j < 4; j++) *(kt_vu_any *)out->pairs[k / 2 + j] = v[j];
  }
}

KT_INLINE void kt_bf16_tile_avx512(const int panels, const int tokens, const struct kt_panel *panel,
                                   const struct kt_xbf16 *x, const int values, float *c) {
  __m512 sum[KT_STRIP_PANELS][KT_TILE_TOKENS];
  for (int t = 0; t < tokens; t++)
    for (int v = 0; v < panels; v++) sum[v][t] = _mm512_loadu_ps(c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS);
  for (int k2 = 0; k2 < (values + 1) / 2; k2++) {
    __m512bh w[KT_STRIP_PANELS];
#pragma GCC unroll 2
    for (int v = 0; v < panels; v++) w[v] = (__m512bh)_mm512_loadu_si512(panel[v].pairs[k2]);
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
      int32_t two;
      __builtin_memcpy(&two, x[t].x + 2 * k2, 4);
      const __m512bh b = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
      for (int v = 0; v < panels; v++) sum[v][t] = _mm512_dpbf16_ps(sum[v][t], w[v], b);
    }
  }
  for (int t = 0; t < tokens; t++)
    for (int v = 0; v < panels; v++) _mm512_storeu_ps(c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS, sum[v][t]);
}

#define KT_TILE_BF16(p, t) kt_bf16_tile_avx512(p, t, panel, x, values, c)

KT_DOT_AVX512(bf16, kt_xbf16, KT_TILE_BF16)

#endif
