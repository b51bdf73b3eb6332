/* Includes the public interface (interface.h has no preprocessor lines of its own). */
#ifndef KT_BLIS_H
#define KT_BLIS_H

#include <stddef.h>
#include <stdint.h>

#include "interface.h"

#define KT_PANEL 64 /* columns of a BLIS s8 micro-panel; also the padding of every inner dimension */
#define KT_MAX_THREADS 1024

static inline int64_t kt_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t kt_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t kt_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t kt_pad(int64_t a, int64_t to) { return kt_ceil_div(a, to) * to; }

/* Columns of chunk c, inputs of slice g: all of the pitch but for the last one. */
static inline int64_t kt_chunk_width(const kt_layout *l, int64_t c) {
  return kt_min(l->width, l->n - c * l->width);
}
static inline int64_t kt_slice_depth(const kt_layout *l, int64_t g) {
  return kt_min(l->group, l->k - g * l->group);
}

#endif
