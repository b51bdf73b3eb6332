/* The AMX-INT8 variant: AVX-512 throughout, but for products with many tokens. An empty table where the
 * compiler cannot target it. */
#include "core/kernels.h"

#if defined(__AMX_INT8__) && defined(__AVX512BF16__)

#include "dot/dot-avx512.h"

#include "dot/dot-amx.h"
#include "dot/dot-bf16.h"
#include "panels/panel-plain.h"
#include "panels/panel.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON,
                                        KT_TABLE_DOT(avx512),
                                        KT_TABLE_PANELS,
                                        .gemv = kt_gemv_avx512, .gemv_tokens = 4,
                                        .planes = {[KT_FAMILY_K32] = kt_planes_k32,
                                                   [KT_FAMILY_K32_MIN] = kt_planes_k32_min,
                                                   [KT_FAMILY_K16] = kt_planes_k16,
                                                   [KT_FAMILY_K16_MIN] = kt_planes_k16_min},
                                        .dot_planes = kt_dot_planes_amx,
                                        .planes_tokens = 24, /* fewer do not pay for the planes */
                                        .dot_tokens = 96,
                                        .begin = kt_amx_begin,
                                        .end = kt_amx_end};

const struct kt_kernels *const kt_kernels_amx = &table;

#else

const struct kt_kernels *const kt_kernels_amx = 0;

#endif
