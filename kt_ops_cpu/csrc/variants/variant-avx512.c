/* The AVX-512 VNNI variant. An empty table where the compiler cannot target it. */
#include "core/kernels.h"

/* This file is compiled with and without AVX512_BF16; core/isa.c takes what the CPU has. */
#if defined(__AVX512BF16__) || defined(KT_NO_BF16)
#define KT_NAME kt_kernels_avx512_bf16
#else
#define KT_NAME kt_kernels_avx512
#endif

#if defined(__AVX512VNNI__)

#include "dot/dot-avx512.h"
#if defined(__AVX512BF16__)
#include "dot/dot-bf16.h"
#endif
#include "panels/panel-plain.h"
#include "panels/panel.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON,
                                        KT_TABLE_DOT(avx512),
                                        KT_TABLE_PANELS,
                                        .dot_tokens = 12,
                                        .gemv = kt_gemv_avx512, .gemv_tokens = 4};

const struct kt_kernels *const KT_NAME = &table;

#else

const struct kt_kernels *const KT_NAME = 0;

#endif
