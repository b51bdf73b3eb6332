#include "core/check.h"

#include <stddef.h>

#include "core/codebook.h"

/* Far beyond any model, and small enough that no product of two sizes and a block overflows. */
#define MOST ((int64_t)1 << 28)

int kt_check_matrix(const struct kt_cpu_matrix *matrix, int with_data, struct kt_weight *out) {
  const struct kt_type *type = kt_type_find(matrix->type);
  if (type == NULL) return KT_CPU_TYPE;
  if (!kt_codebook_ready(matrix->type)) return KT_CPU_CODEBOOK;
  if (matrix->rows < 0 || matrix->cols < 1 || matrix->rows > MOST || matrix->cols > MOST)
    return KT_CPU_SHAPE;
  if (matrix->cols % type->block_values != 0) return KT_CPU_SHAPE;
  if (matrix->row_bytes < matrix->cols / type->block_values * type->block_bytes ||
      matrix->row_bytes > MOST * 16)
    return KT_CPU_ARGUMENT;
  if (with_data && matrix->data == NULL && matrix->rows > 0) return KT_CPU_ARGUMENT;
  *out = (struct kt_weight){type, matrix->type, matrix->rows, matrix->cols, matrix->row_bytes};
  return KT_CPU_OK;
}

int64_t kt_dtype_bytes(int dtype) {
  switch (dtype) {
    case KT_CPU_FLOAT32: return 4;
    case KT_CPU_FLOAT16:
    case KT_CPU_BFLOAT16: return 2;
    default: return 0;
  }
}

int kt_check_rows(const struct kt_cpu_rows *rows, int64_t tokens, int64_t cols) {
  const int64_t size = kt_dtype_bytes(rows->dtype);
  if (size == 0) return KT_CPU_TYPE;
  if (tokens < 0 || tokens > MOST) return KT_CPU_SHAPE;
  if (tokens == 0) return KT_CPU_OK;
  if (rows->data == NULL || (uintptr_t)rows->data % (uintptr_t)size != 0) return KT_CPU_ARGUMENT;
  if (tokens > 1 && (rows->row_bytes < cols * size || rows->row_bytes % size != 0 || rows->row_bytes > MOST * 16))
    return KT_CPU_ARGUMENT;
  return KT_CPU_OK;
}
