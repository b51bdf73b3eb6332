/* Checks of what callers hand over. Each returns a kt_cpu_status. */
#ifndef KT_CHECK_H
#define KT_CHECK_H

#include "core/strip.h"
#include "kt_ops_cpu.h"

/* A matrix; its data pointer is checked only if `with_data`. Fills `out`. */
int kt_check_matrix(const struct kt_cpu_matrix *matrix, int with_data, struct kt_weight *out);

/* Rows of `cols` activations. */
int kt_check_rows(const struct kt_cpu_rows *rows, int64_t tokens, int64_t cols);

int64_t kt_dtype_bytes(int dtype); /* 0: no such type */

#endif
