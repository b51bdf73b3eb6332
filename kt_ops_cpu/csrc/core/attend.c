/* One token's attention over a cache: norms and rotation of the heads, the cache, the softmax.
 *
 * A task takes a piece of one key head's cache and all query heads that read it. Pieces leave what they
 * found side by side; adding them up is little work. A short cache is one piece a head and is not worth
 * waking anyone for. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/kernels.h"
#include "core/pool.h"

#define PIECE 64           /* cached tokens whose scores are made before their values are summed */
#define MOST_DIM 1024      /* values of a head */
#define WORTH_SHARING 6000 /* inner products up to which one thread is as quick as several */

struct attend {
  const struct kt_cpu_attend *call;
  const struct kt_kernels *kernels;
  int64_t first, count; /* visible tokens of the cache */
  int64_t pieces, group;
  float *queries; /* q_heads x head_dim */
  float *found;   /* [key head][piece][query of the group][2 + head_dim]: largest score, sum, values */
  float *space;   /* per thread: a row and the scores of a piece */
  int64_t space_floats;
};

static void prepare(const struct kt_kernels *kernels, const struct kt_cpu_attend *call, const void *head,
                    const float *weight, const float *cosine, const float *sine, float scale, float *to) {
  const int dim = call->head_dim, half = call->rotary / 2;
  kernels->load(call->dtype, head, to, dim);
  if (weight != NULL) kernels->norm(to, weight, 0.0f, call->eps, to, dim);
  for (int i = 0; i < half; i++) {
    const float a = to[i], b = to[i + half];
    to[i] = a * cosine[i] - b * sine[i];
    to[i + half] = b * cosine[i + half] + a * sine[i + half];
  }
  for (int i = 0; i < dim; i++) to[i] *= scale;
}

static void piece_task(void *context, int node, int64_t task, int64_t next, int thread) {
  const struct attend *a = context;
  (void)node, (void)next;
  const struct kt_cpu_attend *call = a->call;
  const struct kt_kernels *kernels = a->kernels;
  const int dim = call->head_dim;
  const int64_t head = task / a->pieces, piece = task % a->pieces;
  const int64_t begin = a->first + a->count * piece / a->pieces;
  const int64_t end = a->first + a->count * (piece + 1) / a->pieces;
  const float *queries = a->queries + head * a->group * dim;
  const uint8_t *keys = (const uint8_t *)call->keys + head * call->head_bytes;
  const uint8_t *values = (const uint8_t *)call->values + head * call->head_bytes;
  float *row = a->space + thread * a->space_floats;
  float *scores = row + MOST_DIM;
  float *found = a->found + task * a->group * (2 + dim);
  for (int64_t g = 0; g < a->group; g++) {
    found[g * (2 + dim)] = -INFINITY;
    memset(found + g * (2 + dim) + 1, 0, (size_t)(1 + dim) * sizeof(float));
  }
  for (int64_t from = begin; from < end; from += PIECE) {
    const int rows = (int)(end - from < PIECE ? end - from : PIECE);
    for (int r = 0; r < rows; r++) {
      kernels->load(call->dtype, keys + (from + r) * call->token_bytes, row, dim);
      kernels->scores(queries, a->group, row, dim, scores + r, PIECE);
    }
    for (int64_t g = 0; g < a->group; g++) {
      float *own = found + g * (2 + dim);
      float most;
      const float sum = kernels->exponents(scores + g * PIECE, rows, &most);
      if (most > own[0]) {
        const float shrink = own[0] == -INFINITY ? 0.0f : expf(own[0] - most);
        for (int i = 0; i <= dim; i++) own[1 + i] *= shrink;
        own[0] = most;
      } else if (most < own[0]) {
        const float shrink = expf(most - own[0]);
        for (int r = 0; r < rows; r++) scores[g * PIECE + r] *= shrink;
        own[1] += sum * shrink;
        continue;
      }
      own[1] += sum;
    }
    for (int r = 0; r < rows; r++) {
      kernels->load(call->dtype, values + (from + r) * call->token_bytes, row, dim);
      kernels->blend(scores + r, PIECE, a->group, row, dim, found + 2, 2 + dim);
    }
  }
}

/* Every piece's values shrunk to the largest score of all, summed and divided by the sum of weights. */
static void merge(const struct attend *a, int64_t head, float *values) {
  const struct kt_cpu_attend *call = a->call;
  const int dim = call->head_dim;
  const int64_t size = kt_dtype_bytes(call->dtype), step = a->group * (2 + dim);
  for (int64_t g = 0; g < a->group; g++) {
    const float *found = a->found + head * a->pieces * step + g * (2 + dim);
    float most = -INFINITY, sum = 0.0f;
    for (int64_t p = 0; p < a->pieces; p++) most = found[p * step] > most ? found[p * step] : most;
    memset(values, 0, (size_t)dim * sizeof(float));
    for (int64_t p = 0; p < a->pieces; p++) {
      const float shrink = a->pieces == 1 ? 1.0f : expf(found[p * step] - most);
      sum += found[p * step + 1] * shrink;
      a->kernels->axpy(shrink, found + p * step + 2, values, dim);
    }
    for (int i = 0; i < dim; i++) values[i] /= sum;
    a->kernels->store(call->dtype, values, (uint8_t *)call->y + (head * a->group + g) * dim * size, dim);
  }
}

static int check(const struct kt_cpu_attend *c) {
  if (c->q == NULL || c->k == NULL || c->v == NULL || c->keys == NULL || c->values == NULL || c->y == NULL)
    return KT_CPU_ARGUMENT;
  const int64_t size = kt_dtype_bytes(c->dtype);
  if (size == 0) return KT_CPU_TYPE;
  if (c->kv_heads < 1 || c->q_heads < 1 || c->q_heads % c->kv_heads != 0 || c->head_dim < 1 ||
      c->head_dim > MOST_DIM || c->rotary < 0 || c->rotary > c->head_dim || c->rotary % 2 != 0 ||
      c->position < 0 || c->window < 0 || c->token_bytes < c->head_dim * size)
    return KT_CPU_SHAPE;
  return c->rotary > 0 && (c->cosine == NULL || c->sine == NULL) ? KT_CPU_ARGUMENT : KT_CPU_OK;
}

static int run(struct attend *a, int threads) {
  const struct kt_cpu_attend *call = a->call;
  const struct kt_kernels *kernels = a->kernels;
  const int dim = call->head_dim, share = threads > 1;
  const int64_t size = kt_dtype_bytes(call->dtype);
  const int64_t wanted = (4 * threads + call->kv_heads - 1) / call->kv_heads;
  const int64_t most = (a->count + PIECE - 1) / PIECE;
  a->pieces = !share ? 1 : wanted < most ? wanted : most;
  a->space_floats = (MOST_DIM + a->group * PIECE + 15) / 16 * 16;
  const int64_t found = call->kv_heads * a->pieces * a->group * (2 + dim);
  const int64_t floats = 4 * MOST_DIM + (int64_t)call->q_heads * dim + found + threads * a->space_floats;
  const int64_t bytes = floats * (int64_t)sizeof(float);
  float *memory = share ? kt_pool_scratch(bytes) : malloc((size_t)bytes);
  if (memory == NULL) return KT_CPU_MEMORY;
  float *cosine = memory, *sine = memory + MOST_DIM, *weight = memory + 2 * MOST_DIM;
  float *head = memory + 3 * MOST_DIM;
  a->queries = memory + 4 * MOST_DIM;
  a->space = a->queries + (int64_t)call->q_heads * dim;
  a->found = a->space + threads * a->space_floats;
  if (call->rotary > 0) {
    kernels->load(call->dtype, call->cosine, cosine, call->rotary);
    kernels->load(call->dtype, call->sine, sine, call->rotary);
  }
  if (call->k_weight != NULL) kernels->load(call->dtype, call->k_weight, weight, dim);
  for (int64_t h = 0; h < call->kv_heads; h++) {
    const int64_t at = h * call->head_bytes + call->position * call->token_bytes;
    prepare(kernels, call, (const uint8_t *)call->k + h * dim * size, call->k_weight != NULL ? weight : NULL,
            cosine, sine, 1.0f, head);
    kernels->store(call->dtype, head, (uint8_t *)call->keys + at, dim);
    memcpy((uint8_t *)call->values + at, (const uint8_t *)call->v + h * dim * size, (size_t)(dim * size));
  }
  if (call->q_weight != NULL) kernels->load(call->dtype, call->q_weight, weight, dim);
  for (int64_t h = 0; h < call->q_heads; h++)
    prepare(kernels, call, (const uint8_t *)call->q + h * dim * size, call->q_weight != NULL ? weight : NULL,
            cosine, sine, call->scale, a->queries + h * dim);
  if (share) {
    int64_t tasks[KT_MAX_NODES] = {0};
    tasks[0] = call->kv_heads * a->pieces;
    const int status = kt_pool_run(piece_task, a, tasks);
    if (status != KT_CPU_OK) return status;
  } else {
    for (int64_t h = 0; h < call->kv_heads; h++) piece_task(a, 0, h, -1, 0);
  }
  for (int64_t h = 0; h < call->kv_heads; h++) merge(a, h, head);
  if (!share) free(memory);
  return KT_CPU_OK;
}

int kt_cpu_attend(const struct kt_cpu_attend *call) {
  if (call == NULL) return KT_CPU_ARGUMENT;
  int status = check(call);
  if (status != KT_CPU_OK) return status;
  struct attend a = {.call = call, .kernels = kt_kernels_current(), .group = call->q_heads / call->kv_heads};
  a.first = call->window > 0 && call->position >= call->window ? call->position + 1 - call->window : 0;
  a.count = call->position + 1 - a.first;
  if (a.count * call->q_heads <= WORTH_SHARING) return run(&a, 1);
  status = kt_pool_enter();
  if (status != KT_CPU_OK) return status;
  status = run(&a, kt_pool_threads() > 1 ? kt_pool_threads() : 1);
  kt_pool_leave();
  return status;
}
