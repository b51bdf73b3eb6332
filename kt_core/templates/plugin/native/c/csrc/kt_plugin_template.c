#include "kt_plugin_template.h"

#include "q8_0.h"

int kt_plugin_template_abi(void) { return 1; }

void kt_plugin_template_linear(const float *x, const uint8_t *w, float *y, int64_t n, int64_t in, int64_t out)
{
  const int64_t row_bytes = q8_0_row_bytes(in);
  /* A row of weights is read once for all tokens. */
  for (int64_t j = 0; j < out; j++)
    for (int64_t i = 0; i < n; i++)
      y[i * out + j] = q8_0_dot(w + j * row_bytes, x + i * in, in);
}
