/* Everything that touches activations outside BLIS. Written once against sixteen-float vectors and
 * compiled per instruction set: KT_VARIANT names the table, KT_VARIANT_AVX512 chooses the vectors. */
#include <math.h>

#include "isa.h"

#ifdef KT_VARIANT_AVX512
#include "vec_avx512.h"
#define VARIANT_NAME "avx512"
#else
#include "vec_portable.h"
#define VARIANT_NAME "portable"
#endif

#define INLINE static inline __attribute__((always_inline))

/* Below this a group is taken for zero: 127 / max would not be finite for much smaller values, and
 * nothing a model computes is that small on purpose. */
static const float TINY = 1e-35f;

static float float_from_bits(uint32_t bits) {
  union {
    uint32_t u;
    float f;
  } pun = {bits};
  return pun.f;
}

INLINE int quantize_group(const void *x, int32_t dtype, int64_t from, int64_t to, int64_t end,
                          int8_t *q, float *scale) {
  vmagnitude largest = vmagnitude_zero();
  for (int64_t i = from; i < to; i += 16)
    largest = vmagnitude_of(largest, vf_load_as(x, dtype, i, to - i));
  const uint32_t bits = vmagnitude_reduce(largest);
  const int not_finite = bits >= 0x7f800000u;
  const float max = float_from_bits(bits);
  const int zero = not_finite || max < TINY;
  *scale = not_finite ? NAN : zero ? 0.0f : max / 127.0f;
  const vf inverse = vf_set(zero ? 0.0f : 127.0f / max);
  int64_t i = from;
  if (!not_finite)
    for (; i < to; i += 16) vf_store_int8(vf_mul(vf_load_as(x, dtype, i, to - i), inverse), q + i);
  for (; i < end; i++) q[i] = 0;
  return not_finite;
}

INLINE int quantize_typed(const void *x, int32_t dtype, int64_t k, int64_t padded, int64_t group,
                          int8_t *q, float *scales) {
  int not_finite = 0;
  for (int64_t from = 0, g = 0; from < padded; from += group, g++) {
    const int64_t end = kt_min(from + group, padded);
    not_finite |= quantize_group(x, dtype, kt_min(from, k), kt_min(end, k), end, q, &scales[g]);
  }
  return not_finite;
}

static int quantize_row(const void *x, int32_t dtype, int64_t k, int64_t padded, int64_t group,
                        int8_t *q, float *scales) {
  switch (dtype) {
    case KT_F32: return quantize_typed(x, KT_F32, k, padded, group, q, scales);
    case KT_F16: return quantize_typed(x, KT_F16, k, padded, group, q, scales);
    default: return quantize_typed(x, KT_BF16, k, padded, group, q, scales);
  }
}

static void scale_tile(const int32_t *c, int64_t ldc, int64_t rows, int64_t width,
                       const float *row_scales, int64_t row_stride, const float *column_scales,
                       int accumulate, float *out, int64_t ldo) {
  for (int64_t r = 0; r < rows; r++) {
    const vf row_scale = vf_set(row_scales[r * row_stride]);
    for (int64_t i = 0; i < width; i += 16) {
      const vf scale = vf_mul(row_scale, vf_load(column_scales + i));
      const vf x = vf_load_int(c + r * ldc + i);
      const vf sum = accumulate ? vf_fma(x, scale, vf_load(out + r * ldo + i)) : vf_mul(x, scale);
      vf_store(out + r * ldo + i, sum);
    }
  }
}

/* One vector of a tile as float: already there, or int32 with its two scales. */
INLINE vf tile_value(const void *c, int grouped, int64_t index, vf row_scale,
                     const float *column_scales, int64_t column) {
  if (grouped) return vf_load((const float *)c + index);
  const vf scale = vf_mul(row_scale, vf_load(column_scales + column));
  return vf_mul(vf_load_int((const int32_t *)c + index), scale);
}

INLINE vf sigmoid(vf x) {
  const vf e = vf_exp(vf_mul(x, vf_set(-1.0f)));
  return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), e));
}

/* erf by Abramowitz and Stegun 7.1.26, |error| < 1.5e-7, so that exp is the only primitive. */
INLINE vf gelu_erf(vf x) {
  const vf z = vf_mul(x, vf_set(0.70710678f));
  const vf a = vf_max(z, vf_mul(z, vf_set(-1.0f))); /* |z| */
  const vf t = vf_div(vf_set(1.0f), vf_fma(a, vf_set(0.3275911f), vf_set(1.0f)));
  vf p = vf_set(1.061405429f);
  p = vf_fma(p, t, vf_set(-1.453152027f));
  p = vf_fma(p, t, vf_set(1.421413741f));
  p = vf_fma(p, t, vf_set(-0.284496736f));
  p = vf_fma(p, t, vf_set(0.254829592f));
  const vf tail = vf_mul(vf_mul(p, t), vf_exp(vf_mul(vf_mul(a, a), vf_set(-1.0f))));
  /* gelu = x/2 + |x|/2 * erf|z|, which needs no sign of erf */
  const vf erf_a = vf_fma(tail, vf_set(-1.0f), vf_set(1.0f));
  const vf abs_x = vf_mul(a, vf_set(1.41421356f));
  return vf_mul(vf_set(0.5f), vf_fma(abs_x, erf_a, x));
}

INLINE vf activate(vf gate, vf up, int32_t kind, vf alpha, vf limit, vf low) {
  if (kind == KT_SILU) return vf_mul(vf_mul(gate, sigmoid(gate)), up);
  if (kind == KT_RELU) return vf_mul(vf_max(vf_set(0.0f), gate), up);
  if (kind == KT_GELU) return vf_mul(gelu_erf(gate), up);
  if (kind == KT_GELU_TANH) { /* (1 + tanh z) / 2 = sigmoid(2 z) */
    const vf cube = vf_mul(vf_mul(gate, gate), gate);
    const vf z = vf_fma(cube, vf_set(0.0713548162f), vf_mul(gate, vf_set(1.59576912f)));
    return vf_mul(vf_mul(gate, sigmoid(z)), up);
  }
  gate = vf_min(limit, gate);
  up = vf_max(low, vf_min(limit, up));
  return vf_mul(vf_mul(gate, sigmoid(vf_mul(alpha, gate))), vf_add(up, vf_set(1.0f)));
}

INLINE void activate_typed(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t half,
                           const float *row_scales, const float *column_scales,
                           const float *gate_bias, const float *up_bias, int32_t kind,
                           const kt_activation *act, float *h, int64_t ldh) {
  const vf alpha = vf_set(act->alpha), limit = vf_set(act->limit), low = vf_set(-act->limit);
  for (int64_t r = 0; r < rows; r++) {
    const vf row_scale = vf_set(grouped ? 1.0f : row_scales[r]);
    for (int64_t i = 0; i < half; i += 16) {
      vf gate = tile_value(c, grouped, r * ldc + i, row_scale, column_scales, i);
      vf up = tile_value(c, grouped, r * ldc + half + i, row_scale, column_scales, half + i);
      if (gate_bias) gate = vf_add(gate, vf_load(gate_bias + i));
      if (up_bias) up = vf_add(up, vf_load(up_bias + i));
      vf_store(h + r * ldh + i, activate(gate, up, kind, alpha, limit, low));
    }
  }
}

static void activate_tile(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t half,
                          const float *row_scales, const float *column_scales,
                          const float *gate_bias, const float *up_bias, const kt_activation *act,
                          float *h, int64_t ldh) {
#define AS(kind, is_grouped)                                                                    \
  activate_typed(c, is_grouped, ldc, rows, half, row_scales, column_scales, gate_bias, up_bias, \
                 kind, act, h, ldh)
  switch (act->kind * 2 + (grouped != 0)) {
    case KT_SILU * 2: AS(KT_SILU, 0); break;
    case KT_SILU * 2 + 1: AS(KT_SILU, 1); break;
    case KT_GELU * 2: AS(KT_GELU, 0); break;
    case KT_GELU * 2 + 1: AS(KT_GELU, 1); break;
    case KT_GELU_TANH * 2: AS(KT_GELU_TANH, 0); break;
    case KT_GELU_TANH * 2 + 1: AS(KT_GELU_TANH, 1); break;
    case KT_RELU * 2: AS(KT_RELU, 0); break;
    case KT_RELU * 2 + 1: AS(KT_RELU, 1); break;
    case KT_SWIGLU_OAI * 2: AS(KT_SWIGLU_OAI, 0); break;
    default: AS(KT_SWIGLU_OAI, 1); break;
  }
#undef AS
}

INLINE void combine_typed(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t width,
                          const float *row_scales, const float *column_scales, const float *bias,
                          const float *weights, const int32_t *targets, float *acc,
                          int64_t ldacc) {
  for (int64_t r = 0; r < rows; r++) {
    /* the routing weight goes into the row's scale: one multiplication a vector less */
    const vf weight = vf_set(weights[r]);
    const vf row_scale = vf_set(grouped ? 1.0f : row_scales[r] * weights[r]);
    float *row = acc + (int64_t)targets[r] * ldacc;
    for (int64_t i = 0; i < width; i += 16) {
      vf x = tile_value(c, grouped, r * ldc + i, row_scale, column_scales, i);
      if (grouped) x = vf_mul(x, weight);
      if (bias) x = vf_fma(vf_load(bias + i), weight, x);
      vf_store(row + i, vf_add(vf_load(row + i), x));
    }
  }
}

static void combine_tile(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t width,
                         const float *row_scales, const float *column_scales, const float *bias,
                         const float *weights, const int32_t *targets, float *acc, int64_t ldacc) {
  if (grouped)
    combine_typed(c, 1, ldc, rows, width, row_scales, column_scales, bias, weights, targets, acc,
                  ldacc);
  else
    combine_typed(c, 0, ldc, rows, width, row_scales, column_scales, bias, weights, targets, acc,
                  ldacc);
}

static void store_row(const float *row, int64_t width, int32_t dtype, void *out) {
  for (int64_t i = 0; i < width; i += 16)
    vf_store_as(vf_load_as(row, KT_F32, i, width - i), dtype, out, i, width - i);
}

const kt_rows KT_VARIANT = {
    .name = VARIANT_NAME,
    .quantize_row = quantize_row,
    .scale_tile = scale_tile,
    .activate_tile = activate_tile,
    .combine_tile = combine_tile,
    .store_row = store_row,
};
