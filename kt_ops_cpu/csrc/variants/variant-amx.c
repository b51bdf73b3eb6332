/* The AMX-INT8 variant: AVX-512 throughout, but for products with many tokens. An empty table where the
 * compiler cannot target it. */
#include "core/kernels.h"

#if defined(__AMX_INT8__)

#include "dot/dot-avx512.h"

#include "dot/dot-amx.h"
#include "panels/panel-plain.h"
#include "panels/panel.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON,
                                        KT_TABLE_DOT(amx),
                                        KT_TABLE_PANELS,
                                        .gemv = kt_gemv_avx512,
                                        .dot_tokens = 2 * KT_AMX_TOKENS,
                                        .begin = kt_amx_begin,
                                        .end = kt_amx_end};

const struct kt_kernels *const kt_kernels_amx = &table;

#else

const struct kt_kernels *const kt_kernels_amx = 0;

#endif
