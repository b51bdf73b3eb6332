/* Calls through the addresses of a loaded BLIS. */
#ifndef KT_CALL_H
#define KT_CALL_H

#include "kt_blis.h"

/* The prototypes are BLIS 5.x's with 64-bit dim_t. AOCL-DLP's take one more pointer at the end of the
 * two reorder functions (metadata, NULL); BLIS ignores it, as an argument that is passed and not read. */
typedef void (*kt_gemm_fn)(char order, char transa, char transb, int64_t m, int64_t n, int64_t k,
                           int32_t alpha, const int8_t *a, int64_t lda, char format_a,
                           const int8_t *b, int64_t ldb, char format_b, int32_t beta, int32_t *c,
                           int64_t ldc, void *post_ops);
typedef void (*kt_reorder_fn)(char order, char trans, char matrix, const int8_t *in, int8_t *out,
                              int64_t k, int64_t n, int64_t ld, void *metadata);
typedef uint64_t (*kt_reorder_size_fn)(char order, char trans, char matrix, int64_t k, int64_t n,
                                       void *metadata);

/* C (m, n) = A (m, k) * B, B reordered by this library with the same k and n. */
static inline void kt_gemm(const kt_blis *blis, int64_t m, int64_t n, int64_t k, const int8_t *a,
                           int64_t lda, const int8_t *b, int32_t *c, int64_t ldc) {
  ((kt_gemm_fn)blis->gemm)('r', 'n', 'n', m, n, k, 1, a, lda, 'n', b, n, 'r', 0, c, ldc, NULL);
}

/* What the thread had before kt_threads_one; negative: nothing to restore. */
typedef struct {
  int64_t threads;
} kt_thread_setting;

kt_thread_setting kt_threads_set(const kt_blis *blis, int64_t threads);
void kt_threads_restore(const kt_blis *blis, kt_thread_setting setting);

static inline kt_thread_setting kt_threads_one(const kt_blis *blis) {
  return kt_threads_set(blis, 1);
}

#endif
