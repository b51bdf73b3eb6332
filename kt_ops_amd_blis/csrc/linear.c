/* One linear layer in int8: quantise the rows, then every (block of rows, chunk of columns) is a task. */
#include <string.h>

#include "isa.h"
#include "pool.h"
#include "product.h"

enum { BLOCK_ROWS = 128, PASS_ROWS = 8192, ROWS_PER_TASK = 16 };

typedef struct {
  const kt_blis *blis;
  const kt_rows *variant;
  const kt_linear *layer;
  const char *x;
  char *out;
  int64_t rows, x_stride, out_stride, blocks;
  int32_t dtype;
  int8_t *xq;
  float *xs;
  char *workers;
  int64_t worker_bytes;
} linear_pass;

static void quantize_x(void *argument, int64_t task, int32_t worker) {
  (void)worker;
  linear_pass *p = argument;
  const kt_layout *l = &p->layer->layout;
  const int64_t size = p->dtype == KT_F32 ? 4 : 2;
  const int64_t end = kt_min((task + 1) * ROWS_PER_TASK, p->rows);
  for (int64_t r = task * ROWS_PER_TASK; r < end; r++)
    p->variant->quantize_row(p->x + r * p->x_stride * size, p->dtype, p->layer->in_features, l->k,
                             l->group, p->xq + r * l->k, p->xs + r * l->groups);
}

static void multiply(void *argument, int64_t task, int32_t worker) {
  linear_pass *p = argument;
  const kt_layout *l = &p->layer->layout;
  const int64_t c = task / p->blocks, block = task % p->blocks;
  const int64_t from = block * p->rows / p->blocks, rows = (block + 1) * p->rows / p->blocks - from;
  const int64_t width = kt_chunk_width(l, c), column = c * l->width;
  const int64_t size = p->dtype == KT_F32 ? 4 : 2;
  char *mine = p->workers + worker * p->worker_bytes;
  int32_t *tile = (int32_t *)mine;
  float *sums = (float *)(mine + BLOCK_ROWS * l->width * 4);
  const float *row_scales = p->xs + from * l->groups;
  (void)kt_product(p->blis, p->variant, l, p->layer->panels, p->layer->scales, c, rows,
                   p->xq + from * l->k, row_scales, tile, sums);
  if (l->groups == 1)
    p->variant->scale_tile(tile, width, rows, width, row_scales, 1,
                           p->layer->scales + c * l->width, 0, sums, width);
  const int64_t valid = kt_min(width, p->layer->out_features - column);
  for (int64_t r = 0; r < rows; r++) {
    float *row = sums + r * width;
    if (p->layer->bias)
      for (int64_t i = 0; i < valid; i++) row[i] += p->layer->bias[column + i];
    p->variant->store_row(row, valid, p->dtype,
                          p->out + ((from + r) * p->out_stride + column) * size);
  }
}

static kt_status run_pass(kt_pool *pool, linear_pass *p) {
  const kt_layout *l = &p->layer->layout;
  p->blocks = kt_ceil_div(p->rows, BLOCK_ROWS);
  p->worker_bytes = BLOCK_ROWS * l->width * 8;
  const int64_t xq_bytes = kt_pad((p->rows + 1) * l->k, 64);
  const int64_t xs_bytes = kt_pad((p->rows + 1) * l->groups * 4, 64);
  char *scratch = kt_pool_scratch(
      pool, xq_bytes + xs_bytes + kt_pool_threads(pool) * p->worker_bytes);
  if (!scratch) return KT_NO_MEMORY;
  p->xq = (int8_t *)scratch;
  p->xs = (float *)(scratch + xq_bytes);
  p->workers = scratch + xq_bytes + xs_bytes;
  memset(p->xq + p->rows * l->k, 0, (size_t)l->k); /* the row beyond the last, see product.h */
  memset(p->xs + p->rows * l->groups, 0, (size_t)l->groups * 4);
  kt_pool_run(pool, quantize_x, p, kt_ceil_div(p->rows, ROWS_PER_TASK));
  kt_pool_run(pool, multiply, p, l->chunks * p->blocks);
  return KT_OK;
}

kt_status kt_linear_forward(const kt_blis *blis, kt_pool *pool, const kt_linear *layer, const void *x,
                            int64_t tokens, int64_t x_stride, int32_t x_dtype, void *out,
                            int64_t out_stride) {
  if (tokens < 0 || x_stride < layer->in_features || out_stride < layer->out_features ||
      x_dtype < KT_F32 || x_dtype > KT_BF16 || (tokens > 0 && (!x || !out)) ||
      layer->layout.k != kt_pad(layer->in_features, KT_PANEL) ||
      layer->layout.n != kt_pad(layer->out_features, KT_PANEL))
    return KT_BAD_ARGUMENT;
  const int64_t size = x_dtype == KT_F32 ? 4 : 2;
  linear_pass p = {.blis = blis,
                   .variant = kt_rows_current(),
                   .layer = layer,
                   .x_stride = x_stride,
                   .out_stride = out_stride,
                   .dtype = x_dtype};
  kt_status status = KT_OK;
  kt_pool_acquire(pool, blis);
  for (int64_t t = 0; t < tokens && status == KT_OK; t += PASS_ROWS) {
    p.x = (const char *)x + t * x_stride * size;
    p.out = (char *)out + t * out_stride * size;
    p.rows = kt_min(PASS_ROWS, tokens - t);
    status = run_pass(pool, &p);
  }
  kt_pool_release(pool);
  return status;
}
