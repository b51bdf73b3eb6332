/* The C interface of the library: raw device pointers, a stream, plain numbers.
 *
 * Every function returns 0, a positive cudaError_t, or a negative KT_BAD_*; nothing throws, nothing
 * allocates device memory, nothing synchronises. Arguments are the caller's promise: pointers belong
 * to `device`, strides and shapes are true. */
#ifndef KT_OPS_CUDA_H
#define KT_OPS_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KT_OPS_CUDA_ABI 2
#define KT_EXPORT __attribute__((visibility("default")))

/* Packed weight formats; formats.cuh holds their layout. */
#define KT_W4_G128 0
#define KT_W4_G128_OFFSET 1
#define KT_W4_G32_OFFSET 2
#define KT_Q4_K 3
#define KT_W8_G128 4
#define KT_W8_G32 5
#define KT_Q5_K 6
#define KT_Q6_K 7
#define KT_IQ4_XS 8
#define KT_MXFP4 9

/* Activation dtypes. */
#define KT_F16 0
#define KT_BF16 1
#define KT_F32 2 /* routing weights only */

/* What follows the product. Gated ones pair row i of a block of 64 with row i + 32. */
#define KT_NONE 0
#define KT_SILU 1
#define KT_GELU 2
#define KT_GELU_TANH 3
#define KT_SWIGLU_OAI 4
#define KT_RELU 5

#define KT_BAD_FORMAT (-1)
#define KT_BAD_DTYPE (-2)
#define KT_BAD_SHAPE (-3)
#define KT_BAD_TILE (-4)
#define KT_NO_CODE (-5)

/* y[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for the rows of `x` that a tile names.
 * Without `tiles` all `tokens` rows are taken in order. With them, tile i is {expert, start, count, 0}
 * and covers sorted positions start .. start + count; position p reads row rows_in[p] of x and writes
 * row rows_out[p] of y. Blocks behind *tile_count return at once, so a graph can be launched for
 * `max_tiles`. With `ids`, tile i is the single pair (token i / ids_per_token, expert ids[i]), row i of
 * y; ids outside [0, experts) are skipped. `ids_per_token` 0 reads row i of x. Rows of x must be 16-byte aligned. `bias` is in the order of the packed rows and padded
 * like them to whole blocks of 64. */
typedef struct kt_matmul {
    const void *weights;
    const void *x;
    void *y;
    const float *bias;
    const int32_t *tiles;
    const int32_t *tile_count;
    const int32_t *rows_in;
    const int32_t *rows_out;
    const int64_t *ids;
    void *scratch;        /* kt_matmul_scratch() bytes, 16-byte aligned, holding anything */
    uint64_t ticket;      /* a random number, new for every call (a graph's replays may share one) */
    int64_t x_stride;     /* elements */
    int64_t y_stride;     /* elements */
    int64_t expert_bytes; /* from one expert's weights to the next's */
    int64_t bias_stride;  /* floats, from one expert's bias to the next's */
    int32_t max_tiles;
    int32_t ids_per_token;
    int32_t experts;
    int32_t tokens;
    int32_t out_features; /* rows of the weights, before padding to 64 */
    int32_t in_features;  /* before padding to 128 */
    int32_t format;
    int32_t dtype;
    int32_t activation;
    int32_t columns; /* of y where that is not out_features (half of it when gated); 0: that */
    float alpha;
    float limit;
    int32_t tile_tokens; /* 8, 16, 32: mma; 64, 128, 256: wgmma; 0: chosen from the shape */
    int32_t split;       /* blocks that share one output tile along K: 1, 2, 4 or 8, or on a
                            persistent grid 1 to 16 or -1, all tiles' K steps in equal shares
                            ("stream-K"); 0: chosen */
    int32_t stages;      /* mma only; 0: chosen */
    int32_t rows;        /* output rows of a block: mma 64 or 128, a persistent grid 256 or 384; 0: chosen */
    int32_t warps;       /* of a block, mma only: 4 or 8; 0: chosen */
    int32_t device;
    int32_t early;     /* 1: tiles and ids were complete before the previous kernel could start */
    int32_t dependent; /* 1: may start before the previous kernel of the stream has ended */
} kt_matmul;

KT_EXPORT int kt_matmul_run(const kt_matmul *arguments, void *stream);
/* Bytes of scratch kt_matmul_run needs for these arguments (pointers are not read), or a negated error. */
KT_EXPORT int64_t kt_matmul_scratch(const kt_matmul *arguments);
/* The tile kt_matmul_run would choose for so many tokens on `device`. */
KT_EXPORT int kt_matmul_tile(int32_t tokens, int32_t device);

/* Sorts `pairs` = tokens * top_k expert ids into tiles of at most tile_tokens for kt_matmul. Id -1 is
 * skipped; any other outside [0, experts) is skipped too and sets *bad_id. `tiles` has room for
 * min(pairs, experts + pairs / tile_tokens) times 4. position[pair] is -1 for skipped pairs. */
typedef struct kt_route {
    const int64_t *ids;
    int32_t *tiles;
    int32_t *tile_count;
    int32_t *rows_in;
    int32_t *position;
    int32_t *bad_id;
    int32_t pairs;
    int32_t top_k;
    int32_t experts; /* at most 2048 */
    int32_t tile_tokens;
    int32_t device;
} kt_route;

KT_EXPORT int kt_route_run(const kt_route *arguments, void *stream);

/* y[t] = sum over slots of weights[t, slot] * rows[position[t, slot]]; without `position` pair i is in
 * row i, and ids outside [0, experts) add nothing. `columns` is a multiple of 8. */
typedef struct kt_combine {
    const void *rows;
    const void *weights;
    const int32_t *position;
    const int64_t *ids;
    int32_t *bad_id;
    void *y;
    int32_t tokens;
    int32_t top_k;
    int32_t columns;
    int32_t experts;
    int32_t dtype;
    int32_t weights_dtype;
    int32_t device;
} kt_combine;

KT_EXPORT int kt_combine_run(const kt_combine *arguments, void *stream);

/* Writes a packed matrix as out_features rows of in_features values of `dtype`, contiguous. */
typedef struct kt_dequantize {
    const void *weights;
    void *y;
    int32_t out_features;
    int32_t in_features; /* a multiple of 8 */
    int32_t format;
    int32_t dtype;
    int32_t device;
} kt_dequantize;

KT_EXPORT int kt_dequantize_run(const kt_dequantize *arguments, void *stream);

KT_EXPORT int kt_abi(void);
/* Size of kt_matmul (0), kt_route (1), kt_combine (2), kt_dequantize (3): a binding's own check. */
KT_EXPORT int kt_struct_size(int which);
/* "13.0 sm_80 sm_90a ..." */
KT_EXPORT const char *kt_build(void);
KT_EXPORT const char *kt_error_string(int code);
/* Devices the driver shows, or a negated cudaError_t. Starts no context. */
KT_EXPORT int kt_device_count(void);
/* Compute capability as major * 10 + minor, or a negated cudaError_t. */
KT_EXPORT int kt_device_capability(int device);

#ifdef __cplusplus
}
#endif
#endif
