/* One layer of gated experts in int8.
 *
 *   quantise   x -> int8, once per token
 *   gate/up    per expert and block of its tokens: gather, GEMM chunk by chunk, act(gate) * up -> h
 *   quantise   h -> int8, once per (token, expert) pair; in place when one task has whole rows
 *   down       per chunk of output columns and slab of tokens: GEMM over all experts, summed in order
 *
 * Every output column of a token is summed by one task in the order of expert ids, so the result does
 * not depend on the number of threads, and no lock or second copy of the output is needed. Scratch grows
 * with the tokens in a pass, not with experts times the longest batch. */
#include <string.h>

#include "isa.h"
#include "pool.h"
#include "product.h"

/* How the work is cut. Blocks of 64 rows cost 5 % against 128 (the weights are read more often), blocks
 * of 256 gain nothing more and push the gathered rows out of the second-level cache. */
enum {
  PASS_TOKENS = 8192, /* more are computed in passes, which bounds the scratch */
  BLOCK_ROWS = 128,   /* rows of one gate/up GEMM, and of one down GEMM */
  SLAB_TOKENS = 1024, /* tokens whose sums one down task keeps */
  TASKS_PER_THREAD = 12, /* gate/up tasks there should be, if chunks allow */
  ROWS_PER_TASK = 16  /* rows quantised by one task */
};
#define SPLIT_BYTES (INT64_C(64) << 20) /* most float h that is kept for tasks with part of a row */

typedef struct {
  int32_t expert, rows;
  int64_t first; /* pair */
} block;

typedef struct {
  const kt_blis *blis;
  const kt_rows *variant;
  const kt_experts *layer;
  const kt_experts_call *call;
  kt_activation activation;
  int64_t token0, tokens, pairs, slab;

  /* pairs (token, expert), sorted by expert, then token */
  int64_t *offsets;    /* (experts + 1) */
  int64_t *pair_token; /* within the pass */
  int32_t *pair_target; /* within its slab */
  float *pair_weight;
  block *blocks;
  int64_t block_count, splits;

  int8_t *xq; /* (tokens + 1, k), (tokens + 1, groups): one row more than there are, see product.h */
  float *xs;
  int8_t *hq; /* (pairs + 1, k), (pairs + 1, groups) */
  float *hs;
  float *hf; /* (pairs, k) when splits > 1 */
  char *workers;
  int64_t worker_bytes;
} pass;

static void quantize_x(void *argument, int64_t task, int32_t worker) {
  (void)worker;
  pass *p = argument;
  const kt_layout *l = &p->layer->gate_up;
  const kt_experts_call *call = p->call;
  const int64_t size = call->x_dtype == KT_F32 ? 4 : 2;
  const int64_t end = kt_min((task + 1) * ROWS_PER_TASK, p->tokens);
  for (int64_t t = task * ROWS_PER_TASK; t < end; t++)
    p->variant->quantize_row((const char *)call->x + (p->token0 + t) * call->x_stride * size,
                             call->x_dtype, p->layer->hidden, l->k, l->group, p->xq + t * l->k,
                             p->xs + t * l->groups);
}

static void quantize_h_rows(pass *p, const float *h, int64_t first, int64_t rows) {
  const kt_layout *l = &p->layer->down;
  for (int64_t r = 0; r < rows; r++)
    p->variant->quantize_row(h + r * l->k, KT_F32, l->k, l->k, l->group,
                             p->hq + (first + r) * l->k, p->hs + (first + r) * l->groups);
}

static void quantize_h(void *argument, int64_t task, int32_t worker) {
  (void)worker;
  pass *p = argument;
  const int64_t first = task * ROWS_PER_TASK;
  quantize_h_rows(p, p->hf + first * p->layer->down.k, first,
                  kt_min(ROWS_PER_TASK, p->pairs - first));
}

static void gate_up(void *argument, int64_t task, int32_t worker) {
  pass *p = argument;
  const kt_experts *layer = p->layer;
  const kt_layout *l = &layer->gate_up;
  const block b = p->blocks[task / p->splits];
  const int64_t split = task % p->splits;
  const int64_t from = split * l->chunks / p->splits, to = (split + 1) * l->chunks / p->splits;
  const int64_t inter = layer->down.k;

  char *mine = p->workers + worker * p->worker_bytes;
  int32_t *tile = (int32_t *)mine;
  mine += BLOCK_ROWS * l->width * 4;
  float *sums = (float *)mine;
  mine += l->groups > 1 ? BLOCK_ROWS * l->width * 4 : 0;
  int8_t *gathered = (int8_t *)mine;
  mine += BLOCK_ROWS * l->k;
  float *scales = (float *)mine;
  mine += kt_pad(BLOCK_ROWS * l->groups * 4, 64);
  float *h = p->splits > 1 ? p->hf + b.first * inter : (float *)mine;

  const int8_t *a = gathered;
  const float *row_scales = scales;
  if (b.rows == 1) { /* as it lies */
    a = p->xq + p->pair_token[b.first] * l->k;
    row_scales = p->xs + p->pair_token[b.first] * l->groups;
  } else {
    for (int64_t r = 0; r < b.rows; r++) {
      const int64_t token = p->pair_token[b.first + r];
      memcpy(gathered + r * l->k, p->xq + token * l->k, (size_t)l->k);
      memcpy(scales + r * l->groups, p->xs + token * l->groups, (size_t)l->groups * 4);
    }
  }
  const int8_t *panels = layer->gate_up_panels + b.expert * l->panel_bytes;
  const float *column_scales = layer->gate_up_scales + b.expert * l->scale_count;
  const float *gate_bias = layer->gate_bias ? layer->gate_bias + b.expert * inter : NULL;
  const float *up_bias = layer->up_bias ? layer->up_bias + b.expert * inter : NULL;
  for (int64_t c = from; c < to; c++) {
    const int64_t width = kt_chunk_width(l, c), half = width / 2, column = c * (l->width / 2);
    if (c + 1 < to) kt_prefetch(panels + (c + 1) * l->chunk_bytes);
    const void *product = kt_product(p->blis, p->variant, l, panels, column_scales, c, b.rows, a,
                                     row_scales, tile, sums);
    p->variant->activate_tile(product, l->groups > 1, width, b.rows, half, row_scales,
                              column_scales + c * l->groups * l->width,
                              gate_bias ? gate_bias + column : NULL,
                              up_bias ? up_bias + column : NULL, &p->activation, h + column, inter);
  }
  if (p->splits == 1) quantize_h_rows(p, h, b.first, b.rows);
}

/* First pair of [from, to) whose token is not below `token`. */
static int64_t lower_bound(const int64_t *pair_token, int64_t from, int64_t to, int64_t token) {
  while (from < to) {
    const int64_t middle = from + (to - from) / 2;
    if (pair_token[middle] < token) from = middle + 1;
    else to = middle;
  }
  return from;
}

/* The next expert that has tokens, or e itself. */
static int64_t next_expert(const pass *p, int64_t e) {
  for (int64_t next = e + 1; next < p->layer->experts; next++)
    if (p->offsets[next + 1] > p->offsets[next]) return next;
  return e;
}

static void down(void *argument, int64_t task, int32_t worker) {
  pass *p = argument;
  const kt_experts *layer = p->layer;
  const kt_layout *l = &layer->down;
  const int64_t slabs = kt_ceil_div(p->tokens, p->slab);
  const int64_t c = task / slabs, token = task % slabs * p->slab;
  const int64_t tokens = kt_min(p->slab, p->tokens - token);
  const int64_t width = kt_chunk_width(l, c), column = c * l->width;

  char *mine = p->workers + worker * p->worker_bytes;
  int32_t *tile = (int32_t *)mine;
  mine += BLOCK_ROWS * l->width * 4;
  float *sums = (float *)mine;
  mine += l->groups > 1 ? BLOCK_ROWS * l->width * 4 : 0;
  float *acc = (float *)mine;
  memset(acc, 0, (size_t)(tokens * width) * 4);

  for (int64_t e = 0; e < layer->experts; e++) {
    const int64_t first = lower_bound(p->pair_token, p->offsets[e], p->offsets[e + 1], token);
    const int64_t end = lower_bound(p->pair_token, first, p->offsets[e + 1], token + tokens);
    const float *scales = layer->down_scales + e * l->scale_count;
    const float *bias = layer->down_bias ? layer->down_bias + e * l->n + column : NULL;
    const int64_t next = first < end ? next_expert(p, e) : e;
    if (next != e) kt_prefetch(layer->down_panels + next * l->panel_bytes + c * l->chunk_bytes);
    for (int64_t pair = first; pair < end; pair += BLOCK_ROWS) {
      const int64_t rows = kt_min(BLOCK_ROWS, end - pair);
      const float *row_scales = p->hs + pair * l->groups;
      const void *product =
          kt_product(p->blis, p->variant, l, layer->down_panels + e * l->panel_bytes, scales, c,
                     rows, p->hq + pair * l->k, row_scales, tile, sums);
      p->variant->combine_tile(product, l->groups > 1, width, rows, width, row_scales,
                               scales + c * l->groups * l->width, bias, p->pair_weight + pair,
                               p->pair_target + pair, acc, width);
    }
  }
  const kt_experts_call *call = p->call;
  const int64_t size = call->x_dtype == KT_F32 ? 4 : 2;
  for (int64_t t = 0; t < tokens; t++) {
    const int64_t at = (p->token0 + token + t) * call->out_stride + column;
    p->variant->store_row(acc + t * width, kt_min(width, layer->hidden - column), call->x_dtype,
                          (char *)call->out + at * size);
  }
}

/* How many slabs: the fewest that keep the threads evenly busy, since a slab less is a taller GEMM. */
static int64_t choose_slab(int64_t tokens, int64_t chunks, int64_t threads) {
  int64_t slabs = kt_ceil_div(tokens, SLAB_TOKENS);
  const int64_t most = kt_min(slabs + 3, tokens);
  for (; slabs < most; slabs++) {
    const int64_t rounds = kt_ceil_div(chunks * slabs, threads);
    if (rounds * threads * 8 <= chunks * slabs * 9) break; /* at most 1/8 idle */
  }
  return kt_ceil_div(tokens, slabs);
}

/* Cut the pairs of each expert into blocks of nearly equal height; return their number. */
static int64_t cut_blocks(const pass *p, block *blocks) {
  int64_t count = 0;
  for (int64_t e = 0; e < p->layer->experts; e++) {
    const int64_t rows = p->offsets[e + 1] - p->offsets[e];
    const int64_t parts = kt_ceil_div(rows, BLOCK_ROWS);
    for (int64_t i = 0; i < parts; i++) {
      const int64_t from = i * rows / parts, to = (i + 1) * rows / parts;
      blocks[count++] = (block){(int32_t)e, (int32_t)(to - from), p->offsets[e] + from};
    }
  }
  return count;
}

static void sort_pairs(pass *p, int64_t *cursor) {
  const kt_experts_call *call = p->call;
  const int64_t experts = p->layer->experts, slots = p->tokens * call->top_k;
  const int64_t *ids = call->ids + p->token0 * call->top_k;
  const float *weights = call->weights + p->token0 * call->top_k;
  memset(cursor, 0, (size_t)(experts + 1) * sizeof *cursor);
  for (int64_t i = 0; i < slots; i++)
    if (ids[i] >= 0) cursor[ids[i] + 1]++;
  for (int64_t e = 0; e < experts; e++) cursor[e + 1] += cursor[e];
  memcpy(p->offsets, cursor, (size_t)(experts + 1) * sizeof *cursor);
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t j = 0; j < call->top_k; j++) {
      const int64_t id = ids[t * call->top_k + j];
      if (id < 0) continue;
      const int64_t pair = cursor[id]++;
      p->pair_token[pair] = t;
      p->pair_target[pair] = (int32_t)(t % p->slab);
      p->pair_weight[pair] = weights[t * call->top_k + j];
    }
}

/* A bump allocator over the pool's scratch; with base NULL it only counts. */
static void *take(char *base, int64_t *used, int64_t bytes) {
  void *at = base ? base + *used : NULL;
  *used += kt_pad(bytes, 64);
  return at;
}

static int64_t worker_bytes(const pass *p) {
  const kt_layout *g = &p->layer->gate_up, *d = &p->layer->down;
  const int64_t tiles_g = BLOCK_ROWS * g->width * (g->groups > 1 ? 8 : 4);
  const int64_t tiles_d = BLOCK_ROWS * d->width * (d->groups > 1 ? 8 : 4);
  const int64_t first = tiles_g + BLOCK_ROWS * g->k + kt_pad(BLOCK_ROWS * g->groups * 4, 64) +
                        (p->splits == 1 ? BLOCK_ROWS * d->k * 4 : 0);
  return kt_pad(kt_max(first, tiles_d + p->slab * d->width * 4), 64);
}

static int64_t place(pass *p, char *base, int64_t slots, int64_t threads, int64_t **cursor) {
  const kt_layout *g = &p->layer->gate_up, *d = &p->layer->down;
  const int64_t experts = p->layer->experts;
  int64_t used = 0;
  *cursor = take(base, &used, (experts + 1) * 8);
  p->offsets = take(base, &used, (experts + 1) * 8);
  p->pair_token = take(base, &used, slots * 8);
  p->pair_target = take(base, &used, slots * 4);
  p->pair_weight = take(base, &used, slots * 4);
  p->blocks = take(base, &used, (experts + slots / BLOCK_ROWS + 1) * (int64_t)sizeof(block));
  p->xq = take(base, &used, (p->tokens + 1) * g->k);
  p->xs = take(base, &used, (p->tokens + 1) * g->groups * 4);
  p->hq = take(base, &used, (slots + 1) * d->k);
  p->hs = take(base, &used, (slots + 1) * d->groups * 4);
  p->hf = take(base, &used, p->splits > 1 ? slots * d->k * 4 : 0);
  p->worker_bytes = worker_bytes(p);
  p->workers = take(base, &used, threads * p->worker_bytes);
  return used;
}

/* How many tasks share a block: several when there are fewer blocks than it takes to keep the threads
 * busy to the end. Decoding has about top_k blocks, and its tasks are reads of weights, so cutting them
 * costs nothing; the number of blocks is taken before the pairs are sorted, from below. */
static int64_t choose_splits(const pass *p, int64_t slots, int64_t threads) {
  const int64_t blocks = kt_max(1, kt_min(slots, p->layer->experts));
  if (slots * p->layer->down.k * 4 > SPLIT_BYTES) return 1;
  return kt_min(p->layer->gate_up.chunks, kt_ceil_div(TASKS_PER_THREAD * threads, blocks));
}

static kt_status run_pass(kt_pool *pool, pass *p) {
  const int64_t threads = kt_pool_threads(pool), slots = p->tokens * p->call->top_k;
  const kt_layout *g = &p->layer->gate_up, *d = &p->layer->down;
  p->slab = choose_slab(p->tokens, d->chunks, threads);
  p->splits = choose_splits(p, slots, threads);
  int64_t *cursor;
  char *scratch = kt_pool_scratch(pool, place(p, NULL, slots, threads, &cursor));
  if (!scratch) return KT_NO_MEMORY;
  (void)place(p, scratch, slots, threads, &cursor);
  sort_pairs(p, cursor);
  p->pairs = p->offsets[p->layer->experts];
  p->block_count = cut_blocks(p, p->blocks);
  memset(p->xq + p->tokens * g->k, 0, (size_t)g->k);
  memset(p->xs + p->tokens * g->groups, 0, (size_t)g->groups * 4);
  memset(p->hq + p->pairs * d->k, 0, (size_t)d->k);
  memset(p->hs + p->pairs * d->groups, 0, (size_t)d->groups * 4);

  kt_pool_run(pool, quantize_x, p, kt_ceil_div(p->tokens, ROWS_PER_TASK));
  kt_pool_run(pool, gate_up, p, p->block_count * p->splits);
  if (p->splits > 1) kt_pool_run(pool, quantize_h, p, kt_ceil_div(p->pairs, ROWS_PER_TASK));
  kt_pool_run(pool, down, p, d->chunks * kt_ceil_div(p->tokens, p->slab));
  return KT_OK;
}

static int bad_call(const kt_experts *layer, const kt_experts_call *call) {
  return call->tokens < 0 || call->top_k < 0 || call->x_stride < layer->hidden ||
         call->out_stride < layer->hidden || call->x_dtype < KT_F32 || call->x_dtype > KT_BF16 ||
         (call->tokens > 0 && (!call->x || !call->out)) ||
         (call->tokens > 0 && call->top_k > 0 && (!call->ids || !call->weights)) ||
         layer->activation < KT_SILU || layer->activation > KT_RELU || layer->experts < 1 ||
         layer->gate_up.k != kt_pad(layer->hidden, KT_PANEL) ||
         layer->gate_up.n != 2 * kt_pad(layer->inter, KT_PANEL) ||
         layer->gate_up.width % (2 * KT_PANEL) != 0 ||
         layer->down.k != kt_pad(layer->inter, KT_PANEL) ||
         layer->down.n != kt_pad(layer->hidden, KT_PANEL);
}

kt_status kt_experts_forward(const kt_blis *blis, kt_pool *pool, const kt_experts *layer,
                             kt_experts_call *call) {
  if (bad_call(layer, call)) return KT_BAD_ARGUMENT;
  for (int64_t i = 0; i < call->tokens * call->top_k; i++)
    if (call->ids[i] < -1 || call->ids[i] >= layer->experts) {
      call->bad_index = i;
      return KT_BAD_EXPERT;
    }
  pass p = {.blis = blis,
            .variant = kt_rows_current(),
            .layer = layer,
            .call = call,
            .activation = {layer->activation, layer->alpha, layer->limit}};
  kt_status status = KT_OK;
  kt_pool_acquire(pool, blis);
  for (int64_t t = 0; t < call->tokens && status == KT_OK; t += PASS_TOKENS) {
    p.token0 = t;
    p.tokens = kt_min(PASS_TOKENS, call->tokens - t);
    status = run_pass(pool, &p);
  }
  kt_pool_release(pool);
  return status;
}
