#include "product.h"

#include <stdbool.h>

/* What BLIS 5.1 to 5.3 take for products with group scales. These structures are not a stable interface
 * (AOCL-DLP has others), so group_gemm is set only for a library that computed right with them. */
typedef struct {
  void *values;
  int64_t length;
  int32_t type; /* 0: float */
} group_scales;

typedef struct {
  int64_t group_size;
  int64_t count;
  group_scales *a, *b;
  void *a_zero_points, *b_zero_points;
} group_operation;

typedef struct {
  void *sum, *eltwise, *bias, *matrix_add, *matrix_mul;
  int64_t count;
  void *sequence;
  void *before;
  group_operation *group;
  int64_t eltwise_count;
} post_operations;

typedef struct {
  int64_t group_size;
} group_request;

typedef void (*group_gemm_fn)(char order, char transa, char transb, int64_t m, int64_t n, int64_t k,
                              int32_t alpha, const int8_t *a, int64_t lda, char format_a,
                              const int8_t *b, int64_t ldb, char format_b, int32_t beta, float *c,
                              int64_t ldc, post_operations *post);
typedef void (*group_reorder_fn)(char order, char trans, char matrix, const int8_t *in, int8_t *out,
                                 int64_t k, int64_t n, int64_t ld, group_request *request,
                                 void *metadata);
typedef uint64_t (*group_reorder_size_fn)(char order, char trans, char matrix, int64_t k, int64_t n,
                                          group_request *request, void *metadata);

static void group_gemm(const kt_blis *blis, const kt_layout *l, int64_t rows, int64_t width,
                       const int8_t *a, const float *row_scales, const int8_t *chunk,
                       const float *column_scales, float *sums) {
  group_scales of_rows = {(void *)(uintptr_t)row_scales, rows * l->groups, 0};
  group_scales of_columns = {(void *)(uintptr_t)column_scales, width * l->groups, 0};
  group_operation operation = {l->group, 1, &of_rows, &of_columns, NULL, NULL};
  post_operations post = {.group = &operation};
  ((group_gemm_fn)blis->group_gemm)('r', 'n', 'n', rows, width, l->k, 1, a, l->k, 'n', chunk, width,
                                    'r', 0, sums, width, &post);
}

const void *kt_product(const kt_blis *blis, const kt_rows *variant, const kt_layout *l,
                       const int8_t *panels, const float *scales, int64_t c, int64_t rows,
                       const int8_t *a, const float *row_scales, int32_t *tile, float *sums) {
  const int64_t width = kt_chunk_width(l, c), computed = rows == 1 ? 2 : rows;
  const int8_t *chunk = panels + c * l->chunk_bytes;
  const float *column_scales = scales + c * l->groups * l->width;
  if (l->groups == 1) {
    kt_gemm(blis, computed, width, l->k, a, l->k, chunk, tile, width);
    return tile;
  }
  if (l->fused) {
    group_gemm(blis, l, computed, width, a, row_scales, chunk, column_scales, sums);
    return sums;
  }
  for (int64_t g = 0; g < l->groups; g++) {
    kt_gemm(blis, computed, width, kt_slice_depth(l, g), a + g * l->group, l->k,
            chunk + g * l->slice_bytes, tile, width);
    variant->scale_tile(tile, width, rows, width, row_scales + g, l->groups,
                        column_scales + g * width, g > 0, sums, width);
  }
  return sums;
}

kt_status kt_group_reorder_size(const kt_blis *blis, int64_t k, int64_t n, int64_t group,
                                int64_t *bytes) {
  group_request request = {group};
  const uint64_t size =
      ((group_reorder_size_fn)blis->group_reorder_size)('r', 't', 'B', k, n, &request, NULL);
  if (size < (uint64_t)n * (uint64_t)k || size > INT64_MAX) return KT_BAD_ARGUMENT;
  *bytes = (int64_t)size;
  return KT_OK;
}

void kt_group_reorder(const kt_blis *blis, int64_t k, int64_t n, int64_t group, const int8_t *b,
                      int8_t *out) {
  group_request request = {group};
  ((group_reorder_fn)blis->group_reorder)('r', 't', 'B', b, out, k, n, k, &request, NULL);
}
