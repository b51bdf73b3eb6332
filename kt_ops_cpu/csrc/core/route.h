/* Which token goes to which expert, sorted by expert. */
#ifndef KT_ROUTE_H
#define KT_ROUTE_H

#include <stdint.h>

/* A pair is a token with one of its experts. Pairs are sorted by expert, and within an expert by token,
 * so that every sum below is taken in an order that does not depend on the number of threads. */
struct kt_route {
  int64_t pairs;
  int64_t active;     /* experts that have a pair */
  int64_t most;       /* pairs of the busiest expert */
  int32_t *expert;    /* [active] */
  int32_t *first;     /* [active + 1]: pairs of expert[i] are first[i] .. first[i + 1] */
  int32_t *token;     /* [pairs] */
  float *weight;      /* [pairs] */
  int32_t *place;     /* [tokens * top_k]: the pair of that choice, or -1 */
};

/* Bytes that kt_route_sort needs for its arrays. */
int64_t kt_route_bytes(int64_t tokens, int64_t top_k, int64_t experts);

/* 0 if an id is neither -1 nor in [0, experts). */
int kt_route_ids_ok(const int64_t *ids, int64_t count, int64_t experts);

/* Sort the choices of `tokens` tokens, ids already checked; `memory` is 64-byte aligned. */
void kt_route_sort(struct kt_route *route, const int64_t *ids, const float *weights, int64_t tokens,
                   int64_t top_k, int64_t experts, void *memory);

#endif
