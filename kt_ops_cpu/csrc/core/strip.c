#include "core/strip.h"

#include <string.h>

#define CACHE_LINE 64
#define SOON_TOKENS 8

/* Touch one share of what comes next, so that the requests are spread over the strip. With few tokens it
 * comes soon: into the first-level cache. Otherwise the second level must do, or it would drive out the
 * activations; such requests may be dropped when many are on their way, which is then no loss. */
static void prefetch_share(struct kt_ahead ahead, int64_t part, int64_t parts, int soon) {
  const int64_t first = ahead.bytes * part / parts / CACHE_LINE;
  const int64_t last = ahead.bytes * (part + 1) / parts / CACHE_LINE;
  for (int64_t line = first; line < last; line++)
    if (soon)
      __builtin_prefetch(ahead.first + line * CACHE_LINE, 0, 3);
    else
      __builtin_prefetch(ahead.first + line * CACHE_LINE, 0, 2);
}

/* Bring the next step of `rows` rows into the first-level cache: the second-level cache has it already,
 * and 32 short runs of bytes are more than the hardware would foresee. */
static void prefetch_step(const uint8_t *block, int64_t row_bytes, int rows, int64_t bytes) {
  for (int r = 0; r < rows; r++, block += row_bytes) {
    const uint8_t *line = block - (uintptr_t)block % CACHE_LINE;
    for (; line < block + bytes; line += CACHE_LINE) __builtin_prefetch(line, 0, 3);
  }
}

/* Panels are unpacked 16 rows and whole vectors at a time. Where there is less, unpack from a copy that
 * is padded with zeros, so that nothing beyond the matrix is read. */
static void unpack_padded(kt_panel_fn *unpack, const uint8_t *block, int64_t row_bytes, int rows,
                          int padded_values, int64_t step_bytes, struct kt_strip_space *space,
                          struct kt_panel *panel) {
  const int64_t stride = KT_STEP * 4;
  for (int r = 0; r < KT_PANEL_ROWS; r++) {
    uint8_t *row = space->padded + r * stride;
    const int64_t bytes = r < rows ? step_bytes : 0;
    if (bytes > 0) memcpy(row, block + r * row_bytes, (size_t)bytes);
    memset(row + bytes, 0, (size_t)(stride - bytes));
  }
  unpack(space->padded, stride, padded_values, panel);
}

/* A few tokens and whole panels of a type that can be multiplied without being unpacked to memory. */
static void strip_gemv(const struct kt_kernels *kernels, const struct kt_weight *weight, const uint8_t *first,
                       int rows, int64_t values, const uint8_t *x, int64_t x_stride, int tokens, float *c,
                       struct kt_ahead ahead) {
  const int panels = rows / KT_PANEL_ROWS;
  for (int p = 0; p < panels; p++) {
    const int64_t from = ahead.bytes * p / panels, to = ahead.bytes * (p + 1) / panels;
    const struct kt_ahead share = {ahead.bytes > 0 ? ahead.first + from : NULL, to - from};
    kernels->gemv[weight->number](first + p * KT_PANEL_ROWS * weight->row_bytes, weight->row_bytes, values, x,
                                  x_stride, tokens, c + p * KT_PANEL_ROWS, share);
  }
}

/* kt_strip() for rows of x, whichever tokens they belong to. */
static void strip_rows(const struct kt_kernels *kernels, const struct kt_weight *weight, const uint8_t *data,
                       int64_t row, int rows, int64_t step, int64_t step_end, const struct kt_x *x,
                       int64_t first_token, int tokens, float *c, struct kt_strip_space *space,
                       struct kt_ahead ahead) {
  const int64_t all_tokens = x->tokens * x->terms;
  const struct kt_type *type = weight->type;
  kt_panel_fn *unpack = kernels->panel[weight->number];
  kt_planes_fn *planes = tokens >= kernels->planes_tokens ? kernels->planes[type->family] : NULL;
  kt_dot_fn *dot = planes != NULL ? kernels->dot_planes : kernels->dot[type->family];
  const int most = kernels->dot_tokens;
  const int panels = (rows + KT_PANEL_ROWS - 1) / KT_PANEL_ROWS;
  const int64_t step_size = (int64_t)KT_STEP / type->block_values * type->block_bytes;
  const uint8_t *first = data + row * weight->row_bytes;
  if (tokens <= kernels->gemv_tokens && rows % KT_PANEL_ROWS == 0 && kernels->gemv != NULL &&
      kernels->gemv[weight->number] != NULL) {
    const int64_t end = step_end * KT_STEP < weight->cols ? step_end * KT_STEP : weight->cols;
    strip_gemv(kernels, weight, first + step * step_size, rows, end - step * KT_STEP,
               x->blocks + (step * all_tokens + first_token) * x->block_bytes, all_tokens * x->block_bytes,
               tokens, c, ahead);
    return;
  }
  memset(c, 0, (size_t)tokens * KT_STRIP_ROWS * sizeof(float));
  for (int64_t s = step; s < step_end; s++) {
    const int64_t left = weight->cols - s * KT_STEP;
    const int values = left < KT_STEP ? (int)left : KT_STEP;
    const int padded_values = (values + 7) / 8 * 8;
    const uint8_t *block = first + s * step_size;
    for (int p = 0; p < panels; p++, block += KT_PANEL_ROWS * weight->row_bytes) {
      const int have = rows - p * KT_PANEL_ROWS;
      if (have >= KT_PANEL_ROWS && values == padded_values)
        unpack(block, weight->row_bytes, values, &space->panels[p]);
      else
        unpack_padded(unpack, block, weight->row_bytes, have, padded_values,
                      (int64_t)values / type->block_values * type->block_bytes, space, &space->panels[p]);
      if (planes != NULL) planes(&space->panels[p]);
    }
    if (s + 1 < step_end) prefetch_step(first + (s + 1) * step_size, weight->row_bytes, rows, step_size);
    const uint8_t *blocks = x->blocks + (s * all_tokens + first_token) * x->block_bytes;
    const int parts = (tokens + most - 1) / most;
    for (int part = 0; part < parts; part++) {
      const int from = part * most, left_tokens = tokens - from;
      prefetch_share(ahead, (s - step) * parts + part, (step_end - step) * parts, tokens <= SOON_TOKENS);
      dot(space->panels, panels, blocks + from * x->block_bytes,
          left_tokens < most ? left_tokens : most, values, c + from * KT_STRIP_ROWS);
    }
  }
}

void kt_strip(const struct kt_kernels *kernels, const struct kt_weight *weight, const uint8_t *data,
              int64_t row, int rows, int64_t step, int64_t step_end, const struct kt_x *x,
              int64_t first_token, int tokens, float *c, struct kt_strip_space *space,
              struct kt_ahead ahead) {
  strip_rows(kernels, weight, data, row, rows, step, step_end, x, first_token * x->terms, tokens * x->terms, c,
             space, ahead);
  if (x->terms == 1) return;
  for (int t = 0; t < tokens; t++) {
    const float *both = c + 2 * t * KT_STRIP_ROWS;
    for (int r = 0; r < KT_STRIP_ROWS; r++) c[t * KT_STRIP_ROWS + r] = both[r] + both[KT_STRIP_ROWS + r];
  }
}
