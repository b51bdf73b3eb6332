/* Panels: the unpacked values of 16 rows in memory, from the sources that unpack across rows. */
#ifndef KT_PANEL_H
#define KT_PANEL_H

#include "panels/panel-put.h"
#include "panels/unpack-blocks.h"
#include "panels/unpack-k.h"

#define KT_PANEL_BLOCKS_OF(name, block_bytes)                                                        \
  static void kt_panel_##name(const uint8_t *block, int64_t row_bytes, int values,                   \
                              struct kt_panel *out) {                                                \
    for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {                                        \
      const struct kt_rows rows = kt_rows_at(block + row * row_bytes, row_bytes);                    \
      for (int g = 0; g < values / 32; g++) kt_unpack_##name(&rows, g * (block_bytes), g, row, out); \
    }                                                                                                \
  }

#define KT_PANEL_K_OF(name)                                                             \
  static void kt_panel_##name(const uint8_t *block, int64_t row_bytes, int values,      \
                              struct kt_panel *out) {                                   \
    (void)values;                                                                       \
    for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {                           \
      const struct kt_rows rows = kt_rows_at(block + row * row_bytes, row_bytes);       \
      kt_unpack_##name(&rows, row, out);                                                \
    }                                                                                   \
  }

KT_PANEL_BLOCKS_OF(q4_0, 18)
KT_PANEL_BLOCKS_OF(q4_1, 20)
KT_PANEL_BLOCKS_OF(q5_0, 22)
KT_PANEL_BLOCKS_OF(q5_1, 24)
KT_PANEL_BLOCKS_OF(q8_0, 34)
KT_PANEL_BLOCKS_OF(iq4_nl, 18)
KT_PANEL_BLOCKS_OF(mxfp4, 17)
KT_PANEL_K_OF(q2_k)
KT_PANEL_K_OF(q3_k)
KT_PANEL_K_OF(q4_k)
KT_PANEL_K_OF(q5_k)
KT_PANEL_K_OF(q6_k)
KT_PANEL_K_OF(iq4_xs)

#endif
