/* Where unpacked values go when a panel in memory is wanted. */
#ifndef KT_PANEL_PUT_H
#define KT_PANEL_PUT_H

#include "panels/lanes.h"

#define KT_OUT struct kt_panel

/* Store values 4 k4 .. 4 k4 + 3 of the rows that start at `row`. */
KT_INLINE void kt_put(struct kt_panel *out, int k4, int row, kt_vu v) {
  *(kt_vu_any *)out->q[k4][row] = v;
}

KT_INLINE void kt_put_scale(struct kt_panel *out, int group, int row, kt_vf v) {
  *(kt_vu_any *)&out->scale[group][row] = (kt_vu)v;
}

/* The minimum itself goes in; the panel holds it times -1/128. */
KT_INLINE void kt_put_min(struct kt_panel *out, int group, int row, kt_vf v) {
  *(kt_vu_any *)&out->min[group][row] = (kt_vu)(v * -0.0078125f);
}

#endif
