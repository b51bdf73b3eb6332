/* The C interface of kt-ops-cpu: linears and MoE experts on packed GGUF blocks.
 *
 * Nothing here knows Python or torch. Every function returns a kt_cpu_status (or a plain number where
 * it cannot fail); none aborts, prints or throws. Arguments are checked before anything is read. Calls
 * may come from several threads: they take turns, because the worker pool and its scratch memory are
 * one per process. Weights are only ever read, byte-aligned, and never past their last row.
 *
 * This file is also what the Python binding is generated from, so it holds declarations only between
 * the two markers below: no macros, no includes.
 */
#ifndef KT_OPS_CPU_H
#define KT_OPS_CPU_H

#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* binding: begin */

/* Raised whenever a struct or a signature below changes. */
int kt_cpu_abi_version(void);

enum kt_cpu_status {
  KT_CPU_OK = 0,
  KT_CPU_ARGUMENT = 1,  /* a null pointer, a negative count, a stride that is too short */
  KT_CPU_TYPE = 2,      /* a weight or activation type that is not known here */
  KT_CPU_SHAPE = 3,     /* a row that is not a whole number of blocks, sizes that overflow */
  KT_CPU_EXPERT_ID = 4, /* an expert id other than -1 outside [0, experts) */
  KT_CPU_MEMORY = 5,    /* scratch memory could not be had */
  KT_CPU_VARIANT = 6,     /* the variant does not exist or this CPU cannot run it */
  KT_CPU_THREADS = 7,   /* a worker thread could not be started */
  KT_CPU_CANCELLED = 8, /* kt_cpu_cancel() was called; the output is incomplete */
  KT_CPU_CODEBOOK = 9   /* an IQ type whose codebook has not been set */
};

/* One sentence for a status; never null. */
const char *kt_cpu_status_text(int status);

/* --- variants ------------------------------------------------------------------------------- */

enum kt_cpu_isa {
  KT_CPU_ISA_C = 0,      /* plain C, any CPU */
  KT_CPU_ISA_AVX2 = 1,   /* AVX2, FMA, F16C */
  KT_CPU_ISA_AVX512 = 2, /* AVX-512 F, BW, DQ, VL, VNNI */
  KT_CPU_ISA_AMX = 3,    /* the above with AMX-INT8 for larger batches */
  KT_CPU_ISA_COUNT = 4
};

/* "c", "avx2", "avx512", "amx"; null for anything else. */
const char *kt_cpu_isa_name(int isa);
/* 1 if this build holds the variant. */
int kt_cpu_isa_built(int isa);
/* The best variant that is built, that the CPU has and that the operating system has switched on. */
int kt_cpu_isa_best(void);
/* The variant in use; the best one until kt_cpu_isa_set() lowers it. */
int kt_cpu_isa_current(void);
/* Use a variant from now on. KT_CPU_VARIANT if this CPU cannot run it. */
int kt_cpu_isa_set(int isa);

/* --- threads -------------------------------------------------------------------------------- */

/* Threads that compute, the caller included, and where they stand. `node_of_thread` gives each thread a
 * node in [0, nodes); experts are split over the nodes by width. `cpus` lists the CPUs of node n at
 * [cpu_start[n], cpu_start[n + 1]); workers are kept to their node's CPUs. Either of the two may be
 * null: no pinning. The pool starts with the first call that needs it. */
struct kt_cpu_placement {
  int32_t threads;
  int32_t nodes;
  const int32_t *node_of_thread;
  const int32_t *cpu_start;
  const int32_t *cpus;
  int32_t spin_us; /* how long an idle worker looks for work before it sleeps */
};

int kt_cpu_pool_set(const struct kt_cpu_placement *placement);
/* Threads the pool is set to; 1 before kt_cpu_pool_set(). */
int kt_cpu_pool_threads(void);
/* Ask the calls that are running to stop at the next task: they return KT_CPU_CANCELLED. */
void kt_cpu_cancel(void);
/* Bytes of scratch memory held between calls, and the way to give them back. */
int64_t kt_cpu_scratch_bytes(void);
void kt_cpu_scratch_free(void);

/* --- weights -------------------------------------------------------------------------------- */

/* Types are GGML's numbers. */
enum kt_cpu_type {
  KT_CPU_F32 = 0,
  KT_CPU_F16 = 1,
  KT_CPU_Q4_0 = 2,
  KT_CPU_Q4_1 = 3,
  KT_CPU_Q5_0 = 6,
  KT_CPU_Q5_1 = 7,
  KT_CPU_Q8_0 = 8,
  KT_CPU_Q2_K = 10,
  KT_CPU_Q3_K = 11,
  KT_CPU_Q4_K = 12,
  KT_CPU_Q5_K = 13,
  KT_CPU_Q6_K = 14,
  KT_CPU_IQ2_XXS = 16,
  KT_CPU_IQ2_XS = 17,
  KT_CPU_IQ3_XXS = 18,
  KT_CPU_IQ1_S = 19,
  KT_CPU_IQ4_NL = 20,
  KT_CPU_IQ3_S = 21,
  KT_CPU_IQ2_S = 22,
  KT_CPU_IQ4_XS = 23,
  KT_CPU_IQ1_M = 29,
  KT_CPU_BF16 = 30,
  KT_CPU_MXFP4 = 39
};

/* Values per block and bytes per block; 0 for a type that is not known here. */
int64_t kt_cpu_block_values(int type);
int64_t kt_cpu_block_bytes(int type);

/* The values an IQ type's indices stand for, `count` signed bytes in index order (256 x 8 for IQ2_XXS,
 * 512 x 8 IQ2_XS, 1024 x 8 IQ2_S, 256 x 4 IQ3_XXS, 512 x 4 IQ3_S, 2048 x 8 IQ1_S, which IQ1_M shares).
 * They are copied. */
int kt_cpu_codebook_set(int type, const int8_t *values, int64_t count);

/* A matrix of `rows` x `cols` values; row r starts at data + r * row_bytes. */
struct kt_cpu_matrix {
  const void *data;
  int64_t rows;
  int64_t cols;
  int64_t row_bytes;
  int32_t type;
};

/* Unpack to float32, rows x cols, on the calling thread: what the kernels compute with, for checks. */
int kt_cpu_dequantize(const struct kt_cpu_matrix *weight, float *out);

/* --- activations ---------------------------------------------------------------------------- */

enum kt_cpu_dtype { KT_CPU_FLOAT32 = 0, KT_CPU_FLOAT16 = 1, KT_CPU_BFLOAT16 = 2 };

/* Row t starts at data + t * row_bytes; the values of a row are contiguous. */
struct kt_cpu_rows {
  void *data;
  int64_t row_bytes;
  int32_t dtype;
};

/* --- kernels -------------------------------------------------------------------------------- */

/* y[t, n] = sum_k x[t, k] * weight[n, k] + bias[n]; bias may be null. */
struct kt_cpu_linear {
  struct kt_cpu_matrix weight;
  const float *bias;
  struct kt_cpu_rows x;
  struct kt_cpu_rows y;
  int64_t tokens;
  /* Nonzero: activations in two terms of 8 bits, for twice the arithmetic, and weights exactly as they are:
   * no variant rounds them. */
  int split;
};

int kt_cpu_linear(const struct kt_cpu_linear *call);

enum kt_cpu_act {
  KT_CPU_ACT_SILU = 0,
  KT_CPU_ACT_GELU = 1,
  KT_CPU_ACT_GELU_TANH = 2,
  KT_CPU_ACT_SWIGLU_OAI = 3,
  KT_CPU_ACT_RELU = 4
};

/* One layer's experts. gate, up and down hold one data pointer per expert; gate_shape and up_shape are
 * intermediate x hidden, down_shape is hidden x intermediate (their data fields are not read). Biases
 * are experts x intermediate and experts x hidden, or null. */
struct kt_cpu_experts_layer {
  int64_t experts;
  struct kt_cpu_matrix gate_shape;
  struct kt_cpu_matrix up_shape;
  struct kt_cpu_matrix down_shape;
  const void *const *gate;
  const void *const *up;
  const void *const *down;
  const float *gate_bias;
  const float *up_bias;
  const float *down_bias;
  int32_t act;
  float alpha;
  float limit;
};

/* y[t] = sum_j weights[t, j] * expert(ids[t, j])(x[t]); an id of -1 adds nothing. ids and weights are
 * contiguous tokens x top_k. All ids are checked before y is touched. */
struct kt_cpu_experts {
  const struct kt_cpu_experts_layer *layer;
  struct kt_cpu_rows x;
  struct kt_cpu_rows y;
  const int64_t *ids;
  const float *weights;
  int64_t tokens;
  int64_t top_k;
  int split; /* as in kt_cpu_linear, for all three products */
};

int kt_cpu_experts(const struct kt_cpu_experts *call);

/* --- around the products of a decode step ---------------------------------------------------- */

/* y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * (offset + weight), summed in float32. Where `residual` has data,
 * x + residual is what is normalised, and is written to `sum`. All have the dtype of x. */
struct kt_cpu_norm {
  struct kt_cpu_rows x;
  struct kt_cpu_rows residual;
  struct kt_cpu_rows sum;
  struct kt_cpu_rows y;
  const void *weight;
  int64_t rows;
  int64_t cols;
  float eps;
  float offset;
};

int kt_cpu_norm(const struct kt_cpu_norm *call);

/* One token's attention. Normalises the heads of q and k (where weights are given), rotates their first
 * `rotary` values by halves, writes key and value number `position` of the cache, and attends to the last
 * `window` of its tokens (0: all). Query head i reads key head i / (q_heads / kv_heads). Everything has the
 * same dtype; token p of key head h starts at keys + h * head_bytes + p * token_bytes, values likewise. */
struct kt_cpu_attend {
  const void *q; /* q_heads x head_dim */
  const void *k; /* kv_heads x head_dim */
  const void *v;
  const void *cosine; /* rotary */
  const void *sine;
  const void *q_weight; /* head_dim, or null */
  const void *k_weight;
  void *keys;
  void *values;
  void *y; /* q_heads x head_dim */
  int64_t head_bytes;
  int64_t token_bytes;
  int64_t position;
  int64_t window;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t rotary;
  int32_t dtype;
  float eps;
  float scale;
};

int kt_cpu_attend(const struct kt_cpu_attend *call);

/* Of each row of float32 logits, the top_k largest of its softmax, largest first, divided by their sum if
 * `normalize`. Scores have a dtype of their own. A row with fewer than top_k numbers gets ids of -1 and
 * scores that are not numbers in the places left over. */
struct kt_cpu_choose {
  const float *logits; /* tokens x experts */
  struct kt_cpu_rows scores;
  int64_t *ids; /* tokens x top_k */
  int64_t tokens;
  int64_t experts;
  int64_t top_k;
  int32_t normalize;
};

int kt_cpu_choose(const struct kt_cpu_choose *call);

/* --- measuring ------------------------------------------------------------------------------ */

/* What the machine can do with the pool's threads and the current variant: GB/s at which they read
 * `bytes` of memory (at least 1 MiB; far more than the caches hold, to mean anything), and 10^9 integer
 * operations per second of the instruction that the vector kernels multiply with (a multiplication and
 * an addition count as two; 0 for plain C). Best of `runs`. */
int kt_cpu_measure(int64_t bytes, int32_t runs, double *read_gb_per_s, double *int8_gops);

/* binding: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
