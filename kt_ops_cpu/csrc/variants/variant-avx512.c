/* The AVX-512 VNNI variant. An empty table where the compiler cannot target it. */
#include "core/kernels.h"

#if defined(__AVX512VNNI__)

#include "dot/dot-avx512.h"
#include "panels/panel-plain.h"
#include "panels/panel.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON,
                                        KT_TABLE_DOT(avx512),
                                        KT_TABLE_PANELS,
                                        .dot_tokens = 12,
                                        .gemv = kt_gemv_avx512};

const struct kt_kernels *const kt_kernels_avx512 = &table;

#else

const struct kt_kernels *const kt_kernels_avx512 = 0;

#endif
