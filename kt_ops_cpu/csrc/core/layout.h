/* The two layouts that kernels meet in: activation blocks and weight panels.
 *
 * Both cover KT_STEP values of K. A panel holds 16 weight rows, interleaved so that one 64-byte vector
 * holds four consecutive values of each row: that is what vpdpbusd and the AMX tiles multiply by four
 * broadcast activation bytes. */
#ifndef KT_LAYOUT_H
#define KT_LAYOUT_H

#include <stdint.h>

#include "core/types.h"

#define KT_PANEL_ROWS 16
#define KT_STRIP_PANELS 2
#define KT_STRIP_ROWS (KT_PANEL_ROWS * KT_STRIP_PANELS)

/* KT_STEP activations as signed bytes. A row that holds a NaN or an infinity has scale NaN and q 0.
 * corrN[g] is -128 times the sum of q over group g of N values: it takes the bias of 128 back off
 * the biased weights, and (times -1/128) it is what a minimum is multiplied by. */
struct kt_xq8 {
  int8_t q[KT_STEP];
  int32_t corr16[KT_STEP / 16];
  int32_t corr32[KT_STEP / 32];
  float scale[KT_STEP / 32]; /* all equal for KT_X_Q8_256 */
} __attribute__((aligned(64)));

/* Blocks behind the last one of an array that kernels may read, though they make no use of them. */
#define KT_X_SPARE 16

/* KT_STEP activations as they are, zero beyond the end of the row. */
struct kt_xf32 {
  float x[KT_STEP];
} __attribute__((aligned(64)));

/* 16 rows by KT_STEP values. */
struct kt_panel {
  float scale[KT_STEP / 16][KT_PANEL_ROWS]; /* [group][row] */
  float min[KT_STEP / 16][KT_PANEL_ROWS];   /* the minimum times -1/128 */
  union {
    struct {
      uint8_t q[KT_STEP / 4][KT_PANEL_ROWS][4]; /* signed families are biased by 128 */
      /* The same weights as 128 * high + low steps, for variants that want them so (kt_planes_fn). */
      int8_t high[KT_STEP / 4][KT_PANEL_ROWS][4];
      uint8_t low[KT_STEP / 4][KT_PANEL_ROWS][4];
      float step[KT_PANEL_ROWS];
    };
    float w[KT_STEP][KT_PANEL_ROWS];
    uint32_t pairs[KT_STEP / 2][KT_PANEL_ROWS]; /* two bfloat16 each */
  };
} __attribute__((aligned(64)));

static inline int64_t kt_x_block_bytes(enum kt_x_kind kind) {
  return kind == KT_X_F32 || kind == KT_X_BF16 ? (int64_t)sizeof(struct kt_xf32) : (int64_t)sizeof(struct kt_xq8);
}

#endif
