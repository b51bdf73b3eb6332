/* What a variant provides. The drivers (linear.c, experts.c) know nothing else about it. */
#ifndef KT_KERNELS_H
#define KT_KERNELS_H

#include <stdint.h>

#include "core/layout.h"

/* Lay out one row of activations: `cols` values of `dtype` (enum kt_cpu_dtype) at x become
 * ceil(cols / KT_STEP) blocks at out, out + stride, ... */
typedef void kt_x_fn(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride);

/* The same, with what rounding left over laid out as a second row, `second` bytes after the first: the
 * two together hold 16 bits of each value. */
typedef void kt_x_split_fn(int dtype, const void *x, int64_t cols, uint8_t *out, int64_t stride,
                           int64_t second);

/* Unpack one step of 16 rows. `block` is the first byte of that step in row 0, rows are `row_bytes`
 * apart, `values` (a multiple of 32, or of 8 for plain types) says how much of the step there is. */
typedef void kt_panel_fn(const uint8_t *block, int64_t row_bytes, int values, struct kt_panel *out);

/* c[t][r] += sum over the step of x[t] * panel row r, for `panels` adjacent panels and `tokens` adjacent
 * blocks. Rows of c are KT_STRIP_ROWS floats. */
typedef void kt_dot_fn(const struct kt_panel *panel, int panels, const void *x, int tokens, int values,
                       float *c);

/* Fill a panel's high, low and step from the rest of it. */
typedef void kt_planes_fn(struct kt_panel *panel);

/* Memory that will be read next. */
struct kt_ahead {
  const uint8_t *first;
  int64_t bytes;
};

/* c[t][r] = sum over `values` of K of token t times row r, for 16 rows that start at `first` and up to
 * gemv_tokens tokens. Block s of the tokens, adjacent, is at x + s * x_stride; rows of c are KT_STRIP_ROWS
 * floats. `ahead` is prefetched along the way. */
typedef void kt_gemv_fn(const uint8_t *first, int64_t row_bytes, int64_t values, const uint8_t *x,
                        int64_t x_stride, int tokens, float *c, struct kt_ahead ahead);

/* h[i] = act(gate[i]) * up[i]. */
typedef void kt_glu_fn(int act, float alpha, float limit, const float *gate, const float *up, float *h,
                       int count);

/* y[i] += a * x[i]. */
typedef void kt_axpy_fn(float a, const float *x, float *y, int count);

/* Read memory as fast as it goes; the sum of its 64-bit words, but for a rest below 256 bytes. */
typedef int64_t kt_read_fn(const uint8_t *memory, int64_t bytes);

/* Multiply bytes `rounds` times as fast as it goes, with `peak_operations` operations each time. */
typedef int64_t kt_peak_fn(int64_t rounds);

/* Round float32 to `dtype`. */
typedef void kt_store_fn(int dtype, const float *x, void *y, int count);

/* Widen `count` values of `dtype` to float32. */
typedef void kt_load_fn(int dtype, const void *x, float *y, int count);

/* scores[g * stride] = inner product of query g and the row; queries are `dim` apart. */
typedef void kt_scores_fn(const float *queries, int64_t heads, const float *row, int dim, float *scores,
                          int64_t stride);

/* out[g * out_stride + i] += weights[g * stride] * row[i]. */
typedef void kt_blend_fn(const float *weights, int64_t stride, int64_t heads, const float *row, int dim,
                         float *out, int64_t out_stride);

/* y = x / sqrt(mean(x^2) + eps) * (offset + weight); y may be x. */
typedef void kt_norm_fn(const float *x, const float *weight, float offset, float eps, float *y, int count);

/* values[i] = e^(values[i] - *most), where *most is the largest of them; their sum. */
typedef float kt_exponents_fn(float *values, int count, float *most);

struct kt_kernels {
  kt_x_fn *x[KT_X_KINDS];
  kt_x_split_fn *x_split[KT_X_KINDS]; /* null for those that round nothing */
  kt_panel_fn *panel[KT_TYPE_SLOTS];
  kt_dot_fn *dot[KT_FAMILY_COUNT];
  kt_planes_fn *planes[KT_FAMILY_COUNT]; /* where not null, calls of planes_tokens or more use dot_planes */
  kt_dot_fn *dot_planes;
  int planes_tokens;
  kt_gemv_fn *const *gemv; /* [KT_TYPE_SLOTS]; null entries and a null table: use panels */
  int gemv_tokens;
  kt_glu_fn *glu;
  kt_axpy_fn *axpy;
  kt_store_fn *store;
  kt_load_fn *load;
  kt_norm_fn *norm;
  kt_exponents_fn *exponents;
  kt_scores_fn *scores;
  kt_blend_fn *blend;
  kt_read_fn *read;
  kt_peak_fn *peak; /* may be null */
  int peak_operations;
  int dot_tokens; /* tokens that a dot kernel handles well at a time; more are cut into such parts */
  void (*begin)(void); /* called on a thread before and after it runs dot kernels; may be null */
  void (*end)(void);
};

/* Null where this build does not hold the variant. */
extern const struct kt_kernels *const kt_kernels_c;
extern const struct kt_kernels *const kt_kernels_avx2;
extern const struct kt_kernels *const kt_kernels_avx512;
extern const struct kt_kernels *const kt_kernels_avx512_bf16;
extern const struct kt_kernels *const kt_kernels_amx;

/* Their gemv tables, compiled apart. */
extern kt_gemv_fn *const kt_gemv_avx2[KT_TYPE_SLOTS];
extern kt_gemv_fn *const kt_gemv_avx512[KT_TYPE_SLOTS];

/* The variant in use. */
const struct kt_kernels *kt_kernels_current(void);
/* The best one up to it that multiplies weights as they are: AMX rounds them to 15 bits (dot-amx.h). */
const struct kt_kernels *kt_kernels_exact(void);

static inline void kt_begin(const struct kt_kernels *kernels) {
  if (kernels->begin != 0) kernels->begin();
}

static inline void kt_end(const struct kt_kernels *kernels) {
  if (kernels->end != 0) kernels->end();
}

#endif
