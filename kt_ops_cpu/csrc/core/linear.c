/* y = x * weight^T + bias. */
#include <stddef.h>

#include "core/check.h"
#include "core/pool.h"

/* Activations are laid out for this many tokens at a time, which bounds the scratch memory. */
#define MOST_TOKENS 1024
/* Tokens per strip: the strip's result stays in the second-level cache. */
#define STRIP_TOKENS 256

struct linear {
  const struct kt_cpu_linear *call;
  const struct kt_kernels *kernels;
  struct kt_weight weight;
  struct kt_x x;
  int64_t first_token, tokens;
  int strip_rows;
  int64_t strips, token_parts;
  int64_t first_strip[KT_MAX_NODES + 1]; /* each node has its own rows */
  uint8_t *blocks;
  uint8_t *spaces; /* one `space_bytes` per thread: kt_strip_space, then c */
  int64_t space_bytes;
};

static void layout_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct linear *l = context;
  (void)node, (void)next, (void)thread;
  const struct kt_cpu_rows *rows = &l->call->x;
  const uint8_t *row = (const uint8_t *)rows->data + (l->first_token + task) * rows->row_bytes;
  const enum kt_x_kind kind = kt_family_x_kind(l->weight.type->family);
  const int64_t bytes = l->x.block_bytes, stride = l->x.tokens * l->x.terms * bytes;
  uint8_t *out = l->blocks + l->x.terms * task * bytes;
  if (l->x.terms == 2)
    l->kernels->x_split[kind](rows->dtype, row, l->weight.cols, out, stride, bytes);
  else
    l->kernels->x[kind](rows->dtype, row, l->weight.cols, out, stride);
}

/* Consecutive tasks share a strip, so that its rows are in the cache for the next tokens. */
static void strip_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct linear *l = context;
  const struct kt_cpu_rows *y = &l->call->y;
  struct kt_strip_space *space = (struct kt_strip_space *)(l->spaces + thread * l->space_bytes);
  float *c = (float *)(space + 1);
  const int64_t row = (l->first_strip[node] + task / l->token_parts) * l->strip_rows;
  const int64_t first = l->tokens * (task % l->token_parts) / l->token_parts;
  const int tokens = (int)(l->tokens * (task % l->token_parts + 1) / l->token_parts - first);
  const int64_t left = l->weight.rows - row;
  const int rows = left < l->strip_rows ? (int)left : l->strip_rows;
  const uint8_t *data = l->call->weight.data;
  struct kt_ahead ahead = {NULL, 0};
  if (next >= 0 && next / l->token_parts != task / l->token_parts) {
    const int64_t next_row = (l->first_strip[node] + next / l->token_parts) * l->strip_rows;
    const int64_t after = l->weight.rows - next_row;
    ahead.first = data + next_row * l->weight.row_bytes;
    ahead.bytes = (after < l->strip_rows ? after : l->strip_rows) * l->weight.row_bytes;
  }
  kt_begin(l->kernels);
  kt_strip(l->kernels, &l->weight, data, row, rows, 0, kt_steps(l->weight.cols), &l->x, first, tokens, c, space,
           ahead);
  kt_end(l->kernels);
  const int64_t size = kt_dtype_bytes(y->dtype);
  for (int t = 0; t < tokens; t++) {
    float *values = c + t * KT_STRIP_ROWS;
    if (l->call->bias != NULL) l->kernels->axpy(1.0f, l->call->bias + row, values, rows);
    l->kernels->store(y->dtype, values,
                      (uint8_t *)y->data + (l->first_token + first + t) * y->row_bytes + row * size, rows);
  }
}

static int run_part(struct linear *l) {
  const int threads = kt_pool_threads(), nodes = kt_pool_nodes();
  const enum kt_x_kind kind = kt_family_x_kind(l->weight.type->family);
  const int64_t block_bytes = kt_x_block_bytes(kind);
  const int terms = l->x.terms;
  const int64_t blocks_bytes = (kt_steps(l->weight.cols) * l->tokens * terms + KT_X_SPARE) * block_bytes;
  l->token_parts = (l->tokens * terms + STRIP_TOKENS - 1) / STRIP_TOKENS;
  const int64_t c_bytes = (l->tokens / l->token_parts + 1) * terms * KT_STRIP_ROWS * (int64_t)sizeof(float);
  l->space_bytes = ((int64_t)sizeof(struct kt_strip_space) + c_bytes + 4095) / 4096 * 4096;
  uint8_t *memory = kt_pool_scratch(blocks_bytes + threads * l->space_bytes + 4096);
  if (memory == NULL) return KT_CPU_MEMORY;
  l->spaces = memory;
  l->blocks = memory + threads * l->space_bytes;
  l->x = (struct kt_x){l->blocks, l->tokens, terms, block_bytes};
  /* Short strips where there would be too few for the threads to share evenly. */
  const int64_t full = (l->weight.rows + KT_STRIP_ROWS - 1) / KT_STRIP_ROWS;
  l->strip_rows = full * l->token_parts < 8 * threads ? KT_PANEL_ROWS : KT_STRIP_ROWS;
  l->strips = (l->weight.rows + l->strip_rows - 1) / l->strip_rows;
  int64_t tasks[KT_MAX_NODES] = {0};
  if (l->tokens < 4) {
    for (int64_t t = 0; t < l->tokens; t++) layout_task(l, 0, t, -1, 0);
  } else {
    tasks[0] = l->tokens;
    const int status = kt_pool_run(layout_task, l, tasks);
    if (status != KT_CPU_OK) return status;
  }
  for (int n = 0; n <= nodes; n++) l->first_strip[n] = l->strips * n / nodes;
  for (int n = 0; n < nodes; n++)
    tasks[n] = (l->first_strip[n + 1] - l->first_strip[n]) * l->token_parts;
  return kt_pool_run(strip_task, l, tasks);
}

int kt_cpu_linear(const struct kt_cpu_linear *call) {
  if (call == NULL) return KT_CPU_ARGUMENT;
  struct linear l = {.call = call, .kernels = call->split ? kt_kernels_exact() : kt_kernels_current()};
  int status = kt_check_matrix(&call->weight, 1, &l.weight);
  if (status == KT_CPU_OK) status = kt_check_rows(&call->x, call->tokens, l.weight.cols);
  if (status == KT_CPU_OK) status = kt_check_rows(&call->y, call->tokens, l.weight.rows);
  if (status != KT_CPU_OK || call->tokens == 0 || l.weight.rows == 0) return status;
  const enum kt_x_kind kind = kt_family_x_kind(l.weight.type->family);
  l.x.terms = call->split != 0 && l.kernels->x_split[kind] != NULL ? 2 : 1;
  status = kt_pool_enter();
  if (status != KT_CPU_OK) return status;
  for (int64_t t = 0; t < call->tokens && status == KT_CPU_OK; t += MOST_TOKENS) {
    l.first_token = t;
    l.tokens = call->tokens - t < MOST_TOKENS ? call->tokens - t : MOST_TOKENS;
    status = run_part(&l);
  }
  kt_pool_leave();
  return status;
}
