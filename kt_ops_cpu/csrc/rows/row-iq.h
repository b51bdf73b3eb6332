/* IQ1, IQ2 and IQ3: indices into codebooks, with signs and 3- or 4-bit sub-scales. */
#ifndef KT_ROW_IQ_H
#define KT_ROW_IQ_H

#include "core/codebook.h"
#include "rows/row-blocks.h"

/* Seven stored signs; the eighth makes their number even. */
static inline unsigned kt_iq_signs(unsigned seven) {
  return seven | (unsigned)__builtin_parity(seven) << 7;
}

/* Eight bytes at a time: codebook entries are loaded, negated and stored as one 64-bit number. */
#define KT_IQ_ONES 0x0101010101010101u

static inline uint64_t kt_iq_eight(const int8_t *entry) {
  uint64_t values;
  memcpy(&values, entry, sizeof values);
  return values;
}

static inline uint64_t kt_iq_four_and_four(const int8_t *low, const int8_t *high) {
  return kt_load_u32(low) | (uint64_t)kt_load_u32(high) << 32;
}

/* Negate byte i if bit i of `signs` is set: a bit becomes a byte of ones, and (x ^ 255) + 1 is -x. No carry
 * leaves a byte, because no entry of the codebooks with signs is zero. */
static inline void kt_iq_signed(uint64_t values, unsigned signs, int8_t *q) {
  const uint64_t picked = (signs & 255) * KT_IQ_ONES & 0x8040201008040201u; /* byte i: bit i or zero */
  /* The high bit of a byte is set if the byte is not zero: its low seven bits carry into it. */
  const uint64_t bits = (((picked & KT_IQ_ONES * 127) + KT_IQ_ONES * 127) | picked) >> 7 & KT_IQ_ONES;
  values = (values ^ bits * 255) + bits;
  memcpy(q, &values, sizeof values);
}

/* 8 * entry + shift for entries of -1, 0 and 1, so that the low three bits of the product are free: one
 * less is the product less 8 with 7 in those bits. The subtraction must not borrow across bytes. */
static inline void kt_iq_shifted(const int8_t *entry, int minus, int8_t *q) {
  const uint64_t product = kt_iq_eight(entry) << 3 & KT_IQ_ONES * 0xf8;
  const uint64_t less = ((product | KT_IQ_ONES << 7) - KT_IQ_ONES * 8) ^ (~product & KT_IQ_ONES << 7);
  const uint64_t values = minus ? less | KT_IQ_ONES * 7 : product | KT_IQ_ONES;
  memcpy(q, &values, sizeof values);
}

/* IQ2_XXS (66 bytes): f16 d; per 32 values four 8-bit indices, then 4 x 7 signs and a 4-bit scale. */
static inline void kt_row_iq2_xxs(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 8; g++) {
    const uint8_t *part = block + 2 + 8 * g;
    const uint32_t rest = kt_load_u32(part + 4);
    scale[g] = d * (0.5f + (float)(rest >> 28)) * 0.25f;
    for (int i = 0; i < 4; i++)
      kt_iq_signed(kt_iq_eight(kt_codebook_iq2_xxs + 8 * part[i]), kt_iq_signs(rest >> (7 * i) & 127),
                   q + 32 * g + 8 * i);
  }
}

/* IQ2_XS (74 bytes): f16 d; 32 x (9-bit index, 7 signs); 16 4-bit scales. */
static inline void kt_row_iq2_xs(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 16; g++)
    scale[g] = d * (0.5f + (float)(block[66 + g / 2] >> (4 * (g % 2)) & 15)) * 0.25f;
  for (int i = 0; i < 32; i++) {
    const unsigned code = kt_load_u16(block + 2 + 2 * i);
    kt_iq_signed(kt_iq_eight(kt_codebook_iq2_xs + 8 * (code & 511)), kt_iq_signs(code >> 9), q + 8 * i);
  }
}

/* IQ2_S (82 bytes): f16 d; 32 low index bytes; 32 sign bytes; 8 bytes of index bits 8-9; 8 of scales. */
static inline void kt_row_iq2_s(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 16; g++)
    scale[g] = d * (0.5f + (float)(block[74 + g / 2] >> (4 * (g % 2)) & 15)) * 0.25f;
  for (int i = 0; i < 32; i++) {
    const int high = block[66 + i / 4] >> (2 * (i % 4)) & 3;
    kt_iq_signed(kt_iq_eight(kt_codebook_iq2_s + 8 * (block[2 + i] | high << 8)), block[34 + i], q + 8 * i);
  }
}

/* IQ3_XXS (98 bytes): f16 d; 64 8-bit indices; per 32 values 4 x 7 signs and a 4-bit scale. */
static inline void kt_row_iq3_xxs(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 8; g++) {
    const uint32_t rest = kt_load_u32(block + 66 + 4 * g);
    scale[g] = d * (0.5f + (float)(rest >> 28)) * 0.5f;
    for (int i = 0; i < 4; i++) {
      const uint8_t *index = block + 2 + 8 * g + 2 * i;
      const uint64_t values =
          kt_iq_four_and_four(kt_codebook_iq3_xxs + 4 * index[0], kt_codebook_iq3_xxs + 4 * index[1]);
      kt_iq_signed(values, kt_iq_signs(rest >> (7 * i) & 127), q + 32 * g + 8 * i);
    }
  }
}

/* IQ3_S (110 bytes): f16 d; 64 low index bytes; 8 bytes of ninth bits; 32 sign bytes; 4 of scales. */
static inline void kt_row_iq3_s(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 8; g++)
    scale[g] = d * (float)(1 + 2 * (block[106 + g / 2] >> (4 * (g % 2)) & 15));
  for (int i = 0; i < 32; i++) {
    const uint8_t *low = block + 2 + 2 * i;
    const int high = block[66 + i / 4] >> (2 * (i % 4));
    const uint64_t values = kt_iq_four_and_four(kt_codebook_iq3_s + 4 * (low[0] | (high & 1) << 8),
                                                kt_codebook_iq3_s + 4 * (low[1] | (high & 2) << 7));
    kt_iq_signed(values, block[74 + i], q + 8 * i);
  }
}

/* IQ1_S (50 bytes): f16 d; 32 low index bytes; per 32 values 4 x 3 index bits, a 3-bit scale and the
 * sign of the shift by 1/8. Values are multiplied by 8 here so that the shift is whole. */
static inline void kt_row_iq1_s(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  const float d = kt_half_float(kt_load_u16(block));
  for (int g = 0; g < 8; g++) {
    const unsigned high = kt_load_u16(block + 34 + 2 * g);
    scale[g] = d * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
    for (int i = 0; i < 4; i++) {
      const int8_t *entry = kt_codebook_iq1 + 8 * (block[2 + 4 * g + i] | (high >> (3 * i) & 7) << 8);
      kt_iq_shifted(entry, high >> 15, q + 32 * g + 8 * i);
    }
  }
}

/* IQ1_M (56 bytes): 32 low index bytes; 16 bytes of (3 index bits, sign of the shift) per 8 values;
 * four u16 with 4 x 3-bit scales each, whose top nibbles form the f16 d. */
static inline void kt_row_iq1_m(const uint8_t *block, int8_t *q, float *scale, float *min) {
  (void)min;
  unsigned bits = 0;
  for (int i = 0; i < 4; i++) bits |= (unsigned)(kt_load_u16(block + 48 + 2 * i) >> 12) << (4 * i);
  const float d = kt_half_float((uint16_t)bits);
  for (int g = 0; g < 16; g++) {
    const unsigned three = kt_load_u16(block + 48 + 2 * (g / 4)) >> (3 * (g % 4)) & 7;
    scale[g] = d * (float)(2 * three + 1) * 0.125f;
  }
  for (int i = 0; i < 32; i++) {
    const int high = block[32 + i / 2] >> (4 * (i % 2));
    const int8_t *entry = kt_codebook_iq1 + 8 * (block[i] | (high & 7) << 8);
    kt_iq_shifted(entry, high & 8, q + 8 * i);
  }
}

#endif
