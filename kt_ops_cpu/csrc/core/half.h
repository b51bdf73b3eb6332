/* float16 and bfloat16 to and from float32. */
#ifndef KT_HALF_H
#define KT_HALF_H

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

static inline float kt_bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t kt_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline uint16_t kt_load_u16(const void *p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

static inline uint32_t kt_load_u32(const void *p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

static inline float kt_bf16_float(uint16_t h) { return kt_bits_float((uint32_t)h << 16); }

/* Round to nearest even; a NaN stays a NaN. */
static inline uint16_t kt_float_bf16(float value) {
  uint32_t bits = kt_float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(__F16C__)

static inline float kt_half_float(uint16_t h) { return _cvtsh_ss(h); }
static inline uint16_t kt_float_half(float value) { return _cvtss_sh(value, 0); }

#else

static inline float kt_half_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return kt_bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  /* 2^112 moves the exponent bias from 15 to 127, subnormals included. */
  const float value = kt_bits_float(magnitude << 13) * 0x1p112f;
  return kt_bits_float(sign | kt_float_bits(value));
}

static inline uint16_t kt_float_half(float value) {
  const uint32_t bits = kt_float_bits(value);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds past 65504 */
  if (magnitude < 0x38800000u) {
    /* Subnormal: adding 0.5 leaves the wanted bits, rounded to even, at the bottom. */
    const uint32_t sum = kt_float_bits(kt_bits_float(magnitude) + 0.5f);
    return (uint16_t)(sign | (sum - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

#endif

#endif
