/* Rows of int8 activations times one chunk of a weight matrix, whatever the scheme of its scales. */
#ifndef KT_PRODUCT_H
#define KT_PRODUCT_H

#include "call.h"
#include "isa.h"

/* Multiply `rows` rows of a (int8, layout->k apart) with chunk c. With one scale per channel the result
 * is `tile` (int32, not yet scaled); with groups it is `sums` (float, scaled by row_scales (rows, groups)
 * and the chunk's own). Both are (rows, chunk width) and have room for two rows at least.
 *
 * One row is computed together with the one that follows it in memory, which must exist, its scales too,
 * and whose result is not to be read: BLIS's kernel for a single row takes 15 % longer on cold weights
 * than the one for two. */
const void *kt_product(const kt_blis *blis, const kt_rows *variant, const kt_layout *layout,
                       const int8_t *panels, const float *scales, int64_t c, int64_t rows,
                       const int8_t *a, const float *row_scales, int32_t *tile, float *sums);

/* Ask for the first page of what will be multiplied next. Within a chunk the hardware reads ahead by
 * itself; at the start of one it would begin anew, which costs 2 to 3 % of the read bandwidth. */
static inline void kt_prefetch(const int8_t *panels) {
  for (int i = 0; i < 64; i++) __builtin_prefetch(panels + i * 64, 0, 2);
}

kt_status kt_group_reorder_size(const kt_blis *blis, int64_t k, int64_t n, int64_t group,
                                int64_t *bytes);
/* b is (n, k) with k adjacent, as weights are stored. */
void kt_group_reorder(const kt_blis *blis, int64_t k, int64_t n, int64_t group, const int8_t *b,
                      int8_t *out);

#endif
