/* The C interface of kt-plugin-template. Pointers and sizes are checked by the caller, in Python. */
#ifndef KT_PLUGIN_TEMPLATE_H
#define KT_PLUGIN_TEMPLATE_H

#include <stdint.h>

/* binding: begin */
/* The interface's version; a library left over from another one is then refused. */
int kt_plugin_template_abi(void);

/* A layer of experts. All matrices are stored as Q8_0: blocks of 32 values, each a half-precision
   scale followed by 32 signed bytes. gate[e] and up[e] are [inner][hidden], down[e] is
   [hidden][inner]; hidden and inner are multiples of 32. */
typedef struct {
  int64_t experts, hidden, inner;
  const uint8_t *const *gate, *const *up, *const *down;
} kt_plugin_template_layer;

/* y[tokens][hidden] = for each token the sum over its top_k experts of
   share * down(silu(gate x) * up x). An id of -1 adds nothing; all other ids are experts'.
   work holds inner floats. */
void kt_plugin_template_experts(
  const kt_plugin_template_layer *layer, const float *x, const int64_t *ids, const float *share, float *y,
  float *work, int64_t tokens, int64_t top_k);
/* binding: end */

#endif
