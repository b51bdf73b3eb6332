/* The plain variant: every format through its row function, every sum a loop. */
#include "dot/dot-c.h"
#include "panels/panel-plain.h"
#include "variants/table.h"

KT_PANEL_ROWS_OF(q4_0, 32, 18, 32, 0)
KT_PANEL_ROWS_OF(q4_1, 32, 20, 32, 1)
KT_PANEL_ROWS_OF(q5_0, 32, 22, 32, 0)
KT_PANEL_ROWS_OF(q5_1, 32, 24, 32, 1)
KT_PANEL_ROWS_OF(q8_0, 32, 34, 32, 0)
KT_PANEL_ROWS_OF(iq4_nl, 32, 18, 32, 0)
KT_PANEL_ROWS_OF(mxfp4, 32, 17, 32, 0)
KT_PANEL_ROWS_OF(q2_k, 256, 84, 16, 1)
KT_PANEL_ROWS_OF(q3_k, 256, 110, 16, 0)
KT_PANEL_ROWS_OF(q4_k, 256, 144, 32, 1)
KT_PANEL_ROWS_OF(q5_k, 256, 176, 32, 1)
KT_PANEL_ROWS_OF(q6_k, 256, 210, 16, 0)
KT_PANEL_ROWS_OF(iq4_xs, 256, 136, 32, 0)

static const struct kt_kernels table = {
    KT_TABLE_COMMON,
    KT_TABLE_DOT(c),
    .dot_tokens = 8,
    .panel = {[KT_CPU_F32] = kt_panel_f32,
              [KT_CPU_F16] = kt_panel_f16,
              [KT_CPU_BF16] = kt_panel_bf16,
              [KT_CPU_Q4_0] = kt_panel_rows_q4_0,
              [KT_CPU_Q4_1] = kt_panel_rows_q4_1,
              [KT_CPU_Q5_0] = kt_panel_rows_q5_0,
              [KT_CPU_Q5_1] = kt_panel_rows_q5_1,
              [KT_CPU_Q8_0] = kt_panel_rows_q8_0,
              [KT_CPU_IQ4_NL] = kt_panel_rows_iq4_nl,
              [KT_CPU_MXFP4] = kt_panel_rows_mxfp4,
              [KT_CPU_Q2_K] = kt_panel_rows_q2_k,
              [KT_CPU_Q3_K] = kt_panel_rows_q3_k,
              [KT_CPU_Q4_K] = kt_panel_rows_q4_k,
              [KT_CPU_Q5_K] = kt_panel_rows_q5_k,
              [KT_CPU_Q6_K] = kt_panel_rows_q6_k,
              [KT_CPU_IQ4_XS] = kt_panel_rows_iq4_xs,
              [KT_CPU_IQ1_S] = kt_panel_rows_iq1_s,
              [KT_CPU_IQ1_M] = kt_panel_rows_iq1_m,
              [KT_CPU_IQ2_XXS] = kt_panel_rows_iq2_xxs,
              [KT_CPU_IQ2_XS] = kt_panel_rows_iq2_xs,
              [KT_CPU_IQ2_S] = kt_panel_rows_iq2_s,
              [KT_CPU_IQ3_XXS] = kt_panel_rows_iq3_xxs,
              [KT_CPU_IQ3_S] = kt_panel_rows_iq3_s},
};

const struct kt_kernels *const kt_kernels_c = &table;
