/* Unpacking of the K-quants and IQ4_XS, one super-block (a step) of KT_LANES rows at a time. */
#ifndef KT_UNPACK_K_H
#define KT_UNPACK_K_H

#include "panels/unpack-blocks.h"

/* Byte i of every lane, as a number. */
KT_INLINE kt_vu kt_byte(kt_vu v, int i) { return v >> (8 * i) & 255; }

KT_INLINE kt_vf kt_scaled(kt_vf d, kt_vu integer) { return d * kt_to_float((kt_vi)integer); }

/* The 16-byte head of Q4_K and Q5_K: d and dmin, and 6-bit scales and minima of eight groups. */
struct kt_k_head {
  kt_vf d, m;
  kt_vu scales, mins, tops; /* of groups 0-3, with two bits each of 4-7; the other four bits of 4-7 */
};

KT_INLINE struct kt_k_head kt_load_k_head(const struct kt_rows *p) {
  kt_vu head[4];
  kt_load_quads(p, 0, head);
  return (struct kt_k_head){kt_lanes_half(head[0] & 0xffff), -kt_lanes_half(head[0] >> 16), head[1],
                            head[2], head[3]};
}

KT_INLINE void kt_put_k_scale(const struct kt_k_head *head, int g, int row, KT_OUT *out) {
  kt_vu scale = kt_byte(head->scales, g % 4), min = kt_byte(head->mins, g % 4);
  if (g < 4) {
    scale &= 63;
    min &= 63;
  } else {
    const kt_vu low = kt_byte(head->tops, g % 4);
    scale = (low & 15) | scale >> 6 << 4;
    min = low >> 4 | min >> 6 << 4;
  }
  kt_put_scale(out, g, row, kt_scaled(head->d, scale));
  kt_put_min(out, g, row, kt_scaled(head->m, min));
}

KT_INLINE void kt_unpack_q4_k(const struct kt_rows *p, int row, KT_OUT *out) {
  const struct kt_k_head head = kt_load_k_head(p);
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      kt_vu v[4];
      kt_load_quads(p, 16 + 32 * c + 16 * h, v);
      for (int j = 0; j < 4; j++) {
        kt_put(out, 16 * c + 4 * h + j, row, v[j] & KT_NIBBLES);
        kt_put(out, 16 * c + 4 * h + 8 + j, row, v[j] >> 4 & KT_NIBBLES);
      }
    }
    kt_put_k_scale(&head, 2 * c, row, out);
    kt_put_k_scale(&head, 2 * c + 1, row, out);
  }
}

KT_INLINE void kt_unpack_q5_k(const struct kt_rows *p, int row, KT_OUT *out) {
  const struct kt_k_head head = kt_load_k_head(p);
  kt_vu fifth[8];
  kt_load_quads(p, 16, fifth);
  kt_load_quads(p, 32, fifth + 4);
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      kt_vu v[4];
      kt_load_quads(p, 48 + 32 * c + 16 * h, v);
      for (int j = 0; j < 4; j++) {
        const kt_vu low = fifth[4 * h + j] >> (2 * c) & 0x01010101u;
        const kt_vu high = fifth[4 * h + j] >> (2 * c + 1) & 0x01010101u;
        kt_put(out, 16 * c + 4 * h + j, row, (v[j] & KT_NIBBLES) | low << 4);
        kt_put(out, 16 * c + 4 * h + 8 + j, row, (v[j] >> 4 & KT_NIBBLES) | high << 4);
      }
    }
    kt_put_k_scale(&head, 2 * c, row, out);
    kt_put_k_scale(&head, 2 * c + 1, row, out);
  }
}

/* q - 32 becomes q + 96. */
KT_INLINE void kt_unpack_q6_k(const struct kt_rows *p, int row, KT_OUT *out) {
  const kt_vf d = kt_load_half(p, 208);
  kt_vu scale[4];
  kt_load_quads(p, 192, scale);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) { /* values 128 h + 32 s + 16 part + 4 j, s = 0..3 */
    const int h = i / 2, part = i % 2, k4 = 32 * h + 4 * part;
    kt_vu a[4], b[4], x[4];
    kt_load_quads(p, 64 * h + 16 * part, a);
    kt_load_quads(p, 64 * h + 32 + 16 * part, b);
    kt_load_quads(p, 128 + 32 * h + 16 * part, x);
    for (int j = 0; j < 4; j++) {
      const uint32_t high = 0x30303030u, bias = 0x60606060u;
      kt_put(out, k4 + j, row, ((a[j] & KT_NIBBLES) | (x[j] << 4 & high)) + bias);
      kt_put(out, k4 + 8 + j, row, ((b[j] & KT_NIBBLES) | (x[j] << 2 & high)) + bias);
      kt_put(out, k4 + 16 + j, row, ((a[j] >> 4 & KT_NIBBLES) | (x[j] & high)) + bias);
      kt_put(out, k4 + 24 + j, row, ((b[j] >> 4 & KT_NIBBLES) | (x[j] >> 2 & high)) + bias);
    }
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
      const int g = 8 * h + 2 * s + part;
      const kt_vi six = (kt_vi)(scale[g / 4] << (24 - 8 * (g % 4))) >> 24;
      kt_put_scale(out, g, row, d * kt_to_float(six));
    }
  }
}

KT_INLINE void kt_unpack_q2_k(const struct kt_rows *p, int row, KT_OUT *out) {
  const kt_vf d = kt_load_half(p, 80), m = -kt_load_half(p, 82);
  kt_vu scale[4];
  kt_load_quads(p, 0, scale);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    kt_vu v[4];
    kt_load_quads(p, 16 + 16 * i, v);
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
      const int g = 8 * (i / 2) + 2 * s + i % 2;
      for (int j = 0; j < 4; j++) kt_put(out, 4 * g + j, row, v[j] >> (2 * s) & 0x03030303u);
      const kt_vu both = kt_byte(scale[g / 4], g % 4);
      kt_put_scale(out, g, row, kt_scaled(d, both & 15));
      kt_put_min(out, g, row, kt_scaled(m, both >> 4));
    }
  }
}

/* q - 4 becomes q + 124. */
KT_INLINE void kt_unpack_q3_k(const struct kt_rows *p, int row, KT_OUT *out) {
  const kt_vf d = kt_load_half(p, 108);
  kt_vu tail[4], third[8]; /* the 12 scale bytes are followed by d alone: load from 4 bytes before */
  kt_load_quads(p, 92, tail);
  kt_load_quads(p, 0, third);
  kt_load_quads(p, 16, third + 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const int c = i / 2, part = i % 2;
    kt_vu v[4];
    kt_load_quads(p, 32 + 16 * i, v);
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
      const int g = 8 * c + 2 * s + part;
      for (int j = 0; j < 4; j++) {
        const kt_vu low = v[j] >> (2 * s) & 0x03030303u;
        const kt_vu high = third[4 * part + j] >> (4 * c + s) & 0x01010101u;
        kt_put(out, 4 * g + j, row, (low | high << 2) + 0x7c7c7c7cu);
      }
      const kt_vu low = kt_byte(tail[1 + g / 4 % 2], g % 4) >> (g < 8 ? 0 : 4) & 15;
      const kt_vu high = kt_byte(tail[3], g % 4) >> (2 * (g / 4)) & 3;
      kt_put_scale(out, g, row, d * kt_to_float((kt_vi)(low | high << 4) - 32));
    }
  }
}

KT_INLINE void kt_unpack_iq4_xs(const struct kt_rows *p, int row, KT_OUT *out) {
  const kt_table table = kt_biased_table(kt_iq4_values);
  const kt_vf d = kt_load_half(p, 0);
  const kt_vu high = kt_load_halves(p, 2), low = kt_load_dwords(p, 4);
#pragma GCC unroll 8
  for (int g = 0; g < 8; g++) {
    kt_put_table(p, 8 + 16 * g, 8 * g, row, table, out);
    const kt_vu six = (low >> (4 * g) & 15) | (high >> (2 * g) & 3) << 4;
    kt_put_scale(out, g, row, d * kt_to_float((kt_vi)six - 32));
  }
}

#endif
