/* Root mean square norms, with the sum before them. A row is too little to share among threads, or to wake
 * the pool for. */
#include <stddef.h>
#include <stdlib.h>

#include "core/check.h"
#include "core/kernels.h"

/* float32: everything happens where it lies. */
static void plain_row(const struct kt_kernels *kernels, const struct kt_cpu_norm *call, int64_t row) {
  const int cols = (int)call->cols;
  const float *x = (const float *)((const uint8_t *)call->x.data + row * call->x.row_bytes);
  if (call->residual.data != NULL) {
    float *sum = (float *)((uint8_t *)call->sum.data + row * call->sum.row_bytes);
    kernels->store(KT_CPU_FLOAT32, x, sum, cols);
    kernels->axpy(1.0f, (const float *)((const uint8_t *)call->residual.data + row * call->residual.row_bytes),
                  sum, cols);
    x = sum;
  }
  kernels->norm(x, call->weight, call->offset, call->eps,
                (float *)((uint8_t *)call->y.data + row * call->y.row_bytes), cols);
}

static void narrow_row(const struct kt_kernels *kernels, const struct kt_cpu_norm *call, int64_t row,
                       const float *weight, float *values, float *more) {
  const int dtype = call->x.dtype, cols = (int)call->cols;
  kernels->load(dtype, (const uint8_t *)call->x.data + row * call->x.row_bytes, values, cols);
  if (call->residual.data != NULL) {
    uint8_t *sum = (uint8_t *)call->sum.data + row * call->sum.row_bytes;
    kernels->load(dtype, (const uint8_t *)call->residual.data + row * call->residual.row_bytes, more, cols);
    kernels->axpy(1.0f, more, values, cols);
    /* Rounded as it is stored: what is normalised is what the next layer adds to. */
    kernels->store(dtype, values, sum, cols);
    kernels->load(dtype, sum, values, cols);
  }
  kernels->norm(values, weight, call->offset, call->eps, values, cols);
  kernels->store(dtype, values, (uint8_t *)call->y.data + row * call->y.row_bytes, cols);
}

int kt_cpu_norm(const struct kt_cpu_norm *call) {
  if (call == NULL) return KT_CPU_ARGUMENT;
  int status = kt_check_rows(&call->x, call->rows, call->cols);
  if (status == KT_CPU_OK) status = kt_check_rows(&call->y, call->rows, call->cols);
  if (status == KT_CPU_OK && call->residual.data != NULL) {
    status = kt_check_rows(&call->residual, call->rows, call->cols);
    if (status == KT_CPU_OK) status = kt_check_rows(&call->sum, call->rows, call->cols);
  }
  if (status != KT_CPU_OK || call->rows == 0) return status;
  const int dtype = call->x.dtype;
  if (call->y.dtype != dtype ||
      (call->residual.data != NULL && (call->residual.dtype != dtype || call->sum.dtype != dtype)))
    return KT_CPU_TYPE;
  if (call->weight == NULL || call->cols < 1) return KT_CPU_ARGUMENT;
  const struct kt_kernels *kernels = kt_kernels_current();
  if (call->x.dtype == KT_CPU_FLOAT32) {
    for (int64_t row = 0; row < call->rows; row++) plain_row(kernels, call, row);
    return KT_CPU_OK;
  }
  float *scratch = malloc((size_t)call->cols * 3 * sizeof(float));
  if (scratch == NULL) return KT_CPU_MEMORY;
  kernels->load(call->x.dtype, call->weight, scratch, (int)call->cols);
  for (int64_t row = 0; row < call->rows; row++)
    narrow_row(kernels, call, row, scratch, scratch + call->cols, scratch + 2 * call->cols);
  free(scratch);
  return KT_CPU_OK;
}
