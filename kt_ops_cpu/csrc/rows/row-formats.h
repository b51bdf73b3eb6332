/* One block of every quantised type, unpacked in plain C: the reference of the formats.
 *
 * Each function fills q with signed integers and one scale and minimum per group of its family, so
 * that value k is scale[k / group] * q[k] + min[k / group]. Types without a minimum leave min alone.
 */
#ifndef KT_ROW_FORMATS_H
#define KT_ROW_FORMATS_H

#include "rows/row-blocks.h"
#include "rows/row-iq.h"
#include "rows/row-k.h"

typedef void kt_row_fn(const uint8_t *block, int8_t *q, float *scale, float *min);

static inline kt_row_fn *kt_row_find(int type) {
  switch (type) {
    case KT_CPU_Q4_0: return kt_row_q4_0;
    case KT_CPU_Q4_1: return kt_row_q4_1;
    case KT_CPU_Q5_0: return kt_row_q5_0;
    case KT_CPU_Q5_1: return kt_row_q5_1;
    case KT_CPU_Q8_0: return kt_row_q8_0;
    case KT_CPU_IQ4_NL: return kt_row_iq4_nl;
    case KT_CPU_MXFP4: return kt_row_mxfp4;
    case KT_CPU_Q2_K: return kt_row_q2_k;
    case KT_CPU_Q3_K: return kt_row_q3_k;
    case KT_CPU_Q4_K: return kt_row_q4_k;
    case KT_CPU_Q5_K: return kt_row_q5_k;
    case KT_CPU_Q6_K: return kt_row_q6_k;
    case KT_CPU_IQ4_XS: return kt_row_iq4_xs;
    case KT_CPU_IQ1_S: return kt_row_iq1_s;
    case KT_CPU_IQ1_M: return kt_row_iq1_m;
    case KT_CPU_IQ2_XXS: return kt_row_iq2_xxs;
    case KT_CPU_IQ2_XS: return kt_row_iq2_xs;
    case KT_CPU_IQ2_S: return kt_row_iq2_s;
    case KT_CPU_IQ3_XXS: return kt_row_iq3_xxs;
    case KT_CPU_IQ3_S: return kt_row_iq3_s;
    default: return NULL;
  }
}

#endif
