/* Panels of the K-quants and IQ4_XS. A step is one super-block, so `values` is always KT_STEP. */
#ifndef KT_PANEL_K_H
#define KT_PANEL_K_H

#include "panels/panel-blocks.h"

#define KT_FOR_ROWS                                       \
  for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) \
    for (const uint8_t *p = block + row * row_bytes, *once = p; once; once = NULL)

/* Byte i of every lane, as a number. */
static inline kt_vu kt_byte(kt_vu v, int i) { return v >> (8 * i) & 255; }

static inline kt_vf kt_scaled(kt_vf d, kt_vu integer) { return d * kt_to_float((kt_vi)integer); }

/* The 16-byte head of Q4_K and Q5_K: scales and minima of eight groups. */
static inline void kt_put_k_scales(const uint8_t *p, int64_t row_bytes, int row, struct kt_panel *out) {
  kt_vu head[4];
  kt_load_quads(p, row_bytes, head);
  const kt_vf d = kt_lanes_half(head[0] & 0xffff), m = -kt_lanes_half(head[0] >> 16);
  for (int i = 0; i < 4; i++) {
    const kt_vu s = kt_byte(head[1], i), n = kt_byte(head[2], i), both = kt_byte(head[3], i);
    kt_put_scale(out, i, row, kt_scaled(d, s & 63));
    kt_put_min(out, i, row, kt_scaled(m, n & 63));
    kt_put_scale(out, 4 + i, row, kt_scaled(d, (both & 15) | (s >> 6) << 4));
    kt_put_min(out, 4 + i, row, kt_scaled(m, both >> 4 | (n >> 6) << 4));
  }
}

static void kt_panel_q4_k(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  KT_FOR_ROWS {
    kt_put_k_scales(p, row_bytes, row, out);
    for (int i = 0; i < 8; i++) { /* 16 bytes: half i % 2 of chunk i / 2 */
      const int k4 = 16 * (i / 2) + 4 * (i % 2);
      kt_vu v[4];
      kt_load_quads(p + 16 + 16 * i, row_bytes, v);
      for (int j = 0; j < 4; j++) {
        kt_put(out, k4 + j, row, v[j] & KT_NIBBLES);
        kt_put(out, k4 + 8 + j, row, v[j] >> 4 & KT_NIBBLES);
      }
    }
  }
}

static void kt_panel_q5_k(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  KT_FOR_ROWS {
    kt_put_k_scales(p, row_bytes, row, out);
    for (int h = 0; h < 2; h++) {
      kt_vu fifth[4];
      kt_load_quads(p + 16 + 16 * h, row_bytes, fifth);
      for (int c = 0; c < 4; c++) {
        kt_vu v[4];
        kt_load_quads(p + 48 + 32 * c + 16 * h, row_bytes, v);
        for (int j = 0; j < 4; j++) {
          const kt_vu low = fifth[j] >> (2 * c) & 0x01010101u;
          const kt_vu high = fifth[j] >> (2 * c + 1) & 0x01010101u;
          kt_put(out, 16 * c + 4 * h + j, row, (v[j] & KT_NIBBLES) | low << 4);
          kt_put(out, 16 * c + 4 * h + 8 + j, row, (v[j] >> 4 & KT_NIBBLES) | high << 4);
        }
      }
    }
  }
}

/* q - 32 becomes q + 96. */
static void kt_panel_q6_k(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  KT_FOR_ROWS {
    const kt_vf d = kt_load_half(p + 208, row_bytes);
    kt_vu scale[4];
    kt_load_quads(p + 192, row_bytes, scale);
    for (int g = 0; g < 16; g++)
      kt_put_scale(out, g, row, kt_scaled(d, (kt_vu)((kt_vi)(scale[g / 4] << (24 - 8 * (g % 4))) >> 24)));
    for (int i = 0; i < 4; i++) { /* values 128 h + 32 s + 16 i' + 4 j, where i = 2 h + i' */
      const int h = i / 2, part = i % 2, k4 = 32 * h + 4 * part;
      kt_vu a[4], b[4], high[4];
      kt_load_quads(p + 64 * h + 16 * part, row_bytes, a);
      kt_load_quads(p + 64 * h + 32 + 16 * part, row_bytes, b);
      kt_load_quads(p + 128 + 32 * h + 16 * part, row_bytes, high);
      for (int j = 0; j < 4; j++) {
        const kt_vu x = high[j];
        kt_put(out, k4 + j, row, ((a[j] & KT_NIBBLES) | (x << 4 & 0x30303030u)) + 0x60606060u);
        kt_put(out, k4 + 8 + j, row, ((b[j] & KT_NIBBLES) | (x << 2 & 0x30303030u)) + 0x60606060u);
        kt_put(out, k4 + 16 + j, row, ((a[j] >> 4 & KT_NIBBLES) | (x & 0x30303030u)) + 0x60606060u);
        kt_put(out, k4 + 24 + j, row, ((b[j] >> 4 & KT_NIBBLES) | (x >> 2 & 0x30303030u)) + 0x60606060u);
      }
    }
  }
}

static void kt_panel_q2_k(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  KT_FOR_ROWS {
    const kt_vf d = kt_load_half(p + 80, row_bytes), m = -kt_load_half(p + 82, row_bytes);
    kt_vu scale[4];
    kt_load_quads(p, row_bytes, scale);
    for (int g = 0; g < 16; g++) {
      const kt_vu both = kt_byte(scale[g / 4], g % 4);
      kt_put_scale(out, g, row, kt_scaled(d, both & 15));
      kt_put_min(out, g, row, kt_scaled(m, both >> 4));
    }
    for (int i = 0; i < 4; i++) {
      kt_vu v[4];
      kt_load_quads(p + 16 + 16 * i, row_bytes, v);
      for (int s = 0; s < 4; s++)
        for (int j = 0; j < 4; j++)
          kt_put(out, 32 * (i / 2) + 8 * s + 4 * (i % 2) + j, row, v[j] >> (2 * s) & 0x03030303u);
    }
  }
}

/* q - 4 becomes q + 124. */
static void kt_panel_q3_k(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  KT_FOR_ROWS {
    const kt_vf d = kt_load_half(p + 108, row_bytes);
    kt_vu tail[4], third[2][4]; /* the 12 scale bytes end the block but for d: load from 4 before */
    kt_load_quads(p + 92, row_bytes, tail);
    kt_load_quads(p, row_bytes, third[0]);
    kt_load_quads(p + 16, row_bytes, third[1]);
    for (int g = 0; g < 16; g++) {
      const kt_vu low = kt_byte(tail[1 + g / 4 % 2], g % 4) >> (g < 8 ? 0 : 4) & 15;
      const kt_vu high = kt_byte(tail[3], g % 4) >> (2 * (g / 4)) & 3;
      kt_put_scale(out, g, row, d * kt_to_float((kt_vi)(low | high << 4) - 32));
    }
    for (int i = 0; i < 4; i++) {
      const int c = i / 2, part = i % 2;
      kt_vu v[4];
      kt_load_quads(p + 32 + 16 * i, row_bytes, v);
      for (int s = 0; s < 4; s++)
        for (int j = 0; j < 4; j++) {
          const kt_vu low = v[j] >> (2 * s) & 0x03030303u;
          const kt_vu high = third[part][j] >> (4 * c + s) & 0x01010101u;
          kt_put(out, 32 * c + 8 * s + 4 * part + j, row, (low | high << 2) + 0x7c7c7c7cu);
        }
    }
  }
}

static void kt_panel_iq4_xs(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out) {
  (void)values;
  uint8_t table[16];
  kt_bias_table(kt_iq4_values, table);
  KT_FOR_ROWS {
    const kt_vf d = kt_load_half(p, row_bytes);
    const kt_vu high = kt_load_halves(p + 2, row_bytes);
    const kt_vu low = kt_load_halves(p + 4, row_bytes) | kt_load_halves(p + 6, row_bytes) << 16;
    for (int g = 0; g < 8; g++) {
      const kt_vu six = (low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4;
      kt_put_scale(out, g, row, d * kt_to_float((kt_vi)six - 32));
      kt_put_table(p + 8 + 16 * g, row_bytes, g, row, table, out);
    }
  }
}

#endif
