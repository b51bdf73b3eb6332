/* A strip: up to KT_STRIP_ROWS weight rows times some tokens, over the whole of K. Everything that the
 * kernels compute is made of strips. */
#ifndef KT_STRIP_H
#define KT_STRIP_H

#include "core/kernels.h"

/* A matrix whose arguments have been checked. */
struct kt_weight {
  const struct kt_type *type;
  int number; /* GGML's, an index into the kernel tables */
  int64_t rows, cols, row_bytes;
};

/* Activations of consecutive tokens: step s of term i of token t is block (s * tokens + t) * terms + i. */
struct kt_x {
  const uint8_t *blocks;
  int64_t tokens;      /* of the whole matrix */
  int terms;           /* 2 where activations are split (kt_x_split_fn), else 1 */
  int64_t block_bytes; /* kt_x_block_bytes of its kind */
};

/* Memory of one thread for its strips. */
struct kt_strip_space {
  struct kt_panel panels[KT_STRIP_PANELS];
  uint8_t padded[KT_PANEL_ROWS * KT_STEP * 4]; /* rows or values short of a full panel */
};

/* Steps in a row of `cols` values. */
static inline int64_t kt_steps(int64_t cols) { return (cols + KT_STEP - 1) / KT_STEP; }

/* c[t][r] (rows of KT_STRIP_ROWS floats) = sum over steps [step, step_end) of token first_token + t times
 * weight row `row` + r. c holds tokens * terms rows, of which those beyond `tokens` are arbitrary in the end. `rows` is at most KT_STRIP_ROWS; columns of c beyond it hold copies or zero.
 * `ahead` is prefetched along the way. */
void kt_strip(const struct kt_kernels *kernels, const struct kt_weight *weight, const uint8_t *data,
              int64_t row, int rows, int64_t step, int64_t step_end, const struct kt_x *x,
              int64_t first_token, int tokens, float *c, struct kt_strip_space *space,
              struct kt_ahead ahead);

#endif
