#include "core/types.h"

#include <stddef.h>

#include "kt_ops_cpu.h"

static const struct kt_type types[KT_TYPE_SLOTS] = {
    [KT_CPU_F32] = {"F32", 1, 4, KT_FAMILY_FLOAT, 0, 0},
    [KT_CPU_F16] = {"F16", 1, 2, KT_FAMILY_FLOAT, 0, 0},
    [KT_CPU_BF16] = {"BF16", 1, 2, KT_FAMILY_BF16, 0, 0},
    [KT_CPU_Q4_0] = {"Q4_0", 32, 18, KT_FAMILY_B32, 0, 0},
    [KT_CPU_Q4_1] = {"Q4_1", 32, 20, KT_FAMILY_B32_MIN, 0, 0},
    [KT_CPU_Q5_0] = {"Q5_0", 32, 22, KT_FAMILY_B32, 0, 0},
    [KT_CPU_Q5_1] = {"Q5_1", 32, 24, KT_FAMILY_B32_MIN, 0, 0},
    [KT_CPU_Q8_0] = {"Q8_0", 32, 34, KT_FAMILY_B32, 0, 0},
    [KT_CPU_IQ4_NL] = {"IQ4_NL", 32, 18, KT_FAMILY_B32, 0, 0},
    [KT_CPU_MXFP4] = {"MXFP4", 32, 17, KT_FAMILY_B32, 0, 0},
    [KT_CPU_Q2_K] = {"Q2_K", 256, 84, KT_FAMILY_K16_MIN, 0, 0},
    [KT_CPU_Q3_K] = {"Q3_K", 256, 110, KT_FAMILY_K16, 0, 0},
    [KT_CPU_Q4_K] = {"Q4_K", 256, 144, KT_FAMILY_K32_MIN, 0, 0},
    [KT_CPU_Q5_K] = {"Q5_K", 256, 176, KT_FAMILY_K32_MIN, 0, 0},
    [KT_CPU_Q6_K] = {"Q6_K", 256, 210, KT_FAMILY_K16, 0, 0},
    [KT_CPU_IQ4_XS] = {"IQ4_XS", 256, 136, KT_FAMILY_K32, 0, 0},
    [KT_CPU_IQ1_S] = {"IQ1_S", 256, 50, KT_FAMILY_K32, 2048, 8},
    [KT_CPU_IQ1_M] = {"IQ1_M", 256, 56, KT_FAMILY_K16, 2048, 8},
    [KT_CPU_IQ2_XXS] = {"IQ2_XXS", 256, 66, KT_FAMILY_K32, 256, 8},
    [KT_CPU_IQ2_XS] = {"IQ2_XS", 256, 74, KT_FAMILY_K16, 512, 8},
    [KT_CPU_IQ2_S] = {"IQ2_S", 256, 82, KT_FAMILY_K16, 1024, 8},
    [KT_CPU_IQ3_XXS] = {"IQ3_XXS", 256, 98, KT_FAMILY_K32, 256, 4},
    [KT_CPU_IQ3_S] = {"IQ3_S", 256, 110, KT_FAMILY_K32, 512, 4},
};

const struct kt_type *kt_type_find(int number) {
  if (number < 0 || number >= KT_TYPE_SLOTS || types[number].name == NULL) return NULL;
  return &types[number];
}

int64_t kt_cpu_block_values(int type) {
  const struct kt_type *found = kt_type_find(type);
  return found ? found->block_values : 0;
}

int64_t kt_cpu_block_bytes(int type) {
  const struct kt_type *found = kt_type_find(type);
  return found ? found->block_bytes : 0;
}
