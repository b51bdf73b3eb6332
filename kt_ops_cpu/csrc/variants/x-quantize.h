/* Activations to blocks. Plain C that the compiler vectorises for the variant at hand: there is no
 * fused multiply-add in it, so every variant makes exactly the same blocks. */
#ifndef KT_X_QUANTIZE_H
#define KT_X_QUANTIZE_H

#include "core/half.h"
#include "core/layout.h"
#include "kt_ops_cpu.h"

/* Values [first, first + KT_STEP) of a row as float32, zero beyond its end. */
static inline void kt_x_load(int dtype, const void *x, int64_t cols, int64_t first, float *out) {
  const int64_t left = cols - first;
  const int count = left < KT_STEP ? (int)left : KT_STEP;
  int i = 0;
  if (dtype == KT_CPU_FLOAT32) {
    memcpy(out, (const float *)x + first, (size_t)count * sizeof(float));
    i = count;
  } else if (dtype == KT_CPU_BFLOAT16) {
    const uint16_t *h = (const uint16_t *)x + first;
    for (; i < count; i++) out[i] = kt_bf16_float(h[i]);
  } else {
    const uint16_t *h = (const uint16_t *)x + first;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(h + i))));
#endif
    for (; i < count; i++) out[i] = kt_half_float(h[i]);
  }
  for (; i < KT_STEP; i++) out[i] = 0.0f;
}

/* The bits of the largest magnitude. As integers, infinity and NaN compare above every number. */
static inline uint32_t kt_x_amax(const float *x, int count) {
  int32_t lane[16] = {0};
  for (int i = 0; i < count; i += 16)
    for (int l = 0; l < 16; l++) {
      const int32_t bits = (int32_t)(kt_float_bits(x[i + l]) & 0x7fffffffu);
      lane[l] = bits > lane[l] ? bits : lane[l];
    }
  int32_t most = 0;
  for (int l = 0; l < 16; l++) most = lane[l] > most ? lane[l] : most;
  return (uint32_t)most;
}

/* Quantise `count` values, return their scale. */
static inline float kt_x_round(const float *x, int count, int8_t *q) {
  const uint32_t bits = kt_x_amax(x, count);
  const float amax = kt_bits_float(bits);
  const int finite = bits < 0x7f800000u;
  /* Below 2^-120 the reciprocal would overflow; such a block is zero for any purpose. */
  const float inverse = finite && amax >= 0x1p-120f ? 127.0f / amax : 0.0f;
  if (inverse == 0.0f) {
    memset(q, 0, (size_t)count);
    return finite ? 0.0f : kt_bits_float(0x7fc00000u);
  }
  for (int i = 0; i < count; i++) {
    /* Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low bits. */
    const float shifted = x[i] * inverse + 12582912.0f;
    q[i] = (int8_t)(kt_float_bits(shifted) & 255u);
  }
  return amax * (1.0f / 127.0f);
}

static inline void kt_x_sums(struct kt_xq8 *out) {
  for (int g = 0; g < KT_STEP / 16; g++) {
    int sum = 0;
    for (int i = 0; i < 16; i++) sum += out->q[16 * g + i];
    out->corr16[g] = -128 * sum;
  }
  for (int g = 0; g < KT_STEP / 32; g++) out->corr32[g] = out->corr16[2 * g] + out->corr16[2 * g + 1];
}

/* Quantise one step, one scale per `group` values. */
static inline void kt_x_block(const float *values, int group, struct kt_xq8 *block) {
  for (int first = 0; first < KT_STEP; first += group) {
    const float scale = kt_x_round(values + first, group, block->q + first);
    for (int g = first / 32; g < (first + group) / 32; g++) block->scale[g] = scale;
  }
  kt_x_sums(block);
}

static inline void kt_x_q8(int dtype, const void *x, int64_t cols, int group, uint8_t *out,
                           int64_t stride) {
  float values[KT_STEP] __attribute__((aligned(64)));
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    kt_x_load(dtype, x, cols, k, values);
    kt_x_block(values, group, (struct kt_xq8 *)out);
  }
}

static inline void kt_x_split(int dtype, const void *x, int64_t cols, int group, uint8_t *out,
                              int64_t stride, int64_t second) {
  float values[KT_STEP] __attribute__((aligned(64)));
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    struct kt_xq8 *block = (struct kt_xq8 *)out;
    kt_x_load(dtype, x, cols, k, values);
    kt_x_block(values, group, block);
    for (int i = 0; i < KT_STEP; i++) values[i] -= block->scale[i / 32] * (float)block->q[i];
    kt_x_block(values, group, (struct kt_xq8 *)(out + second));
  }
}

static void kt_x_q8_256(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride) {
  kt_x_q8(dtype, x, cols, KT_STEP, out, stride);
}

static void kt_x_q8_32(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride) {
  kt_x_q8(dtype, x, cols, 32, out, stride);
}

static void kt_x_split_256(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride,
                           int64_t second) {
  kt_x_split(dtype, x, cols, KT_STEP, out, stride, second);
}

static void kt_x_split_32(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride,
                          int64_t second) {
  kt_x_split(dtype, x, cols, 32, out, stride, second);
}

/* Rounded to bfloat16, kept as float32. */
static inline void kt_x_bf16(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride) {
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    float *block = ((struct kt_xf32 *)out)->x;
    kt_x_load(dtype, x, cols, k, block);
    for (int i = 0; i < KT_STEP; i++) block[i] = kt_bf16_float(kt_float_bf16(block[i]));
  }
}

/* The same in two terms, which together hold 16 bits. */
static inline void kt_x_split_bf16(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride,
                                   int64_t second) {
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride) {
    float *block = ((struct kt_xf32 *)out)->x, *rest = ((struct kt_xf32 *)(out + second))->x;
    kt_x_load(dtype, x, cols, k, rest);
    for (int i = 0; i < KT_STEP; i++) {
      block[i] = kt_bf16_float(kt_float_bf16(rest[i]));
      rest[i] = kt_bf16_float(kt_float_bf16(rest[i] - block[i]));
    }
  }
}

static void kt_x_f32(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride) {
  for (int64_t k = 0; k < cols; k += KT_STEP, out += stride)
    kt_x_load(dtype, x, cols, k, ((struct kt_xf32 *)out)->x);
}

#endif
