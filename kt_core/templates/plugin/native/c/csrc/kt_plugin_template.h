/* The C interface of kt-plugin-template. Pointers and sizes are checked by the caller, in Python. */
#ifndef KT_PLUGIN_TEMPLATE_H
#define KT_PLUGIN_TEMPLATE_H

#include <stdint.h>

/* binding: begin */
/* The interface's version; a library left over from another one is then refused. */
int kt_plugin_template_abi(void);

/* y[n][out] = x[n][in] * w[out][in], where w is stored as Q8_0: blocks of 32 values, each a
   half-precision scale followed by 32 signed bytes. in is a multiple of 32. */
void kt_plugin_template_linear(const float *x, const uint8_t *w, float *y, int64_t n, int64_t in, int64_t out);
/* binding: end */

#endif
