/* The AVX2 variant. An empty table where the compiler cannot target it. */
#include "core/kernels.h"

#if defined(__AVX2__)

#include "dot/dot-avx2.h"
#include "panels/panel-plain.h"
#include "panels/panel.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON,
                                        KT_TABLE_DOT(avx2),
                                        KT_TABLE_PANELS,
                                        .dot_tokens = 8,
                                        .gemv = kt_gemv_avx2, .gemv_tokens = 2};

const struct kt_kernels *const kt_kernels_avx2 = &table;

#else

const struct kt_kernels *const kt_kernels_avx2 = 0;

#endif
