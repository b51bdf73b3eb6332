/* The K-quants and IQ4_XS: super-blocks of 256 values with integer sub-scales. */
#ifndef KT_ROW_K_H
#define KT_ROW_K_H

#include "rows/row-blocks.h"

/* Q2_K (84 bytes): 16 x (4-bit scale, 4-bit min); 64 bytes of 2-bit values; f16 d; f16 dmin.
 * Byte l of 32-byte chunk c holds values 128 c + 32 s + l, s = 0..3 from the low bits up. */
static inline void kt_row_q2_k(const uint8_t *block, int8_t *q, float *scale, float *min) {
  const float d = kt_half_float(kt_load_u16(block + 80));
  const float dmin = kt_half_float(kt_load_u16(block + 82));
  for (int g = 0; g < 16; g++) {
    scale[g] = d * (float)(block[g] & 15);
    min[g] = -(dmin * (float)(block[g] >> 4));
  }
  for (int c = 0; c < 2; c++)
    for (int s = 0; s < 4; s++)
      for (int l = 0; l < 32; l++)
        q[128 * c + 32 * s + l] = (int8_t)((block[16 + 32 * c + l] >> (2 * s)) & 3);
}

/* Q3_K (110 bytes): 32 bytes of third bits (bit 4 c + s of byte l); 64 bytes of 2-bit values as in Q2_K;
 * 16 6-bit scales in 12 bytes; f16 d. A third bit that is clear subtracts 4. */
static inline void kt_row_q3_k(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const uint8_t *sc = block + 96;
  const float d = kt_half_float(kt_load_u16(block + 108));
  for (int g = 0; g < 16; g++) {
    const int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
    const int high = (sc[8 + g % 4] >> (2 * (g / 4))) & 3;
    scale[g] = d * (float)((low | high << 4) - 32);
  }
  for (int c = 0; c < 2; c++)
    for (int s = 0; s < 4; s++)
      for (int l = 0; l < 32; l++) {
        const int low = (block[32 + 32 * c + l] >> (2 * s)) & 3;
        const int high = (block[l] >> (4 * c + s)) & 1;
        q[128 * c + 32 * s + l] = (int8_t)((low | high << 2) - 4);
      }
}

/* The 12 bytes of 6-bit scales and minima of Q4_K and Q5_K. */
static inline void kt_k_scale_min(const uint8_t *block, float *scale, float *min) {
  const uint8_t *sc = block + 4;
  const float d = kt_half_float(kt_load_u16(block));
  const float dmin = kt_half_float(kt_load_u16(block + 2));
  for (int g = 0; g < 4; g++) {
    scale[g] = d * (float)(sc[g] & 63);
    min[g] = -(dmin * (float)(sc[g + 4] & 63));
    scale[g + 4] = d * (float)((sc[g + 8] & 15) | (sc[g] >> 6) << 4);
    min[g + 4] = -(dmin * (float)((sc[g + 8] >> 4) | (sc[g + 4] >> 6) << 4));
  }
}

/* Q4_K (144 bytes): f16 d; f16 dmin; scales; 128 bytes of nibbles. Of 32-byte chunk c the low nibbles are
 * group 2 c and the high ones group 2 c + 1. */
static inline void kt_row_q4_k(const uint8_t *block, int8_t *q, float *scale, float *min) {
  kt_k_scale_min(block, scale, min);
  for (int c = 0; c < 4; c++)
    for (int l = 0; l < 32; l++) {
      q[64 * c + l] = (int8_t)(block[16 + 32 * c + l] & 15);
      q[64 * c + 32 + l] = (int8_t)(block[16 + 32 * c + l] >> 4);
    }
}

/* Q5_K (176 bytes): as Q4_K with 32 bytes of fifth bits after the scales, bit g of byte l for group g. */
static inline void kt_row_q5_k(const uint8_t *block, int8_t *q, float *scale, float *min) {
  kt_k_scale_min(block, scale, min);
  for (int c = 0; c < 4; c++)
    for (int l = 0; l < 32; l++) {
      const int high = block[16 + l] >> (2 * c);
      q[64 * c + l] = (int8_t)((block[48 + 32 * c + l] & 15) | (high & 1) << 4);
      q[64 * c + 32 + l] = (int8_t)((block[48 + 32 * c + l] >> 4) | (high >> 1 & 1) << 4);
    }
}

/* Q6_K (210 bytes): 128 bytes of low nibbles; 64 bytes of high bit pairs; 16 signed scales; f16 d.
 * Half h of 128 values uses 64 low and 32 high bytes. */
static inline void kt_row_q6_k(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block + 208));
  for (int g = 0; g < 16; g++) scale[g] = d * (float)(int8_t)block[192 + g];
  for (int h = 0; h < 2; h++)
    for (int s = 0; s < 4; s++)
      for (int l = 0; l < 32; l++) {
        const int low = block[64 * h + 32 * (s & 1) + l] >> (s < 2 ? 0 : 4) & 15;
        const int high = block[128 + 32 * h + l] >> (2 * s) & 3;
        q[128 * h + 32 * s + l] = (int8_t)((low | high << 4) - 32);
      }
}

/* IQ4_XS (136 bytes): f16 d; 8 high pairs and 8 low nibbles of the scales; nibbles as in IQ4_NL. */
static inline void kt_row_iq4_xs(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  const unsigned high = kt_load_u16(block + 2);
  for (int g = 0; g < 8; g++) {
    const int low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
    scale[g] = d * (float)((low | (int)(high >> (2 * g) & 3) << 4) - 32);
    for (int l = 0; l < 16; l++) {
      q[32 * g + l] = kt_iq4_values[block[8 + 16 * g + l] & 15];
      q[32 * g + 16 + l] = kt_iq4_values[block[8 + 16 * g + l] >> 4];
    }
  }
}

#endif
