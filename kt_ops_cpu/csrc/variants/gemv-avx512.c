/* Products with one token, avx512. */
#include "core/kernels.h"

#if defined(__AVX512VNNI__)

#include "kt_ops_cpu.h"
#include "panels/gemv.h"

kt_gemv_fn *const kt_gemv_avx512[KT_TYPE_SLOTS] = KT_GEMV_TABLE;

#else

kt_gemv_fn *const kt_gemv_avx512[KT_TYPE_SLOTS] = {0};

#endif
