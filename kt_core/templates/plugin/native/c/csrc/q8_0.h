/* The stored type Q8_0: 34 bytes hold 32 values, q[i] * d. */
#ifndef Q8_0_H
#define Q8_0_H

#include <stdint.h>
#include <string.h>

enum { Q8_0_VALUES = 32, Q8_0_BYTES = 34 };

static inline int64_t q8_0_row_bytes(int64_t values) { return values / Q8_0_VALUES * Q8_0_BYTES; }

/* IEEE half precision to single, subnormal numbers and infinities included. */
static inline float half_to_float(uint16_t half)
{
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f;
  const uint32_t fraction = half & 0x3ff;
  uint32_t bits;
  float value;
  if (exponent == 0) {
    value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
  }
  bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The product of one stored row and n floats. */
static inline float q8_0_dot(const uint8_t *row, const float *x, int64_t n)
{
  float sum = 0;
  for (int64_t i = 0; i < n; i += Q8_0_VALUES, row += Q8_0_BYTES) {
    const int8_t *q = (const int8_t *)(row + 2);
    uint16_t scale;
    float block = 0;
    memcpy(&scale, row, sizeof scale); /* blocks are not aligned */
    for (int j = 0; j < Q8_0_VALUES; j++)
      block += (float)q[j] * x[i + j];
    sum += half_to_float(scale) * block;
  }
  return sum;
}

#endif
