/* The dot kernels for AMX-INT8: tiles of 16 tokens by 16 rows by one group of K.
 *
 * A tile product sums one group, since every group has its own scale. The sums of all groups of 16
 * tokens go to a buffer, from which AVX-512 scales and adds them. The buffer has two halves: while the
 * tokens of one are scaled, the tile unit fills the other. Blocks beyond the last token may be read (see
 * KT_X_SPARE) but their sums are never used. */
#ifndef KT_DOT_AMX_H
#define KT_DOT_AMX_H

#include <immintrin.h>

#include "core/layout.h"

#define KT_AMX_TOKENS 16

/* Tile registers. Both group sizes have their own, so one configuration serves all families. They are
 * macros because the intrinsics paste them into register names. */
#define KT_TILE_SUM0 0
#define KT_TILE_SUM1 1
#define KT_TILE_X32 2
#define KT_TILE_W32_0 3
#define KT_TILE_W32_1 4
#define KT_TILE_X16 5
#define KT_TILE_W16_0 6
#define KT_TILE_W16_1 7

struct kt_tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static void kt_amx_begin(void) {
  static const struct kt_tile_config config __attribute__((aligned(64))) = {
      .palette = 1,
      .row_bytes = {64, 64, 32, 64, 64, 16, 64, 64},
      .rows = {16, 16, 16, 8, 8, 16, 4, 4},
  };
  _tile_loadconfig(&config);
}

static void kt_amx_end(void) { _tile_release(); }

typedef int32_t kt_amx_sums[KT_STRIP_PANELS][KT_AMX_TOKENS][KT_PANEL_ROWS];

/* Sum group g of 16 tokens for both panels, or one. */
#define KT_AMX_GROUP(X, W0, W1)                                                          \
  do {                                                                                   \
    _tile_loadd(X, x->q + g * group, sizeof *x);                                         \
    _tile_loadd(W0, panel[0].q[g * group / 4], 64);                                      \
    _tile_zero(KT_TILE_SUM0);                                                            \
    _tile_dpbsud(KT_TILE_SUM0, X, W0);                                                   \
    _tile_stored(KT_TILE_SUM0, (*sums)[0], 64);                                          \
    if (panels == 2) {                                                                   \
      _tile_loadd(W1, panel[1].q[g * group / 4], 64);                                    \
      _tile_zero(KT_TILE_SUM1);                                                          \
      _tile_dpbsud(KT_TILE_SUM1, X, W1);                                                 \
      _tile_stored(KT_TILE_SUM1, (*sums)[1], 64);                                        \
    }                                                                                    \
  } while (0)

KT_INLINE void kt_amx_group(const int group, const struct kt_panel *panel, const int panels,
                            const struct kt_xq8 *x, int g, kt_amx_sums *sums) {
  if (group == 32)
    KT_AMX_GROUP(KT_TILE_X32, KT_TILE_W32_0, KT_TILE_W32_1);
  else
    KT_AMX_GROUP(KT_TILE_X16, KT_TILE_W16_0, KT_TILE_W16_1);
}

/* Scale and add the groups of token t. */
KT_INLINE void kt_amx_scale(const int family, const struct kt_panel *panel, const int panels,
                            const struct kt_xq8 *x, int t, int groups, const kt_amx_sums *sums, float *c) {
  const int is_signed = kt_family_signed(family), per_32 = kt_family_x_kind(family) == KT_X_Q8_32;
  const int32_t *corr = kt_family_group(family) == 16 ? x[t].corr16 : x[t].corr32;
  for (int v = 0; v < panels; v++) {
    float *out = c + t * KT_STRIP_ROWS + v * KT_PANEL_ROWS;
    __m512 total = per_32 ? _mm512_loadu_ps(out) : _mm512_setzero_ps();
    for (int g = 0; g < groups; g++) {
      const __m512i one = _mm512_set1_epi32(corr[g]);
      __m512i dot = _mm512_loadu_si512(sums[g][v][t]);
      if (is_signed) dot = _mm512_add_epi32(dot, one);
      const __m512 scale = _mm512_loadu_ps(panel[v].scale[g]), part = _mm512_cvtepi32_ps(dot);
      const __m512 min = is_signed ? scale : _mm512_loadu_ps(panel[v].min[g]);
      if (per_32) {
        __m512 scaled = _mm512_mul_ps(part, scale);
        if (!is_signed) scaled = _mm512_fmadd_ps(_mm512_cvtepi32_ps(one), min, scaled);
        total = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x[t].scale[g]), total);
      } else {
        total = _mm512_fmadd_ps(part, scale, total);
        if (!is_signed) total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(one), min, total);
      }
    }
    if (!per_32) total = _mm512_fmadd_ps(total, _mm512_set1_ps(x[t].scale[0]), _mm512_loadu_ps(out));
    _mm512_storeu_ps(out, total);
  }
}

KT_INLINE void kt_amx_tokens(const int family, const int panels, const struct kt_panel *panel,
                             const struct kt_xq8 *x, int tokens, int values, float *c) {
  const int group = kt_family_group(family), groups = values / group;
  kt_amx_sums sums[2][KT_STEP / 16] __attribute__((aligned(64)));
  for (int g = 0; g < groups; g++) kt_amx_group(group, panel, panels, x, g, &sums[0][g]);
  for (int first = 0, half = 0; first < tokens; first += KT_AMX_TOKENS, half ^= 1) {
    const int here = tokens - first < KT_AMX_TOKENS ? tokens - first : KT_AMX_TOKENS;
    const int more = first + KT_AMX_TOKENS < tokens;
    int g = 0;
    for (int t = 0; t < here; t++) {
      kt_amx_scale(family, panel, panels, x + first, t, groups, sums[half], c + first * KT_STRIP_ROWS);
      for (; more && g < groups * (t + 1) / KT_AMX_TOKENS; g++)
        kt_amx_group(group, panel, panels, x + first + KT_AMX_TOKENS, g, &sums[half ^ 1][g]);
    }
  }
}

/* Fewer tokens than this are left to vpdpbusd. */
#define KT_AMX_LEAST 7

#define KT_DOT_AMX(name, family)                                                                   \
  static void kt_dot_##name##_amx(const struct kt_panel *panel, int panels, const void *x,         \
                                  int tokens, int values, float *c) {                              \
    if (tokens < KT_AMX_LEAST)                                                                     \
      kt_dot_##name##_avx512(panel, panels, x, tokens, values, c);                                 \
    else if (panels == 2)                                                                          \
      kt_amx_tokens(family, 2, panel, x, tokens, values, c);                                       \
    else                                                                                           \
      kt_amx_tokens(family, 1, panel, x, tokens, values, c);                                       \
  }

KT_DOT_AMX(k32, KT_FAMILY_K32)
KT_DOT_AMX(k32_min, KT_FAMILY_K32_MIN)
KT_DOT_AMX(k16, KT_FAMILY_K16)
KT_DOT_AMX(k16_min, KT_FAMILY_K16_MIN)
KT_DOT_AMX(b32, KT_FAMILY_B32)
KT_DOT_AMX(b32_min, KT_FAMILY_B32_MIN)

#define kt_dot_float_amx kt_dot_float_avx512

#endif
