/* Fill a variant's table from the sources that it has included. */
#ifndef KT_TABLE_H
#define KT_TABLE_H

#include "core/kernels.h"
#include "variants/elementwise.h"
#include "variants/limits.h"
#include "variants/step.h"
#include "variants/x-quantize.h"

/* How a variant computes with bfloat16 weights: in float32, unless it has its own way. */
#if defined(KT_DOT_BF16_H)
#define KT_X_BF16_OF kt_x_bf16_pairs
#define KT_X_SPLIT_BF16_OF kt_x_split_bf16_pairs
#define KT_PANEL_BF16 kt_panel_bf16_pairs
#define KT_DOT_BF16(isa) kt_dot_bf16_avx512
#else
#define KT_X_BF16_OF kt_x_bf16
#define KT_X_SPLIT_BF16_OF kt_x_split_bf16
#define KT_PANEL_BF16 kt_panel_bf16
#define KT_DOT_BF16(isa) kt_dot_float_##isa
#endif

/* The entries that are compiled from the same source for every variant. */
#define KT_TABLE_COMMON                                                                        \
  .x = {[KT_X_Q8_256] = kt_x_q8_256, [KT_X_Q8_32] = kt_x_q8_32, [KT_X_F32] = kt_x_f32,         \
        [KT_X_BF16] = KT_X_BF16_OF},                                                         \
  .x_split = {[KT_X_Q8_256] = kt_x_split_256, [KT_X_Q8_32] = kt_x_split_32,                    \
              [KT_X_BF16] = KT_X_SPLIT_BF16_OF},                                               \
  KT_TABLE_STEP,                                                                            \
  .glu = kt_glu, .axpy = kt_axpy, .store = kt_store, .read = kt_read, .peak = kt_peak,         \
  .peak_operations = KT_PEAK_OPERATIONS

#define KT_TABLE_DOT(isa)                                                                      \
  .dot = {[KT_FAMILY_K32] = kt_dot_k32_##isa,                                                  \
          [KT_FAMILY_K32_MIN] = kt_dot_k32_min_##isa,                                          \
          [KT_FAMILY_K16] = kt_dot_k16_##isa,                                                  \
          [KT_FAMILY_K16_MIN] = kt_dot_k16_min_##isa,                                          \
          [KT_FAMILY_B32] = kt_dot_b32_##isa,                                                  \
          [KT_FAMILY_B32_MIN] = kt_dot_b32_min_##isa,                                          \
          [KT_FAMILY_FLOAT] = kt_dot_float_##isa,                                              \
          [KT_FAMILY_BF16] = KT_DOT_BF16(isa)}

/* Panels unpacked across rows, where such a source exists, and row by row for the rest. */
#define KT_TABLE_PANELS                                                                        \
  .panel = {[KT_CPU_F32] = kt_panel_f32,        [KT_CPU_F16] = kt_panel_f16,                   \
            [KT_CPU_BF16] = KT_PANEL_BF16,      [KT_CPU_Q4_0] = kt_panel_q4_0,                 \
            [KT_CPU_Q4_1] = kt_panel_q4_1,      [KT_CPU_Q5_0] = kt_panel_q5_0,                 \
            [KT_CPU_Q5_1] = kt_panel_q5_1,      [KT_CPU_Q8_0] = kt_panel_q8_0,                 \
            [KT_CPU_IQ4_NL] = kt_panel_iq4_nl,  [KT_CPU_MXFP4] = kt_panel_mxfp4,               \
            [KT_CPU_Q2_K] = kt_panel_q2_k,      [KT_CPU_Q3_K] = kt_panel_q3_k,                 \
            [KT_CPU_Q4_K] = kt_panel_q4_k,      [KT_CPU_Q5_K] = kt_panel_q5_k,                 \
            [KT_CPU_Q6_K] = kt_panel_q6_k,      [KT_CPU_IQ4_XS] = kt_panel_iq4_xs,             \
            [KT_CPU_IQ1_S] = kt_panel_rows_iq1_s, [KT_CPU_IQ1_M] = kt_panel_rows_iq1_m,        \
            [KT_CPU_IQ2_XXS] = kt_panel_rows_iq2_xxs, [KT_CPU_IQ2_XS] = kt_panel_rows_iq2_xs,  \
            [KT_CPU_IQ2_S] = kt_panel_rows_iq2_s, [KT_CPU_IQ3_XXS] = kt_panel_rows_iq3_xxs,    \
            [KT_CPU_IQ3_S] = kt_panel_rows_iq3_s}

#endif
