/* What surrounds the matrix products of a decode step. Vectors of 16 are the compiler's own: it cuts them to
 * what a variant has. */
#ifndef KT_STEP_H
#define KT_STEP_H

#include "variants/elementwise.h"

#define KT_LANES 16
typedef float kt_lanes __attribute__((vector_size(4 * KT_LANES), aligned(4), may_alias));

static void kt_load(int dtype, const void *restrict x, float *restrict y, int count) {
  const uint16_t *in = x;
  if (dtype == KT_CPU_FLOAT32) {
    memcpy(y, x, (size_t)count * sizeof(float));
  } else if (dtype == KT_CPU_BFLOAT16) {
    for (int i = 0; i < count; i++) y[i] = kt_bf16_float(in[i]);
  } else {
    int i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
#endif
    for (; i < count; i++) y[i] = kt_half_float(in[i]);
  }
}

static inline kt_lanes kt_lanes_at(const float *p) { return *(const kt_lanes *)p; }

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define KT_SHUFFLE
#endif
#endif

static inline float kt_lanes_sum(kt_lanes v) {
#if defined(KT_SHUFFLE)
  typedef float eight __attribute__((vector_size(32)));
  typedef float four __attribute__((vector_size(16)));
  const eight e = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const four f = __builtin_shufflevector(e, e, 0, 1, 2, 3) + __builtin_shufflevector(e, e, 4, 5, 6, 7);
  return (f[0] + f[2]) + (f[1] + f[3]);
#else
  float sums[KT_LANES];
  *(kt_lanes *)sums = v;
  for (int width = KT_LANES / 2; width > 0; width /= 2)
    for (int j = 0; j < width; j++) sums[j] += sums[j + width];
  return sums[0];
#endif
}

static inline float kt_inner(const float *restrict a, const float *restrict b, int count) {
  kt_lanes sum = {0};
  int i = 0;
  for (; i + KT_LANES <= count; i += KT_LANES) sum += kt_lanes_at(a + i) * kt_lanes_at(b + i);
  float total = kt_lanes_sum(sum);
  for (; i < count; i++) total += a[i] * b[i];
  return total;
}

static void kt_norm(const float *x, const float *weight, float offset, float eps, float *y, int count) {
  const float scale = 1.0f / __builtin_sqrtf(kt_inner(x, x, count) / (float)count + eps);
  for (int i = 0; i < count; i++) y[i] = x[i] * scale * (offset + weight[i]);
}

static float kt_exponents(float *restrict values, int count, float *restrict most) {
  float largest = -__builtin_inff();
  for (int i = 0; i < count; i++) largest = values[i] > largest ? values[i] : largest;
  for (int i = 0; i < count; i++) values[i] = kt_exp(values[i] - largest);
  kt_lanes sum = {0};
  int i = 0;
  for (; i + KT_LANES <= count; i += KT_LANES) sum += kt_lanes_at(values + i);
  float total = kt_lanes_sum(sum);
  for (; i < count; i++) total += values[i];
  *most = largest;
  return total;
}

static void kt_scores(const float *restrict queries, int64_t heads, const float *restrict row, int dim,
                      float *restrict scores, int64_t stride) {
  int64_t g = 0;
  if (dim % KT_LANES == 0) {
    for (; g + 4 <= heads; g += 4, queries += 4 * dim) {
      kt_lanes a = {0}, b = {0}, c = {0}, d = {0};
      for (int i = 0; i < dim; i += KT_LANES) {
        const kt_lanes values = kt_lanes_at(row + i);
        a += kt_lanes_at(queries + i) * values;
        b += kt_lanes_at(queries + dim + i) * values;
        c += kt_lanes_at(queries + 2 * dim + i) * values;
        d += kt_lanes_at(queries + 3 * dim + i) * values;
      }
      scores[g * stride] = kt_lanes_sum(a);
      scores[(g + 1) * stride] = kt_lanes_sum(b);
      scores[(g + 2) * stride] = kt_lanes_sum(c);
      scores[(g + 3) * stride] = kt_lanes_sum(d);
    }
  }
  for (; g < heads; g++, queries += dim) scores[g * stride] = kt_inner(queries, row, dim);
}

static void kt_blend(const float *restrict weights, int64_t stride, int64_t heads, const float *restrict row,
                     int dim, float *restrict out, int64_t out_stride) {
  for (int64_t g = 0; g < heads; g++, out += out_stride) {
    const float weight = weights[g * stride];
    int i = 0;
    for (; i + KT_LANES <= dim; i += KT_LANES)
      *(kt_lanes *)(out + i) += weight * kt_lanes_at(row + i);
    for (; i < dim; i++) out[i] += weight * row[i];
  }
}

#define KT_TABLE_STEP                                                                          \
  .load = kt_load, .norm = kt_norm, .exponents = kt_exponents, .scores = kt_scores, .blend = kt_blend

#endif
