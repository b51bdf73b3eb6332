/* Many tokens with AMX-INT8.
 *
 * A tile product adds up 64 values of K, but the K-quants scale groups of 16 or 32 of them differently, and
 * taking the sums out of the tiles after every group costs more than vpdpbusd does. So a panel is first
 * brought to one step per row: each weight becomes a whole number of steps of 15 bits, cut into a signed
 * high byte and seven low bits. Two tile products per 64 values then give the sum over all 256.
 *
 * A weight is off by at most 1.5 steps. A step is at most 2/255 of the largest scale among the row's
 * groups (or 1/500 of its largest magnitude, if minima make that more), where a group's scale is the
 * distance between two neighbouring quantised weights: the error is far below that of the 8-bit
 * activations.
 *
 * Blocks beyond the last token may be read (see KT_X_SPARE), but their sums are never used. */
#ifndef KT_DOT_AMX_H
#define KT_DOT_AMX_H

#include <immintrin.h>

#include "core/layout.h"

/* Tile registers; macros because the intrinsics paste them into register names. */
#define KT_TILE_HIGH 0
#define KT_TILE_LOW 1
#define KT_TILE_X 2
#define KT_TILE_W_HIGH 3
#define KT_TILE_W_LOW 4

#define KT_TILE_TOKENS_AMX 16

struct kt_tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static void kt_amx_begin(void) {
  static const struct kt_tile_config config __attribute__((aligned(64))) = {
      .palette = 1,
      .row_bytes = {64, 64, 64, 64, 64},
      .rows = {16, 16, 16, 16, 16},
  };
  _tile_loadconfig(&config);
}

static void kt_amx_end(void) { _tile_release(); }

/* The number of groups is a constant after inlining. */
KT_INLINE void kt_planes(const int family, struct kt_panel *panel) {
  const int group = kt_family_group(family), is_signed = kt_family_signed(family);
  __m512 scale = _mm512_setzero_ps(), min = scale, any = scale;
  for (int g = 0; g < KT_STEP / group; g++) {
    const __m512 own = _mm512_loadu_ps(panel->scale[g]);
    scale = _mm512_max_ps(_mm512_abs_ps(own), scale);
    any = _mm512_add_ps(any, own);
    if (is_signed) continue;
    const __m512 own_min = _mm512_loadu_ps(panel->min[g]);
    min = _mm512_max_ps(_mm512_abs_ps(own_min), min);
    any = _mm512_add_ps(any, own_min);
  }
  /* Multipliers must fit 16 bits, and sums 15: |q| is at most 128 if signed, else at most 31. */
  __m512 step = _mm512_mul_ps(scale, _mm512_set1_ps(is_signed ? 2.0f / 255 : 1.0f / 255));
  if (!is_signed) {
    const __m512 most = _mm512_fmadd_ps(min, _mm512_set1_ps(128), _mm512_mul_ps(scale, _mm512_set1_ps(31)));
    step = _mm512_max_ps(step, _mm512_mul_ps(most, _mm512_set1_ps(1.0f / 16000)));
  }
  const __mmask16 some = _mm512_cmp_ps_mask(step, _mm512_set1_ps(0x1p-120f), _CMP_GT_OQ);
  const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(128), step);
  /* A scale that is not finite must reach the result. */
  _mm512_storeu_ps(panel->step, _mm512_fmadd_ps(any, _mm512_setzero_ps(), step));
  const __m512i low_word = _mm512_set1_epi32(0xffff), zero = _mm512_setzero_si512();
  for (int g = 0; g < KT_STEP / group; g++) {
    /* A row's multiplier in every 16 bits of its four values, as the unpacking below arranges them. */
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(panel->scale[g]), inverse));
    const __m512i twice = _mm512_or_si512(_mm512_and_si512(a, low_word), _mm512_slli_epi32(a, 16));
    const __m512i a_low = _mm512_unpacklo_epi32(twice, twice), a_high = _mm512_unpackhi_epi32(twice, twice);
    __m512i b_low = zero, b_high = zero;
    if (!is_signed) { /* the panel holds minima times -1/128 */
      const __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_loadu_ps(panel->min[g]));
      const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(minus, inverse));
      const __m512i b_twice = _mm512_or_si512(_mm512_and_si512(b, low_word), _mm512_slli_epi32(b, 16));
      b_low = _mm512_unpacklo_epi32(b_twice, b_twice);
      b_high = _mm512_unpackhi_epi32(b_twice, b_twice);
    }
    for (int k4 = g * group / 4; k4 < (g + 1) * group / 4; k4++) {
      __m512i q = _mm512_loadu_si512(panel->q[k4]);
      if (is_signed) q = _mm512_xor_si512(q, _mm512_set1_epi8((char)0x80));
      /* vpmulhrsw gives round(256 q * a / 2^15) = round(q * scale / step). */
      __m512i low = _mm512_mulhrs_epi16(_mm512_unpacklo_epi8(zero, q), a_low);
      __m512i high = _mm512_mulhrs_epi16(_mm512_unpackhi_epi8(zero, q), a_high);
      if (!is_signed) {
        low = _mm512_add_epi16(low, b_low);
        high = _mm512_add_epi16(high, b_high);
      }
      const __m512i seven = _mm512_set1_epi16(127);
      _mm512_storeu_si512(panel->low[k4], _mm512_packus_epi16(_mm512_and_si512(low, seven),
                                                             _mm512_and_si512(high, seven)));
      _mm512_storeu_si512(panel->high[k4], _mm512_packs_epi16(_mm512_srai_epi16(low, 7),
                                                             _mm512_srai_epi16(high, 7)));
    }
  }
}

#define KT_PLANES_OF(name, family) \
  static void kt_planes_##name(struct kt_panel *panel) { kt_planes(family, panel); }

KT_PLANES_OF(k32, KT_FAMILY_K32)
KT_PLANES_OF(k32_min, KT_FAMILY_K32_MIN)
KT_PLANES_OF(k16, KT_FAMILY_K16)
KT_PLANES_OF(k16_min, KT_FAMILY_K16_MIN)

/* Scale the sums of up to 16 tokens and add them to c. */
KT_INLINE void kt_planes_add(const struct kt_panel *panel, const struct kt_xq8 *x, int tokens,
                             const int32_t (*high)[KT_PANEL_ROWS], const int32_t (*low)[KT_PANEL_ROWS],
                             float *c) {
  const __m512 step = _mm512_loadu_ps(panel->step);
  for (int t = 0; t < tokens; t++) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(high[t]), 7),
                                         _mm512_loadu_si512(low[t]));
    const __m512 scale = _mm512_mul_ps(step, _mm512_set1_ps(x[t].scale[0]));
    float *out = c + t * KT_STRIP_ROWS;
    _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(out)));
  }
}

/* 16 tokens by one panel at a time. Holding 32 tokens in tiles, to load each weight tile once for both, was
 * tried and took half as long again per token on Sapphire Rapids. */
static void kt_dot_planes_amx(const struct kt_panel *panel, int panels, const void *rows, int tokens,
                              int values, float *c) {
  (void)values;
  int32_t high[KT_TILE_TOKENS_AMX][KT_PANEL_ROWS] __attribute__((aligned(64)));
  int32_t low[KT_TILE_TOKENS_AMX][KT_PANEL_ROWS] __attribute__((aligned(64)));
  const struct kt_xq8 *x = rows;
  for (; tokens > 0; tokens -= KT_TILE_TOKENS_AMX) {
    for (int v = 0; v < panels; v++) {
      _tile_zero(KT_TILE_HIGH);
      _tile_zero(KT_TILE_LOW);
      for (int k = 0; k < KT_STEP; k += 64) {
        _tile_loadd(KT_TILE_X, x->q + k, sizeof *x);
        _tile_loadd(KT_TILE_W_HIGH, panel[v].high[k / 4], 64);
        _tile_loadd(KT_TILE_W_LOW, panel[v].low[k / 4], 64);
        _tile_dpbssd(KT_TILE_HIGH, KT_TILE_X, KT_TILE_W_HIGH);
        _tile_dpbsud(KT_TILE_LOW, KT_TILE_X, KT_TILE_W_LOW);
      }
      _tile_stored(KT_TILE_HIGH, high, 64);
      _tile_stored(KT_TILE_LOW, low, 64);
      const int here = tokens < KT_TILE_TOKENS_AMX ? tokens : KT_TILE_TOKENS_AMX;
      kt_planes_add(&panel[v], x, here, high, low, c + v * KT_PANEL_ROWS);
    }
    x += KT_TILE_TOKENS_AMX;
    c += KT_TILE_TOKENS_AMX * KT_STRIP_ROWS;
  }
}

#endif
