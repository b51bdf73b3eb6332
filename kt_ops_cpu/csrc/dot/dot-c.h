/* The dot kernels in plain C: what the other variants are compared with. */
#ifndef KT_DOT_C_H
#define KT_DOT_C_H

#include "core/layout.h"

static inline __attribute__((always_inline)) void kt_dot_c(int family, const struct kt_panel *panel,
                                                           int panels, const void *x, int tokens,
                                                           int values, float *c) {
  const int group = kt_family_group(family), is_signed = kt_family_signed(family);
  const int per_32 = kt_family_x_kind(family) == KT_X_Q8_32;
  for (int t = 0; t < tokens; t++) {
    const struct kt_xq8 *block = (const struct kt_xq8 *)x + t;
    const int32_t *corr = group == 16 ? block->corr16 : block->corr32;
    for (int v = 0; v < panels; v++) {
      float sum[KT_PANEL_ROWS] = {0};
      for (int g = 0; g < values / group; g++) {
        int32_t dot[KT_PANEL_ROWS];
        for (int r = 0; r < KT_PANEL_ROWS; r++) dot[r] = is_signed ? corr[g] : 0;
        for (int k = g * group; k < (g + 1) * group; k++)
          for (int r = 0; r < KT_PANEL_ROWS; r++) dot[r] += panel[v].q[k / 4][r][k % 4] * block->q[k];
        const float scale = per_32 ? block->scale[g] : 1.0f;
        for (int r = 0; r < KT_PANEL_ROWS; r++) {
          float part = (float)dot[r] * panel[v].scale[g][r];
          if (!is_signed) part += (float)corr[g] * panel[v].min[g][r];
          sum[r] += part * scale;
        }
      }
      const float scale = per_32 ? 1.0f : block->scale[0];
      for (int r = 0; r < KT_PANEL_ROWS; r++)
        c[t * KT_STRIP_ROWS + v * KT_PANEL_ROWS + r] += sum[r] * scale;
    }
  }
}

#define KT_DOT_C_OF(name, family)                                                              \
  static void kt_dot_##name##_c(const struct kt_panel *panel, int panels, const void *x,       \
                                int tokens, int values, float *c) {                            \
    kt_dot_c(family, panel, panels, x, tokens, values, c);                                     \
  }

KT_DOT_C_OF(k32, KT_FAMILY_K32)
KT_DOT_C_OF(k32_min, KT_FAMILY_K32_MIN)
KT_DOT_C_OF(k16, KT_FAMILY_K16)
KT_DOT_C_OF(k16_min, KT_FAMILY_K16_MIN)
KT_DOT_C_OF(b32, KT_FAMILY_B32)
KT_DOT_C_OF(b32_min, KT_FAMILY_B32_MIN)

static void kt_dot_float_c(const struct kt_panel *panel, int panels, const void *x, int tokens, int values,
                           float *c) {
  for (int t = 0; t < tokens; t++) {
    const float *block = ((const struct kt_xf32 *)x + t)->x;
    for (int v = 0; v < panels; v++)
      for (int k = 0; k < values; k++)
        for (int r = 0; r < KT_PANEL_ROWS; r++)
          c[t * KT_STRIP_ROWS + v * KT_PANEL_ROWS + r] += block[k] * panel[v].w[k][r];
  }
}

#endif
