/* Panels of plain values (as float32), and the general way: unpack rows one by one, then interleave. */
#ifndef KT_PANEL_PLAIN_H
#define KT_PANEL_PLAIN_H

#include "panels/panel-put.h"
#include "rows/row-formats.h"

KT_INLINE void kt_put_float(struct kt_panel *out, int k, int row, kt_vf v) {
  *(kt_vu_any *)&out->w[k][row] = (kt_vu)v;
}

/* `values` is a multiple of 8 in the three below: the strip pads rows that are not. */
static void kt_panel_f32(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {
    const struct kt_rows rows = kt_rows_at(block + row * row_bytes, row_bytes);
    for (int k = 0; k < values; k += 4) {
      kt_vu v[4];
      kt_load_quads(&rows, 4 * k, v);
      for (int j = 0; j < 4; j++) kt_put_float(out, k + j, row, (kt_vf)v[j]);
    }
  }
}

static void kt_panel_f16(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {
    const struct kt_rows rows = kt_rows_at(block + row * row_bytes, row_bytes);
    for (int k = 0; k < values; k += 8) {
      kt_vu v[4];
      kt_load_quads(&rows, 2 * k, v);
      for (int j = 0; j < 4; j++) {
        kt_put_float(out, k + 2 * j, row, kt_lanes_half(v[j] & 0xffff));
        kt_put_float(out, k + 2 * j + 1, row, kt_lanes_half(v[j] >> 16));
      }
    }
  }
}

static inline void kt_panel_bf16(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {
    const struct kt_rows rows = kt_rows_at(block + row * row_bytes, row_bytes);
    for (int k = 0; k < values; k += 8) {
      kt_vu v[4];
      kt_load_quads(&rows, 2 * k, v);
      for (int j = 0; j < 4; j++) {
        kt_put_float(out, k + 2 * j, row, (kt_vf)(v[j] << 16));
        kt_put_float(out, k + 2 * j + 1, row, (kt_vf)(v[j] & 0xffff0000u));
      }
    }
  }
}

/* Any quantised type through its row function. `bias` is 128 for signed families, `group` their group
 * size. Inlined into one function per type, so that all three are constants. */
KT_INLINE void kt_panel_rows(kt_row_fn *unpack, int block_values,
                                                                int block_bytes, int group, int has_min,
                                                                const uint8_t *block, int64_t row_bytes,
                                                                int values, struct kt_panel *out) {
  int8_t q[KT_PANEL_ROWS][KT_STEP] __attribute__((aligned(64)));
  const int per_block = block_values / group;
  for (int row = 0; row < KT_PANEL_ROWS; row++)
    for (int b = 0; b < values / block_values; b++) {
      float scale[KT_STEP / 16], min[KT_STEP / 16];
      unpack(block + row * row_bytes + b * block_bytes, q[row] + b * block_values, scale, min);
      for (int g = 0; g < per_block; g++) {
        out->scale[b * per_block + g][row] = scale[g];
        if (has_min) out->min[b * per_block + g][row] = min[g] * -0.0078125f;
      }
    }
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {
    const struct kt_rows rows = kt_rows_at((const uint8_t *)q[row], KT_STEP);
    for (int k = 0; k < values; k += 16) {
      kt_vu v[4];
      kt_load_quads(&rows, k, v);
      for (int j = 0; j < 4; j++) kt_put(out, k / 4 + j, row, has_min ? v[j] : v[j] ^ 0x80808080u);
    }
  }
}

#define KT_PANEL_ROWS_OF(name, block_values, block_bytes, group, has_min)                              \
  static void kt_panel_rows_##name(const uint8_t *block, int64_t row_bytes, int values,                \
                                   struct kt_panel *out) {                                             \
    kt_panel_rows(kt_row_##name, block_values, block_bytes, group, has_min, block, row_bytes, values,  \
                  out);                                                                                \
  }

KT_PANEL_ROWS_OF(iq1_s, 256, 50, 32, 0)
KT_PANEL_ROWS_OF(iq1_m, 256, 56, 16, 0)
KT_PANEL_ROWS_OF(iq2_xxs, 256, 66, 32, 0)
KT_PANEL_ROWS_OF(iq2_xs, 256, 74, 16, 0)
KT_PANEL_ROWS_OF(iq2_s, 256, 82, 16, 0)
KT_PANEL_ROWS_OF(iq3_xxs, 256, 98, 32, 0)
KT_PANEL_ROWS_OF(iq3_s, 256, 110, 32, 0)

#endif
