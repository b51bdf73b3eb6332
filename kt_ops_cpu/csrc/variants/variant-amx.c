/* The AMX-INT8 variant. An empty table where the compiler cannot target it. */
#include "core/kernels.h"

#if defined(__AMX_INT8__)

#include "dot/dot-avx512.h"
#include "panels/panel-k.h"
#include "panels/panel-plain.h"
#include "variants/table.h"

static const struct kt_kernels table = {KT_TABLE_COMMON, KT_TABLE_DOT(avx512), KT_TABLE_PANELS};

const struct kt_kernels *const kt_kernels_amx = &table;

#else

const struct kt_kernels *const kt_kernels_amx = 0;

#endif
