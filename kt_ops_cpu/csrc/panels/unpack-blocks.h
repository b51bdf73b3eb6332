/* Unpacking of the types with one scale per block of 32, KT_LANES rows at a time.
 *
 * Each function unpacks block g of a step, which begins at offset `at` of every row. Where the values go
 * is the includer's business: KT_OUT and the three kt_put functions are a panel in memory (panel.h) or
 * the registers of a dot product (gemv.h). A group's scale and minimum are put after its values. */
#ifndef KT_UNPACK_BLOCKS_H
#define KT_UNPACK_BLOCKS_H

#include "panels/lanes.h"
#include "rows/row-blocks.h"

#define KT_NIBBLES 0x0f0f0f0fu

/* Biased by 128: n - 8 becomes n + 120. */
KT_INLINE void kt_unpack_q4_0(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_vu v[4];
  kt_load_quads(p, at + 2, v);
  for (int j = 0; j < 4; j++) {
    kt_put(out, 8 * g + j, row, (v[j] & KT_NIBBLES) + 0x78787878u);
    kt_put(out, 8 * g + 4 + j, row, (v[j] >> 4 & KT_NIBBLES) + 0x78787878u);
  }
  kt_put_scale(out, g, row, kt_load_half(p, at));
}

KT_INLINE void kt_unpack_q4_1(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_vu v[4];
  kt_load_quads(p, at + 4, v);
  for (int j = 0; j < 4; j++) {
    kt_put(out, 8 * g + j, row, v[j] & KT_NIBBLES);
    kt_put(out, 8 * g + 4 + j, row, v[j] >> 4 & KT_NIBBLES);
  }
  kt_put_scale(out, g, row, kt_load_half(p, at));
  kt_put_min(out, g, row, kt_load_half(p, at + 2));
}

/* Nibbles at `at` with the fifth bits of 32 values, one dword per row. */
KT_INLINE void kt_put_q5(const struct kt_rows *p, int64_t at, int k4, int row, kt_vu fifth, uint32_t bias,
                         KT_OUT *out) {
  kt_vu v[4];
  kt_load_quads(p, at, v);
  for (int j = 0; j < 4; j++) {
    const kt_vu low = kt_spread_bits(fifth >> (4 * j) & 15) << 4;
    const kt_vu high = kt_spread_bits(fifth >> (16 + 4 * j) & 15) << 4;
    kt_put(out, k4 + j, row, ((v[j] & KT_NIBBLES) | low) + bias);
    kt_put(out, k4 + 4 + j, row, ((v[j] >> 4 & KT_NIBBLES) | high) + bias);
  }
}

/* n - 16 becomes n + 112. */
KT_INLINE void kt_unpack_q5_0(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_put_q5(p, at + 6, 8 * g, row, kt_load_dwords(p, at + 2), 0x70707070u, out);
  kt_put_scale(out, g, row, kt_load_half(p, at));
}

KT_INLINE void kt_unpack_q5_1(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_put_q5(p, at + 8, 8 * g, row, kt_load_dwords(p, at + 4), 0, out);
  kt_put_scale(out, g, row, kt_load_half(p, at));
  kt_put_min(out, g, row, kt_load_half(p, at + 2));
}

KT_INLINE void kt_unpack_q8_0(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  for (int h = 0; h < 2; h++) {
    kt_vu v[4];
    kt_load_quads(p, at + 2 + 16 * h, v);
    for (int j = 0; j < 4; j++) kt_put(out, 8 * g + 4 * h + j, row, v[j] ^ 0x80808080u);
  }
  kt_put_scale(out, g, row, kt_load_half(p, at));
}

/* 32 nibbles through a table of bytes. */
KT_INLINE void kt_put_table(const struct kt_rows *p, int64_t at, int k4, int row, kt_table table,
                            KT_OUT *out) {
  kt_vu v[4];
  kt_load_quads(p, at, v);
  for (int j = 0; j < 4; j++) {
    kt_put(out, k4 + j, row, kt_lookup(v[j] & KT_NIBBLES, table));
    kt_put(out, k4 + 4 + j, row, kt_lookup(v[j] >> 4 & KT_NIBBLES, table));
  }
}

KT_INLINE void kt_unpack_iq4_nl(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_put_table(p, at + 2, 8 * g, row, kt_biased_table(kt_iq4_values), out);
  kt_put_scale(out, g, row, kt_load_half(p, at));
}

KT_INLINE void kt_unpack_mxfp4(const struct kt_rows *p, int64_t at, int g, int row, KT_OUT *out) {
  kt_put_table(p, at + 1, 8 * g, row, kt_biased_table(kt_mxfp4_values), out);
  /* Half of 2^(e - 127), as kt_e8m0_half. */
  const kt_vu e = kt_load_bytes(p, at);
  const kt_vu tiny = (kt_vu)(e < 2);
  kt_put_scale(out, g, row, (kt_vf)((tiny & 0x00200000u << (e & 1)) | (~tiny & (e - 1) << 23)));
}

#endif
