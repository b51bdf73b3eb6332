/* A layer of gated MLPs, each token running through its own few.
 *
 *   lay out x, one copy per (token, expert) pair, pairs sorted by expert
 *   gate and up     tasks: expert x strip of rows          -> h, float32, pairs x intermediate
 *   lay out h
 *   down            tasks: strip of rows, over all experts -> y
 *
 * A down task owns its rows of y for every token, so nothing is accumulated across threads and the sum
 * over experts is always taken in the same order. With several nodes each owns a range of the
 * intermediate width: it computes those rows of gate and up and that part of down's sum; the parts are
 * then added in node order. */
#include <stddef.h>
#include <string.h>

#include "core/check.h"
#include "core/pool.h"
#include "core/route.h"

/* Scratch memory is kept below this by running fewer tokens at a time, but at least LEAST_TOKENS. */
#define SCRATCH_BYTES ((int64_t)192 << 20)
#define LEAST_TOKENS 64
#define MOST_TOKENS 2048
/* Rows of activations per strip. */
#define STRIP_TOKENS 256

struct experts {
  const struct kt_cpu_experts *call;
  const struct kt_cpu_experts_layer *layer;
  const struct kt_kernels *kernels;
  struct kt_weight gate, up, down;
  struct kt_route route;
  int64_t first_token, tokens;
  struct kt_x x[2]; /* for gate, for up; the same where one layout serves both */
  struct kt_x hx;
  uint8_t *x_blocks[2], *h_blocks;
  float *h;       /* [pairs][intermediate] */
  float *partial; /* [nodes][tokens][hidden], only with several nodes */
  uint8_t *spaces;
  int64_t space_bytes;
  int strip_rows;
  int strip_tokens; /* tokens of an expert per strip */
  int64_t width_step[KT_MAX_NODES + 1]; /* steps of the intermediate width, by node */
  int64_t strips[KT_MAX_NODES], down_strips;
};

/* What a thread works in: the strip's space, two results, and y of one strip for every token. */
struct space {
  struct kt_strip_space strip;
  float c[2][STRIP_TOKENS * KT_STRIP_ROWS];
  float y[]; /* [tokens][KT_STRIP_ROWS] */
};

static struct space *space_of(const struct experts *e, int thread) {
  return (struct space *)(e->spaces + thread * e->space_bytes);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static enum kt_x_kind x_kind(const struct kt_weight *weight) {
  return kt_family_x_kind(weight->type->family);
}

/* Lay out one row of activations, in as many terms as `x` has. */
static void lay_out(const struct experts *e, const struct kt_x *x, enum kt_x_kind kind, int dtype, const void *row,
                    int64_t cols, uint8_t *out) {
  const int64_t stride = x->tokens * x->terms * x->block_bytes;
  if (x->terms == 2)
    e->kernels->x_split[kind](dtype, row, cols, out, stride, x->block_bytes);
  else
    e->kernels->x[kind](dtype, row, cols, out, stride);
}

/* Lay out one token and copy it to its other pairs. */
static void x_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct experts *e = context;
  (void)node, (void)next, (void)thread;
  const struct kt_cpu_rows *rows = &e->call->x;
  const uint8_t *row = (const uint8_t *)rows->data + (e->first_token + task) * rows->row_bytes;
  const int64_t top_k = e->call->top_k;
  const int kinds = e->x_blocks[1] == e->x_blocks[0] ? 1 : 2;
  for (int i = 0; i < kinds; i++) {
    const struct kt_weight *weight = i == 0 ? &e->gate : &e->up;
    const int64_t size = e->x[i].block_bytes, pair_bytes = e->x[i].terms * size;
    const int64_t stride = e->route.pairs * pair_bytes;
    const uint8_t *made = NULL;
    for (int64_t j = 0; j < top_k; j++) {
      const int32_t pair = e->route.place[task * top_k + j];
      if (pair < 0) continue;
      uint8_t *out = e->x_blocks[i] + pair * pair_bytes;
      if (made == NULL) {
        lay_out(e, &e->x[i], x_kind(weight), rows->dtype, row, weight->cols, out);
        made = out;
      } else {
        for (int64_t s = 0; s < kt_steps(weight->cols); s++)
          memcpy(out + s * stride, made + s * stride, (size_t)pair_bytes);
      }
    }
  }
}

/* Row and size of a node's strip of the intermediate width. */
static int64_t width_row(const struct experts *e, int node, int64_t strip, int *rows) {
  const int64_t row = e->width_step[node] * KT_STEP + strip * e->strip_rows;
  const int64_t end = smaller(e->width_step[node + 1] * KT_STEP, e->gate.rows);
  *rows = (int)smaller(e->strip_rows, end - row);
  return row;
}

static void add_bias(const struct experts *e, const float *bias, int64_t expert, int64_t width, int64_t row,
                     int rows, int tokens, float *c) {
  if (bias == NULL) return;
  for (int t = 0; t < tokens; t++)
    e->kernels->axpy(1.0f, bias + expert * width + row, c + t * KT_STRIP_ROWS, rows);
}

static void gate_up_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct experts *e = context;
  const struct kt_cpu_experts_layer *layer = e->layer;
  struct space *space = space_of(e, thread);
  const int64_t i = task / e->strips[node], width = e->gate.rows;
  const int64_t expert = e->route.expert[i];
  const int32_t end = e->route.first[i + 1];
  int rows, next_rows;
  const int64_t row = width_row(e, node, task % e->strips[node], &rows);
  const uint8_t *gate = layer->gate[expert], *up = layer->up[expert];
  struct kt_ahead to_up = {up + row * e->up.row_bytes, rows * e->up.row_bytes}, to_next = {NULL, 0};
  if (next >= 0) {
    const int64_t next_row = width_row(e, node, next % e->strips[node], &next_rows);
    to_next.first = (const uint8_t *)layer->gate[e->route.expert[next / e->strips[node]]] +
                    next_row * e->gate.row_bytes;
    to_next.bytes = next_rows * e->gate.row_bytes;
  }
  kt_begin(e->kernels);
  const int32_t most = e->strip_tokens;
  for (int32_t pair = e->route.first[i]; pair < end; pair += most) {
    const int tokens = (int)smaller(most, end - pair);
    kt_strip(e->kernels, &e->gate, gate, row, rows, 0, kt_steps(e->gate.cols), &e->x[0], pair, tokens,
             space->c[0], &space->strip, to_up);
    kt_strip(e->kernels, &e->up, up, row, rows, 0, kt_steps(e->up.cols), &e->x[1], pair, tokens,
             space->c[1], &space->strip, to_next);
    to_up = to_next = (struct kt_ahead){NULL, 0};
    add_bias(e, layer->gate_bias, expert, width, row, rows, tokens, space->c[0]);
    add_bias(e, layer->up_bias, expert, width, row, rows, tokens, space->c[1]);
    for (int t = 0; t < tokens; t++)
      e->kernels->glu(layer->act, layer->alpha, layer->limit, space->c[0] + t * KT_STRIP_ROWS,
                      space->c[1] + t * KT_STRIP_ROWS, e->h + (pair + t) * width + row, rows);
  }
  kt_end(e->kernels);
}

static void h_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct experts *e = context;
  (void)node, (void)next, (void)thread;
  lay_out(e, &e->hx, x_kind(&e->down), KT_CPU_FLOAT32, e->h + task * e->down.cols, e->down.cols,
          e->h_blocks + task * e->hx.terms * e->hx.block_bytes);
}

static void down_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct experts *e = context;
  const struct kt_cpu_experts_layer *layer = e->layer;
  struct space *space = space_of(e, thread);
  const int64_t hidden = e->down.rows, row = task * e->strip_rows;
  const int rows = (int)smaller(e->strip_rows, hidden - row);
  const int64_t step = e->width_step[node], step_end = e->width_step[node + 1];
  kt_begin(e->kernels);
  memset(space->y, 0, (size_t)e->tokens * KT_STRIP_ROWS * sizeof(float));
  for (int64_t i = 0; i < e->route.active; i++) {
    const int64_t expert = e->route.expert[i];
    const int32_t end = e->route.first[i + 1];
    /* The same rows of the next expert come next, or else the first expert's of the next task. */
    struct kt_ahead ahead = {NULL, 0};
    if (i + 1 < e->route.active)
      ahead = (struct kt_ahead){(const uint8_t *)layer->down[e->route.expert[i + 1]] + row * e->down.row_bytes,
                                rows * e->down.row_bytes};
    else if (next >= 0)
      ahead = (struct kt_ahead){(const uint8_t *)layer->down[e->route.expert[0]] +
                                    next * e->strip_rows * e->down.row_bytes,
                                smaller(e->strip_rows, hidden - next * e->strip_rows) * e->down.row_bytes};
    for (int32_t pair = e->route.first[i]; pair < end; pair += e->strip_tokens) {
      const int tokens = (int)smaller(e->strip_tokens, end - pair);
      float *c = space->c[0];
      kt_strip(e->kernels, &e->down, layer->down[expert], row, rows, step, step_end, &e->hx, pair, tokens,
               c, &space->strip, ahead);
      ahead = (struct kt_ahead){NULL, 0};
      if (node == 0) add_bias(e, layer->down_bias, expert, hidden, row, rows, tokens, c);
      for (int t = 0; t < tokens; t++)
        e->kernels->axpy(e->route.weight[pair + t], c + t * KT_STRIP_ROWS,
                         space->y + (int64_t)e->route.token[pair + t] * KT_STRIP_ROWS, rows);
    }
  }
  kt_end(e->kernels);
  const struct kt_cpu_rows *y = &e->call->y;
  const int64_t size = kt_dtype_bytes(y->dtype);
  for (int64_t t = 0; t < e->tokens; t++) {
    const float *values = space->y + t * KT_STRIP_ROWS;
    if (e->partial != NULL)
      memcpy(e->partial + (node * e->tokens + t) * hidden + row, values, (size_t)rows * sizeof(float));
    else
      e->kernels->store(y->dtype, values,
                        (uint8_t *)y->data + (e->first_token + t) * y->row_bytes + row * size, rows);
  }
}

/* Add the nodes' parts of one token. */
static void merge_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct experts *e = context;
  (void)node, (void)next, (void)thread;
  const int64_t hidden = e->down.rows;
  float *sum = e->partial + task * hidden;
  for (int n = 1; n < kt_pool_nodes(); n++)
    e->kernels->axpy(1.0f, e->partial + (n * e->tokens + task) * hidden, sum, (int)hidden);
  const struct kt_cpu_rows *y = &e->call->y;
  e->kernels->store(y->dtype, sum, (uint8_t *)y->data + (e->first_token + task) * y->row_bytes, (int)hidden);
}

/* Whole steps of the intermediate width to each node, as evenly as they go. */
static void split_width(struct experts *e, int nodes) {
  const int64_t steps = kt_steps(e->gate.rows);
  for (int n = 0; n <= nodes; n++) e->width_step[n] = (steps * n + nodes - 1) / nodes;
}

/* Run a phase of `count` independent tasks; a few small ones are not worth waking anybody for. */
static int run_all(struct experts *e, kt_task_fn *function, int64_t count, int64_t values) {
  if (count * values <= 16384) {
    for (int64_t i = 0; i < count; i++) function(e, 0, i, -1, 0);
    return KT_CPU_OK;
  }
  int64_t tasks[KT_MAX_NODES] = {0};
  tasks[0] = count;
  return kt_pool_run(function, e, tasks);
}

static void *at_offset(uint8_t *memory, int64_t offset) { return memory == NULL ? NULL : memory + offset; }

/* Give every array its place; returns the bytes needed. With a null `memory` it only counts. */
static int64_t place_arrays(struct experts *e, int threads, int nodes, uint8_t *memory) {
  const int64_t choices = e->tokens * e->call->top_k;
  int64_t at = kt_route_bytes(e->tokens, e->call->top_k, e->layer->experts);
  at = (at + 4095) / 4096 * 4096;
  e->space_bytes = (int64_t)sizeof(struct space) + e->tokens * KT_STRIP_ROWS * (int64_t)sizeof(float);
  e->space_bytes = (e->space_bytes + 4095) / 4096 * 4096;
  e->spaces = at_offset(memory, at);
  at += threads * e->space_bytes;
  const struct kt_weight *weights[2] = {&e->gate, &e->up};
  for (int i = 0; i < 2; i++) {
    e->x[i].block_bytes = kt_x_block_bytes(x_kind(weights[i]));
    if (i == 1 && x_kind(&e->gate) == x_kind(&e->up)) {
      e->x_blocks[1] = e->x_blocks[0];
      break;
    }
    e->x_blocks[i] = at_offset(memory, at);
    at += (choices * e->x[i].terms * kt_steps(weights[i]->cols) + KT_X_SPARE) * e->x[i].block_bytes;
  }
  e->hx.block_bytes = kt_x_block_bytes(x_kind(&e->down));
  e->h_blocks = at_offset(memory, at);
  at += (choices * e->hx.terms * kt_steps(e->down.cols) + KT_X_SPARE) * e->hx.block_bytes;
  e->h = at_offset(memory, at);
  at += (choices * e->down.cols * (int64_t)sizeof(float) + 63) / 64 * 64;
  e->partial = nodes > 1 ? at_offset(memory, at) : NULL;
  if (nodes > 1) at += nodes * e->tokens * e->down.rows * (int64_t)sizeof(float);
  return at;
}

static int run_part(struct experts *e) {
  const struct kt_cpu_experts *call = e->call;
  const int threads = kt_pool_threads(), nodes = kt_pool_nodes();
  uint8_t *memory = kt_pool_scratch(place_arrays(e, threads, nodes, NULL));
  if (memory == NULL) return KT_CPU_MEMORY;
  place_arrays(e, threads, nodes, memory);
  kt_route_sort(&e->route, call->ids + e->first_token * call->top_k,
                call->weights + e->first_token * call->top_k, e->tokens, call->top_k, e->layer->experts,
                memory);
  for (int i = 0; i < 2; i++) {
    e->x[i].blocks = e->x_blocks[i];
    e->x[i].tokens = e->route.pairs;
  }
  e->hx.blocks = e->h_blocks;
  e->hx.tokens = e->route.pairs;

  /* Short strips where there would be too few tasks to share evenly. */
  const int64_t width = e->gate.rows, hidden = e->down.rows;
  const int64_t most_strips = (hidden + KT_STRIP_ROWS - 1) / KT_STRIP_ROWS;
  e->strip_rows = most_strips < 4 * threads ? KT_PANEL_ROWS : KT_STRIP_ROWS;
  e->down_strips = (hidden + e->strip_rows - 1) / e->strip_rows;
  int64_t gate_up_tasks[KT_MAX_NODES], down_tasks[KT_MAX_NODES];
  for (int n = 0; n < nodes; n++) {
    const int64_t own = smaller(e->width_step[n + 1] * KT_STEP, width) - smaller(e->width_step[n] * KT_STEP, width);
    e->strips[n] = (own + e->strip_rows - 1) / e->strip_rows;
    gate_up_tasks[n] = e->strips[n] * e->route.active;
    down_tasks[n] = e->down_strips;
  }
  int status = run_all(e, x_task, e->tokens, e->gate.cols);
  if (status == KT_CPU_OK) status = kt_pool_run(gate_up_task, e, gate_up_tasks);
  if (status == KT_CPU_OK) status = run_all(e, h_task, e->route.pairs, width);
  if (status == KT_CPU_OK) status = kt_pool_run(down_task, e, down_tasks);
  if (status == KT_CPU_OK && nodes > 1) status = run_all(e, merge_task, e->tokens, hidden);
  return status;
}

static int check_layer(struct experts *e) {
  const struct kt_cpu_experts_layer *layer = e->layer;
  if (layer == NULL || layer->gate == NULL || layer->up == NULL || layer->down == NULL)
    return KT_CPU_ARGUMENT;
  if (layer->experts < 1 || layer->experts > (1 << 20)) return KT_CPU_SHAPE;
  if (layer->act < KT_CPU_ACT_SILU || layer->act > KT_CPU_ACT_RELU) return KT_CPU_ARGUMENT;
  int status = kt_check_matrix(&layer->gate_shape, 0, &e->gate);
  if (status == KT_CPU_OK) status = kt_check_matrix(&layer->up_shape, 0, &e->up);
  if (status == KT_CPU_OK) status = kt_check_matrix(&layer->down_shape, 0, &e->down);
  if (status != KT_CPU_OK) return status;
  if (e->gate.rows < 1 || e->gate.rows != e->up.rows || e->gate.cols != e->up.cols ||
      e->down.cols != e->gate.rows || e->down.rows != e->gate.cols)
    return KT_CPU_SHAPE;
  for (int64_t i = 0; i < layer->experts; i++)
    if (layer->gate[i] == NULL || layer->up[i] == NULL || layer->down[i] == NULL) return KT_CPU_ARGUMENT;
  return KT_CPU_OK;
}

/* Rows of activations per token; some types round nothing, or nothing that a second term would hold. */
static int terms_of(const struct experts *e, const struct kt_weight *weight) {
  return e->call->split && e->kernels->x_split[x_kind(weight)] != NULL ? 2 : 1;
}

int kt_cpu_experts(const struct kt_cpu_experts *call) {
  if (call == NULL) return KT_CPU_ARGUMENT;
  struct experts e = {.call = call, .layer = call->layer, .kernels = call->split ? kt_kernels_exact() : kt_kernels_current()};
  int status = check_layer(&e);
  if (status == KT_CPU_OK) status = kt_check_rows(&call->x, call->tokens, e.gate.cols);
  if (status == KT_CPU_OK) status = kt_check_rows(&call->y, call->tokens, e.down.rows);
  if (status != KT_CPU_OK || call->tokens == 0) return status;
  if (call->top_k < 1 || call->top_k > 1024) return KT_CPU_SHAPE;
  if (call->ids == NULL || call->weights == NULL) return KT_CPU_ARGUMENT;
  if (!kt_route_ids_ok(call->ids, call->tokens * call->top_k, e.layer->experts)) return KT_CPU_EXPERT_ID;
  status = kt_pool_enter();
  if (status != KT_CPU_OK) return status;
  e.x[0].terms = terms_of(&e, &e.gate);
  e.x[1].terms = terms_of(&e, &e.up);
  e.hx.terms = terms_of(&e, &e.down);
  e.strip_tokens = STRIP_TOKENS / (call->split ? 2 : 1);
  split_width(&e, kt_pool_nodes());
  e.tokens = 1;
  const int64_t fixed = place_arrays(&e, kt_pool_threads(), kt_pool_nodes(), NULL);
  e.tokens = 1025;
  const int64_t each = (place_arrays(&e, kt_pool_threads(), kt_pool_nodes(), NULL) - fixed) / 1024 + 1;
  int64_t most = (SCRATCH_BYTES - fixed) / each;
  most = most < LEAST_TOKENS ? LEAST_TOKENS : smaller(most, MOST_TOKENS);
  for (int64_t t = 0; t < call->tokens && status == KT_CPU_OK; t += most) {
    e.first_token = t;
    e.tokens = smaller(most, call->tokens - t);
    status = run_part(&e);
  }
  kt_pool_leave();
  return status;
}
