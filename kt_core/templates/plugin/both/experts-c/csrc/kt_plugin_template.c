#include "kt_plugin_template.h"

#include <math.h>

#include "q8_0.h"

int kt_plugin_template_abi(void) { return 1; }

static float silu(float value) { return value / (1 + expf(-value)); }

/* y += share * expert(x) */
static void add_expert(
  const kt_plugin_template_layer *layer, int64_t expert, const float *x, float share, float *y, float *work)
{
  const int64_t inner_row = q8_0_row_bytes(layer->hidden), outer_row = q8_0_row_bytes(layer->inner);
  for (int64_t j = 0; j < layer->inner; j++) {
    const float gate = q8_0_dot(layer->gate[expert] + j * inner_row, x, layer->hidden);
    work[j] = silu(gate) * q8_0_dot(layer->up[expert] + j * inner_row, x, layer->hidden);
  }
  for (int64_t j = 0; j < layer->hidden; j++)
    y[j] += share * q8_0_dot(layer->down[expert] + j * outer_row, work, layer->inner);
}

void kt_plugin_template_experts(
  const kt_plugin_template_layer *layer, const float *x, const int64_t *ids, const float *share, float *y,
  float *work, int64_t tokens, int64_t top_k)
{
  for (int64_t i = 0; i < tokens; i++) {
    float *row = y + i * layer->hidden;
    for (int64_t j = 0; j < layer->hidden; j++)
      row[j] = 0;
    for (int64_t k = i * top_k; k < (i + 1) * top_k; k++)
      if (ids[k] >= 0)
        add_expert(layer, ids[k], x + i * layer->hidden, share[k], row, work);
  }
}
