/* The batch-GEMM interface KTransformers' int8 backends implement, checked before BLIS sees it: BLIS
 * answers a wrong argument by printing a line and leaving C as it was. */
#include "call.h"

kt_thread_setting kt_threads_set(const kt_blis *blis, int64_t threads) {
  kt_thread_setting before = {-1};
  if (!blis->set_threads) return before;
  if (blis->threads_are_int) {
    if (blis->get_threads) before.threads = ((int (*)(void))blis->get_threads)();
    ((void (*)(int))blis->set_threads)((int)threads);
  } else {
    if (blis->get_threads) before.threads = ((int64_t(*)(void))blis->get_threads)();
    ((void (*)(int64_t))blis->set_threads)(threads);
  }
  return before;
}

void kt_threads_restore(const kt_blis *blis, kt_thread_setting setting) {
  if (setting.threads > 0) (void)kt_threads_set(blis, setting.threads);
}

static int is_row(char order) { return order == 'r' || order == 'R'; }
static int is_column(char order) { return order == 'c' || order == 'C'; }
static int is_plain(char trans) { return trans == 'n' || trans == 'N'; }
static int is_trans(char trans) { return trans == 't' || trans == 'T'; }

/* Leading dimension of a (rows, columns) matrix as stored: it counts along the contiguous direction. */
static int bad_ld(char order, char trans, int64_t rows, int64_t columns, int64_t ld) {
  const int contiguous_is_columns = is_row(order) != is_trans(trans);
  return ld < kt_max(1, contiguous_is_columns ? columns : rows);
}

static kt_status gemm(const kt_blis *blis, int64_t threads, char order, char transa, char transb,
                      int64_t m, int64_t n, int64_t k, int32_t alpha, const int8_t *a, int64_t lda,
                      int8_t oa, const int8_t *b, int64_t ldb, int8_t ob, char format_b,
                      int32_t beta, int32_t *c, int64_t ldc, int32_t oc) {
  if (!is_row(order) && !is_column(order)) return KT_BAD_ARGUMENT;
  if ((!is_plain(transa) && !is_trans(transa)) || (!is_plain(transb) && !is_trans(transb)))
    return KT_BAD_ARGUMENT;
  if (m < 0 || n < 0 || k < 0 || oa != 0 || ob != 0 || oc != 0) return KT_BAD_ARGUMENT;
  if (format_b != 'r' && format_b != 'n') return KT_BAD_ARGUMENT;
  /* BLIS reorders B for row-major products only. */
  if (format_b == 'r' && (is_column(order) || is_trans(transb))) return KT_BAD_ARGUMENT;
  if (threads < 1 || threads > KT_MAX_THREADS) return KT_BAD_ARGUMENT;
  if (m == 0 || n == 0 || k == 0) return KT_BAD_ARGUMENT;
  if (!a || !b || !c) return KT_BAD_ARGUMENT;
  if (bad_ld(order, transa, m, k, lda) || bad_ld(order, 'n', m, n, ldc)) return KT_BAD_ARGUMENT;
  if (format_b == 'n' && bad_ld(order, transb, k, n, ldb)) return KT_BAD_ARGUMENT;
  if (format_b == 'r') ldb = n;
  const kt_thread_setting before = kt_threads_set(blis, threads);
  ((kt_gemm_fn)blis->gemm)(order, transa, transb, m, n, k, alpha, a, lda, 'n', b, ldb, format_b,
                           beta, c, ldc, NULL);
  kt_threads_restore(blis, before);
  return KT_OK;
}

kt_status kt_prefill_gemm_s8s8s32(const kt_blis *blis, int32_t threads, char order, char transa,
                                  char transb, int64_t m, int64_t n, int64_t k, int32_t alpha,
                                  const int8_t *a, int64_t lda, int8_t oa, const int8_t *b,
                                  int64_t ldb, int8_t ob, char format_b, int32_t beta, int32_t *c,
                                  int64_t ldc, int32_t oc) {
  return gemm(blis, threads, order, transa, transb, m, n, k, alpha, a, lda, oa, b, ldb, ob,
              format_b, beta, c, ldc, oc);
}

kt_status kt_decode_gemm_s8s8s32(const kt_blis *blis, int32_t threads, char order, char transa,
                                 char transb, int64_t m, int64_t n, int64_t k, int32_t alpha,
                                 const int8_t *a, int64_t lda, int8_t oa, const int8_t *b,
                                 int64_t ldb, int8_t ob, char format_b, int32_t beta, int32_t *c,
                                 int64_t ldc, int32_t oc) {
  /* A decode product is a read of B. Waking a thread pays only if it then reads a good part of its
   * second-level cache's worth of it. */
  enum { BYTES_PER_THREAD = 512 << 10 };
  int64_t useful = threads;
  if (n > 0 && k > 0 && n < INT64_MAX / k) useful = kt_min(threads, 1 + n * k / BYTES_PER_THREAD);
  return gemm(blis, threads < 1 ? threads : useful, order, transa, transb, m, n, k, alpha, a, lda, oa,
              b, ldb, ob, format_b, beta, c, ldc, oc);
}

kt_status kt_prefill_int4_gemm_s8s8s32(void) { return KT_INT8_ONLY; }
kt_status kt_decode_int4_gemm_s8s8s32(void) { return KT_INT8_ONLY; }

static int bad_b(char order, char transb, int64_t k, int64_t n) {
  return (!is_row(order) && !is_column(order)) || (!is_plain(transb) && !is_trans(transb)) || k < 1 ||
         n < 1 || n >= INT64_MAX / k;
}

kt_status kt_reorder_b_size(const kt_blis *blis, char order, char transb, int64_t k, int64_t n,
                            int64_t *bytes) {
  if (bad_b(order, transb, k, n)) return KT_BAD_ARGUMENT;
  const uint64_t size = ((kt_reorder_size_fn)blis->reorder_size)(order, transb, 'B', k, n, NULL);
  /* 0 is how BLIS says that it cannot (no VNNI); no layout is smaller than the matrix. */
  if (size < (uint64_t)n * (uint64_t)k || size > INT64_MAX) return KT_BAD_ARGUMENT;
  *bytes = (int64_t)size;
  return KT_OK;
}

kt_status kt_reorder_b(const kt_blis *blis, char order, char transb, int64_t k, int64_t n, int64_t ldb,
                       const int8_t *b, int8_t *out) {
  if (bad_b(order, transb, k, n) || !b || !out || bad_ld(order, transb, k, n, ldb))
    return KT_BAD_ARGUMENT;
  ((kt_reorder_fn)blis->reorder)(order, transb, 'B', b, out, k, n, ldb, NULL);
  return KT_OK;
}
