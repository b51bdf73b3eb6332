/* The row kernels, once per instruction set, behind one table. */
#ifndef KT_ISA_H
#define KT_ISA_H

#include "kt_blis.h"

typedef struct {
  int32_t kind; /* kt_activation_kind */
  float alpha, limit;
} kt_activation;

/* Conventions: q rows are `padded` long and zero beyond k. A tile is (rows, width) of int32, ldc apart;
 * grouped tiles are float and already scaled. "row scales" belong to activations, "column scales" to
 * weights. */
typedef struct {
  const char *name;

  /* One row to int8 with one scale per `group` values, to nearest even, scale = max|x| / 127. A group
   * whose values are all below 1e-35 becomes zeros with scale 0. A group with NaN or infinity becomes
   * zeros with scale NaN, so whatever is computed from it is NaN. Returns 1 if there was such a group. */
  int (*quantize_row)(const void *x, int32_t dtype, int64_t k, int64_t padded, int64_t group,
                      int8_t *q, float *scales);

  /* out (float tile) = or += c * row_scale * column_scale; row scales are row_stride apart. */
  void (*scale_tile)(const int32_t *c, int64_t ldc, int64_t rows, int64_t width,
                     const float *row_scales, int64_t row_stride, const float *column_scales,
                     int accumulate, float *out, int64_t ldo);

  /* h (rows, half) = act(gate) * up, gate and up being the halves of a tile of width 2 * half. Biases
   * have `half` values or are NULL. */
  void (*activate_tile)(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t half,
                        const float *row_scales, const float *column_scales, const float *gate_bias,
                        const float *up_bias, const kt_activation *act,
                        float *h, int64_t ldh);

  /* acc[target[r]] += (tile[r] + bias) * weight[r], target rows ldacc apart. */
  void (*combine_tile)(const void *c, int grouped, int64_t ldc, int64_t rows, int64_t width,
                       const float *row_scales, const float *column_scales, const float *bias,
                       const float *weights, const int32_t *targets, float *acc, int64_t ldacc);

  /* out row (dtype) = row of floats, `width` of them. */
  void (*store_row)(const float *row, int64_t width, int32_t dtype, void *out);
} kt_rows;

const kt_rows *kt_rows_current(void);

#endif
