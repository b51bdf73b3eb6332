/* Types with one scale per block of 32 values. */
#ifndef KT_ROW_BLOCKS_H
#define KT_ROW_BLOCKS_H

#include "core/half.h"
#include "core/types.h"
#include "kt_ops_cpu.h"

/* Values that the 4-bit indices of IQ4_NL and IQ4_XS stand for. */
static const int8_t kt_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
/* Twice the values of FP4 E2M1, so that they are whole; the scale below is halved. */
static const int8_t kt_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of 2^(e - 127). The two smallest exponents give a subnormal. */
static inline float kt_e8m0_half(uint8_t e) {
  return kt_bits_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* Q4_0 (18 bytes): f16 d; 16 bytes of nibbles, low ones are values 0-15, high ones 16-31; d * (n - 8). */
static inline void kt_row_q4_0(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  scale[0] = kt_half_float(kt_load_u16(block));
  for (int i = 0; i < 16; i++) {
    q[i] = (int8_t)((block[2 + i] & 15) - 8);
    q[i + 16] = (int8_t)((block[2 + i] >> 4) - 8);
  }
}

/* Q4_1 (20 bytes): f16 d; f16 m; nibbles as in Q4_0; d * n + m. */
static inline void kt_row_q4_1(const uint8_t *block, int8_t *q, float *scale, float *min) {
  scale[0] = kt_half_float(kt_load_u16(block));
  min[0] = kt_half_float(kt_load_u16(block + 2));
  for (int i = 0; i < 16; i++) {
    q[i] = (int8_t)(block[4 + i] & 15);
    q[i + 16] = (int8_t)(block[4 + i] >> 4);
  }
}

/* Q5_0 (22 bytes): f16 d; 32 fifth bits, bit k for value k; nibbles as in Q4_0; d * (n - 16). */
static inline void kt_row_q5_0(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const uint32_t high = kt_load_u32(block + 2);
  scale[0] = kt_half_float(kt_load_u16(block));
  for (int i = 0; i < 16; i++) {
    q[i] = (int8_t)(((block[6 + i] & 15) | ((high >> i) & 1) << 4) - 16);
    q[i + 16] = (int8_t)(((block[6 + i] >> 4) | ((high >> (i + 16)) & 1) << 4) - 16);
  }
}

/* Q5_1 (24 bytes): f16 d; f16 m; fifth bits; nibbles; d * n + m. */
static inline void kt_row_q5_1(const uint8_t *block, int8_t *q, float *scale, float *min) {
  const uint32_t high = kt_load_u32(block + 4);
  scale[0] = kt_half_float(kt_load_u16(block));
  min[0] = kt_half_float(kt_load_u16(block + 2));
  for (int i = 0; i < 16; i++) {
    q[i] = (int8_t)((block[8 + i] & 15) | ((high >> i) & 1) << 4);
    q[i + 16] = (int8_t)((block[8 + i] >> 4) | ((high >> (i + 16)) & 1) << 4);
  }
}

/* Q8_0 (34 bytes): f16 d; 32 signed bytes. */
static inline void kt_row_q8_0(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  scale[0] = kt_half_float(kt_load_u16(block));
  memcpy(q, block + 2, 32);
}

/* IQ4_NL (18 bytes): as Q4_0, with a table in place of n - 8. */
static inline void kt_row_iq4_nl(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  scale[0] = kt_half_float(kt_load_u16(block));
  for (int i = 0; i < 16; i++) {
    q[i] = kt_iq4_values[block[2 + i] & 15];
    q[i + 16] = kt_iq4_values[block[2 + i] >> 4];
  }
}

/* MXFP4 (17 bytes): power-of-two exponent; nibbles as in Q4_0, each an FP4 E2M1. */
static inline void kt_row_mxfp4(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  scale[0] = kt_e8m0_half(block[0]);
  for (int i = 0; i < 16; i++) {
    q[i] = kt_mxfp4_values[block[1 + i] & 15];
    q[i + 16] = kt_mxfp4_values[block[1 + i] >> 4];
  }
}

#endif
