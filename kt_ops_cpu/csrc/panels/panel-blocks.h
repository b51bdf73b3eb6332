/* Panels of the types with one scale per block of 32. */
#ifndef KT_PANEL_BLOCKS_H
#define KT_PANEL_BLOCKS_H

#include "panels/lanes.h"
#include "rows/row-blocks.h"

#define KT_NIBBLES 0x0f0f0f0fu

/* Walk the blocks of a step for each set of KT_LANES rows. */
#define KT_FOR_BLOCKS(bytes)                                                             \
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES)                                \
    for (int g = 0; g < values / 32; g++)                                                \
      for (const uint8_t *p = block + row * row_bytes + g * (bytes), *once = p; once; once = NULL)

/* Biased by 128: n - 8 becomes n + 120. */
static void kt_panel_q4_0(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  KT_FOR_BLOCKS(18) {
    kt_vu v[4];
    kt_load_quads(p + 2, row_bytes, v);
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    for (int j = 0; j < 4; j++) {
      kt_put(out, 8 * g + j, row, (v[j] & KT_NIBBLES) + 0x78787878u);
      kt_put(out, 8 * g + 4 + j, row, (v[j] >> 4 & KT_NIBBLES) + 0x78787878u);
    }
  }
}

static void kt_panel_q4_1(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  KT_FOR_BLOCKS(20) {
    kt_vu v[4];
    kt_load_quads(p + 4, row_bytes, v);
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    kt_put_min(out, g, row, kt_load_half(p + 2, row_bytes));
    for (int j = 0; j < 4; j++) {
      kt_put(out, 8 * g + j, row, v[j] & KT_NIBBLES);
      kt_put(out, 8 * g + 4 + j, row, v[j] >> 4 & KT_NIBBLES);
    }
  }
}

/* The fifth bits of 32 values, one dword per row. */
static inline kt_vu kt_load_fifth(const uint8_t *p, int64_t row_bytes) {
  return kt_load_halves(p, row_bytes) | kt_load_halves(p + 2, row_bytes) << 16;
}

static inline void kt_put_q5(const uint8_t *p, int64_t row_bytes, int g, int row, kt_vu fifth,
                             uint32_t bias, struct kt_panel *out) {
  kt_vu v[4];
  kt_load_quads(p, row_bytes, v);
  for (int j = 0; j < 4; j++) {
    const kt_vu low = kt_spread_bits(fifth >> (4 * j) & 15) << 4;
    const kt_vu high = kt_spread_bits(fifth >> (16 + 4 * j) & 15) << 4;
    kt_put(out, 8 * g + j, row, ((v[j] & KT_NIBBLES) | low) + bias);
    kt_put(out, 8 * g + 4 + j, row, ((v[j] >> 4 & KT_NIBBLES) | high) + bias);
  }
}

/* n - 16 becomes n + 112. */
static void kt_panel_q5_0(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  KT_FOR_BLOCKS(22) {
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    kt_put_q5(p + 6, row_bytes, g, row, kt_load_fifth(p + 2, row_bytes), 0x70707070u, out);
  }
}

static void kt_panel_q5_1(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  KT_FOR_BLOCKS(24) {
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    kt_put_min(out, g, row, kt_load_half(p + 2, row_bytes));
    kt_put_q5(p + 8, row_bytes, g, row, kt_load_fifth(p + 4, row_bytes), 0, out);
  }
}

static void kt_panel_q8_0(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  KT_FOR_BLOCKS(34) {
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    for (int h = 0; h < 2; h++) {
      kt_vu v[4];
      kt_load_quads(p + 2 + 16 * h, row_bytes, v);
      for (int j = 0; j < 4; j++) kt_put(out, 8 * g + 4 * h + j, row, v[j] ^ 0x80808080u);
    }
  }
}

/* A table of signed values, biased by 128. */
static inline void kt_bias_table(const int8_t *values, uint8_t *table) {
  for (int i = 0; i < 16; i++) table[i] = (uint8_t)(values[i] + 128);
}

static inline void kt_put_table(const uint8_t *p, int64_t row_bytes, int g, int row,
                                const uint8_t *table, struct kt_panel *out) {
  kt_vu v[4];
  kt_load_quads(p, row_bytes, v);
  for (int j = 0; j < 4; j++) {
    kt_put(out, 8 * g + j, row, kt_lookup(v[j] & KT_NIBBLES, table));
    kt_put(out, 8 * g + 4 + j, row, kt_lookup(v[j] >> 4 & KT_NIBBLES, table));
  }
}

static void kt_panel_iq4_nl(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  uint8_t table[16];
  kt_bias_table(kt_iq4_values, table);
  KT_FOR_BLOCKS(18) {
    kt_put_scale(out, g, row, kt_load_half(p, row_bytes));
    kt_put_table(p + 2, row_bytes, g, row, table, out);
  }
}

static void kt_panel_mxfp4(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  uint8_t table[16];
  kt_bias_table(kt_mxfp4_values, table);
  KT_FOR_BLOCKS(17) {
    for (int l = 0; l < KT_LANES; l++) out->scale[g][row + l] = kt_e8m0_half(p[l * row_bytes]);
    kt_put_table(p + 1, row_bytes, g, row, table, out);
  }
}

#endif
