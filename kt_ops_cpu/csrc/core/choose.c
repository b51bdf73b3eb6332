/* The choice of a softmax router. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "core/check.h"
#include "core/kernels.h"

static void one_token(const struct kt_kernels *kernels, const struct kt_cpu_choose *call, int64_t token,
                      float *left, float *scores) {
  const float *logits = call->logits + token * call->experts;
  int64_t *ids = call->ids + token * call->top_k;
  for (int64_t e = 0; e < call->experts; e++) left[e] = isnan(logits[e]) ? -INFINITY : logits[e];
  float most;
  const float total = kernels->exponents(left, (int)call->experts, &most);
  float sum = 0.0f;
  for (int64_t slot = 0; slot < call->top_k; slot++) {
    int64_t best = -1;
    for (int64_t e = 0; e < call->experts; e++)
      if (!isnan(logits[e]) && left[e] >= 0.0f && (best < 0 || left[e] > left[best])) best = e;
    ids[slot] = best;
    scores[slot] = best < 0 ? NAN : left[best] / total;
    if (best >= 0) left[best] = -1.0f;
    sum += scores[slot];
  }
  if (call->normalize)
    for (int64_t slot = 0; slot < call->top_k; slot++) scores[slot] /= sum;
  kernels->store(call->scores.dtype, scores, (uint8_t *)call->scores.data + token * call->scores.row_bytes,
                 (int)call->top_k);
}

int kt_cpu_choose(const struct kt_cpu_choose *call) {
  if (call == NULL) return KT_CPU_ARGUMENT;
  int status = kt_check_rows(&call->scores, call->tokens, call->top_k);
  if (status != KT_CPU_OK || call->tokens == 0) return status;
  if (call->logits == NULL || call->ids == NULL) return KT_CPU_ARGUMENT;
  if (call->experts < 1 || call->experts > 65536 || call->top_k < 1 || call->top_k > call->experts)
    return KT_CPU_SHAPE;
  float *scratch = malloc((size_t)(call->experts + call->top_k) * sizeof(float));
  if (scratch == NULL) return KT_CPU_MEMORY;
  for (int64_t t = 0; t < call->tokens; t++)
    one_token(kt_kernels_current(), call, t, scratch, scratch + call->experts);
  free(scratch);
  return KT_CPU_OK;
}
