/* What surrounds the matrix products of a decode step: norms, attention over a cache, routers. The
 * conventions are those of kt_ops_cuda.h. */
#ifndef KT_DECODE_H
#define KT_DECODE_H

#include "kt_ops_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * (offset + weight). Rows are 16-byte aligned, `columns` a
 * multiple of 8. With `residual`, x + residual is what is normalised, and is written to `sum`. */
typedef struct kt_norm {
    const void *x;
    const void *residual;
    const void *weight; /* of dtype */
    void *sum;
    void *y;
    int64_t x_stride;        /* elements */
    int64_t residual_stride; /* elements */
    int32_t rows;
    int32_t columns;
    int32_t dtype;
    int32_t device;
    float eps;
    float offset;
} kt_norm;

KT_EXPORT int kt_norm_run(const kt_norm *arguments, void *stream);

/* One token's attention. Normalises the heads of q and k (if weights are given), rotates their first
 * `rotary` columns by halves, writes k and v to row *position of the cache and attends to rows
 * max(0, *position + 1 - window) .. *position. Query head i reads key head i / (q_heads / kv_heads).
 * With parts = ceil(q_heads / kv_heads / 8), `partial` holds kv_heads * parts * ceil(room / chunk) * 8 *
 * (head_dim + 2) floats and `arrived` kv_heads * parts zeros, left as zeros; both serve one call at a
 * time. `position`, the cache and the unused room (which is read and thrown away) must be the work of
 * kernels before the one that made q, k or v. */
typedef struct kt_attend {
    const void *q; /* q_heads * head_dim */
    const void *k; /* kv_heads * head_dim */
    const void *v;
    const void *cosine; /* rotary */
    const void *sine;
    const void *q_weight; /* head_dim, or null */
    const void *k_weight;
    void *keys; /* kv_heads x room x head_dim */
    void *values;
    const int64_t *position;
    void *y; /* q_heads * head_dim */
    float *partial;
    int32_t *arrived;
    int64_t head_stride; /* elements from one key head's cache to the next */
    int32_t q_heads;
    int32_t kv_heads;
    int32_t head_dim; /* 64, 128 or 256 */
    int32_t rotary;
    int32_t room;
    int32_t window; /* 0: all */
    int32_t chunk;  /* rows of the cache for a block */
    int32_t dtype;
    int32_t device;
    float eps;
    float scale;
} kt_attend;

KT_EXPORT int kt_attend_run(const kt_attend *arguments, void *stream);

/* logits[t, e] = x[t] . weight[e] in float32; softmax over the experts; the top_k largest of it, largest
 * first, divided by their sum if `normalize`. `hidden` is a multiple of 8, rows 16-byte aligned. */
typedef struct kt_router {
    const void *x;
    const void *weight; /* of dtype */
    float *logits;
    void *scores; /* of dtype */
    int64_t *ids;
    int64_t x_stride;
    int32_t tokens;
    int32_t hidden;
    int32_t experts; /* at most 1024 */
    int32_t top_k; /* at most 32 */
    int32_t normalize;
    int32_t dtype;
    int32_t device;
} kt_router;

KT_EXPORT int kt_router_run(const kt_router *arguments, void *stream);

KT_EXPORT int kt_decode_struct_size(int which);

#ifdef __cplusplus
}
#endif

#endif
