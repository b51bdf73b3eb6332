#include "core/route.h"

#include <string.h>

static int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t kt_route_bytes(int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t word = sizeof(int32_t), choices = tokens * top_k;
  return rounded(experts * word) + rounded((experts + 1) * word) + 3 * rounded(choices * word) +
         rounded((experts + 1) * word);
}

int kt_route_ids_ok(const int64_t *ids, int64_t count, int64_t experts) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < -1 || ids[i] >= experts) return 0;
  return 1;
}

static void *take(uint8_t **memory, int64_t count) {
  void *taken = *memory;
  *memory += rounded(count * (int64_t)sizeof(int32_t));
  return taken;
}

void kt_route_sort(struct kt_route *route, const int64_t *ids, const float *weights, int64_t tokens,
                   int64_t top_k, int64_t experts, void *memory) {
  uint8_t *free_memory = memory;
  const int64_t choices = tokens * top_k;
  route->expert = take(&free_memory, experts);
  route->first = take(&free_memory, experts + 1);
  route->token = take(&free_memory, choices);
  route->weight = take(&free_memory, choices);
  route->place = take(&free_memory, choices);
  int32_t *cursor = take(&free_memory, experts + 1);

  memset(cursor, 0, (size_t)(experts + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < choices; i++)
    if (ids[i] >= 0) cursor[ids[i]]++;
  route->active = 0;
  route->most = 0;
  int32_t pairs = 0;
  for (int64_t e = 0; e < experts; e++) {
    const int32_t count = cursor[e];
    cursor[e] = pairs;
    if (count == 0) continue;
    route->expert[route->active] = (int32_t)e;
    route->first[route->active++] = pairs;
    route->most = count > route->most ? count : route->most;
    pairs += count;
  }
  route->first[route->active] = pairs;
  route->pairs = pairs;
  for (int64_t i = 0; i < choices; i++) {
    route->place[i] = -1;
    if (ids[i] < 0) continue;
    const int32_t pair = cursor[ids[i]]++;
    route->place[i] = pair;
    route->token[pair] = (int32_t)(i / top_k);
    route->weight[pair] = weights[i];
  }
}
