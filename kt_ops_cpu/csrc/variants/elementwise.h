/* Gated activations, accumulation and rounding to the output type, in plain C for the vectoriser. */
#ifndef KT_ELEMENTWISE_H
#define KT_ELEMENTWISE_H

#include "core/half.h"
#include "kt_ops_cpu.h"

/* a * b + c, rounded once where the variant can. */
#if defined(__FMA__)
#define KT_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define KT_FMA(a, b, c) ((a) * (b) + (c))
#endif

/* e^x within 2 units in the last place for x in [-87, 88], clamped outside; a NaN stays a NaN.
 * 2^n * p(r), r = x - n ln 2 in [-0.35, 0.35]; p is the Taylor series to r^7, below 2^-26 off there. */
static inline float kt_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = KT_FMA(x, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float r = KT_FMA(n, -1.42860677e-6f, KT_FMA(n, -0.693145752f, x)); /* ln 2 in two parts */
  float p = 1.0f / 5040.0f;
  p = KT_FMA(p, r, 1.0f / 720.0f);
  p = KT_FMA(p, r, 1.0f / 120.0f);
  p = KT_FMA(p, r, 1.0f / 24.0f);
  p = KT_FMA(p, r, 1.0f / 6.0f);
  p = KT_FMA(p, r, 0.5f);
  p = KT_FMA(p, r, 1.0f);
  p = KT_FMA(p, r, 1.0f);
  const uint32_t power = (kt_float_bits(shifted) + 127u) << 23;
  return p * kt_bits_float(power);
}

static inline float kt_sigmoid_times(float x, float z) { return x / (1.0f + kt_exp(-z)); }

/* erfc(z) for z >= 0, relative error 1.2e-7 everywhere (Numerical Recipes' Chebyshev fit). */
static inline float kt_erfc(float z) {
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = KT_FMA(p, t, -0.82215223f);
  p = KT_FMA(p, t, 1.48851587f);
  p = KT_FMA(p, t, -1.13520398f);
  p = KT_FMA(p, t, 0.27886807f);
  p = KT_FMA(p, t, -0.18628806f);
  p = KT_FMA(p, t, 0.09678418f);
  p = KT_FMA(p, t, 0.37409196f);
  p = KT_FMA(p, t, 1.00002368f);
  p = KT_FMA(p, t, -1.26551223f);
  return t * kt_exp(p - z * z);
}

static inline float kt_gelu(float x) {
  const float tail = 0.5f * kt_erfc((x < 0.0f ? -x : x) * 0.707106781f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

static void kt_glu(int act, float alpha, float limit, const float *restrict gate,
                   const float *restrict up, float *restrict h, int count) {
  switch (act) {
    case KT_CPU_ACT_GELU:
      for (int i = 0; i < count; i++) h[i] = kt_gelu(gate[i]) * up[i];
      break;
    case KT_CPU_ACT_GELU_TANH:
      for (int i = 0; i < count; i++) {
        const float x = gate[i];
        h[i] = kt_sigmoid_times(x, 1.59576912f * (x + 0.044715f * x * x * x)) * up[i];
      }
      break;
    case KT_CPU_ACT_SWIGLU_OAI:
      for (int i = 0; i < count; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        float u = up[i] > limit ? limit : up[i];
        u = u < -limit ? -limit : u;
        h[i] = kt_sigmoid_times(g, alpha * g) * (u + 1.0f);
      }
      break;
    case KT_CPU_ACT_RELU:
      for (int i = 0; i < count; i++) h[i] = (gate[i] < 0.0f ? 0.0f : gate[i]) * up[i];
      break;
    default:
      for (int i = 0; i < count; i++) h[i] = kt_sigmoid_times(gate[i], gate[i]) * up[i];
  }
}

static void kt_axpy(float a, const float *restrict x, float *restrict y, int count) {
  for (int i = 0; i < count; i++) y[i] = KT_FMA(a, x[i], y[i]);
}

static void kt_store(int dtype, const float *restrict x, void *restrict y, int count) {
  if (dtype == KT_CPU_FLOAT32) {
    memcpy(y, x, (size_t)count * sizeof(float));
  } else if (dtype == KT_CPU_BFLOAT16) {
    uint16_t *out = y;
    for (int i = 0; i < count; i++) out[i] = kt_float_bf16(x[i]);
  } else {
    uint16_t *out = y;
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
    for (; i < count; i++) out[i] = kt_float_half(x[i]);
  }
}

#endif
