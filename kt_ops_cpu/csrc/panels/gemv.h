/* A few tokens: values go from the packed rows straight into dot products, without a panel in memory. */
#ifndef KT_GEMV_H
#define KT_GEMV_H

#include "core/kernels.h"
#include "panels/lanes.h"

#define KT_OUT struct kt_gemv

/* As many tokens as there are registers for. */
#define KT_GEMV_TOKENS (KT_LANES == 16 ? 4 : 2)

/* The dot products of KT_LANES rows with `tokens` tokens, over one block or step. All but the pointers are
 * constants or registers once everything is inlined. */
struct kt_gemv {
  int group, is_signed, per_32, tokens;
  int lines; /* cache lines of weights in the block or step */
  const uint8_t *ahead; /* as many lines of what comes next, `pitch` bytes apart */
  int64_t pitch;
  const struct kt_xq8 *x;
  kt_vi dot[KT_STEP / 16][KT_GEMV_TOKENS];
  kt_vf sum[KT_GEMV_TOKENS];
};

/* dot + the four products of each row's four bytes with four activations. */
#if KT_LANES == 16
typedef kt_vu kt_factor;

KT_INLINE kt_factor kt_factor_of(kt_vu w, int is_signed) {
  (void)is_signed;
  return w;
}

KT_INLINE kt_vi kt_dot4(kt_vi dot, kt_factor w, const int8_t *x, int is_signed) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  (void)is_signed;
  return (kt_vi)_mm512_dpbusd_epi32((__m512i)dot, (__m512i)w, _mm512_set1_epi32(four));
}
#else
/* See dot-avx2.h for why this cannot saturate. */
typedef struct {
  __m256i values, magnitude;
} kt_factor;

KT_INLINE kt_factor kt_factor_of(kt_vu w, int is_signed) {
  kt_factor factor = {(__m256i)w, (__m256i)w};
  if (is_signed) {
    factor.values = _mm256_xor_si256(factor.values, _mm256_set1_epi8((char)0x80));
    factor.magnitude = _mm256_abs_epi8(factor.values);
  }
  return factor;
}

KT_INLINE kt_vi kt_dot4(kt_vi dot, kt_factor w, const int8_t *x, int is_signed) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  __m256i b = _mm256_set1_epi32(four);
  if (is_signed) b = _mm256_sign_epi8(b, w.values);
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, b);
  return dot + (kt_vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#endif

/* With vpdpbusd signed weights are biased, and corr takes the bias off; without it they are signed. */
KT_INLINE int kt_is_biased(const struct kt_gemv *out) { return out->is_signed && KT_LANES == 16; }

KT_INLINE int32_t kt_corr(const struct kt_gemv *out, int t, int group) {
  return out->group == 16 ? out->x[t].corr16[group] : out->x[t].corr32[group];
}

KT_INLINE kt_vi kt_splat_int(int32_t value) { return value - (kt_vi){0}; }

/* Lines of what comes next are asked for one by one between the products: a burst of them would fill the
 * queue of misses and hold up the loads behind it. They come to the second-level cache, as in the first one they
 * would drive out what is being multiplied. */
KT_INLINE void kt_prefetch_some(const struct kt_gemv *out, int k4) {
  const int puts = out->per_32 ? 8 : KT_STEP / 4, i = k4 % puts;
#pragma GCC unroll 4
  for (int n = i * out->lines / puts; n < (i + 1) * out->lines / puts; n++)
    __builtin_prefetch(out->ahead + n * out->pitch, 0, 2);
}

KT_INLINE void kt_put(struct kt_gemv *out, int k4, int row, kt_vu v) {
  (void)row;
  kt_prefetch_some(out, k4);
  const int g = k4 * 4 / out->group, slot = out->per_32 ? 0 : g;
  const kt_factor w = kt_factor_of(v, out->is_signed);
#pragma GCC unroll 4
  for (int t = 0; t < out->tokens; t++) {
    kt_vi *dot = &out->dot[slot][t];
    if (k4 * 4 % out->group == 0) /* a group's values come in order */
      *dot = kt_splat_int(kt_is_biased(out) ? kt_corr(out, t, g) : 0);
    *dot = kt_dot4(*dot, w, out->x[t].q + 4 * k4, out->is_signed);
  }
}

KT_INLINE void kt_put_scale(struct kt_gemv *out, int group, int row, kt_vf v) {
  (void)row;
#pragma GCC unroll 4
  for (int t = 0; t < out->tokens; t++) {
    const kt_vf scale = out->per_32 ? v * kt_splat_float(out->x[t].scale[group]) : v;
    out->sum[t] = kt_fma(kt_to_float(out->dot[out->per_32 ? 0 : group][t]), scale, out->sum[t]);
  }
}

KT_INLINE void kt_put_min(struct kt_gemv *out, int group, int row, kt_vf v) {
  (void)row;
#pragma GCC unroll 4
  for (int t = 0; t < out->tokens; t++) {
    float part = (float)kt_corr(out, t, group) * -0.0078125f;
    if (out->per_32) part *= out->x[t].scale[group];
    out->sum[t] = kt_fma(v, kt_splat_float(part), out->sum[t]);
  }
}

#include "panels/unpack-blocks.h"
#include "panels/unpack-k.h"

/* Even shares of the next memory; the memory at hand where nothing is known to come. */
struct kt_shares {
  const uint8_t *next;
  int64_t bytes, pitch;
};

KT_INLINE struct kt_shares kt_shares_of(struct kt_ahead ahead, const uint8_t *here, int64_t count, int lines) {
  const int64_t bytes = ahead.bytes / count;
  return (struct kt_shares){ahead.bytes > 0 ? ahead.first : here, bytes, bytes / lines};
}

KT_INLINE void kt_gemv_store(float *c, kt_vf sum) { memcpy(c, &sum, sizeof sum); }

/* The accumulators are local to a block or step: only then do they stay in registers. */
#define KT_GEMV_BLOCKS_OF(name, block_bytes, signed_)                                                 \
  KT_INLINE void kt_gemv_##name##_of(const int tokens, const uint8_t *first, int64_t row_bytes,       \
                                     int64_t values, const uint8_t *x, int64_t x_stride, float *c,    \
                                     struct kt_ahead ahead) {                                         \
    const int64_t steps = (values + KT_STEP - 1) / KT_STEP;                                           \
    const int lines = (KT_LANES * (block_bytes) + 63) / 64;                                           \
    struct kt_shares shares =                                                                         \
        kt_shares_of(ahead, first, KT_PANEL_ROWS / KT_LANES * (values / 32), lines);                  \
    for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {                                         \
      kt_vf total[KT_GEMV_TOKENS] = {{0}};                                                            \
      for (int64_t s = 0; s < steps; s++) {                                                           \
        const uint8_t *block = first + row * row_bytes + s * (KT_STEP / 32 * (block_bytes));          \
        const struct kt_rows rows = kt_rows_at(block, row_bytes);                                     \
        const int64_t left = (values - s * KT_STEP) / 32;                                             \
        const int blocks = left < KT_STEP / 32 ? (int)left : KT_STEP / 32;                            \
        for (int g = 0; g < blocks; g++, shares.next += shares.bytes) {                               \
          struct kt_gemv out = {.group = 32, .is_signed = signed_, .per_32 = 1, .tokens = tokens,     \
                                .lines = lines, .ahead = shares.next, .pitch = shares.pitch};         \
          for (int t = 0; t < tokens; t++) out.sum[t] = total[t];                                     \
          out.x = (const struct kt_xq8 *)(x + s * x_stride);                                          \
          kt_unpack_##name(&rows, g * (block_bytes), g, row, &out);                                   \
          for (int t = 0; t < tokens; t++) total[t] = out.sum[t];                                     \
        }                                                                                             \
      }                                                                                               \
      for (int t = 0; t < tokens; t++) kt_gemv_store(c + t * KT_STRIP_ROWS + row, total[t]);          \
    }                                                                                                 \
  }                                                                                                   \
  KT_GEMV_DISPATCH(name)

#define KT_GEMV_K_OF(name, block_bytes, group_, signed_)                                              \
  KT_INLINE void kt_gemv_##name##_of(const int tokens, const uint8_t *first, int64_t row_bytes,       \
                                     int64_t values, const uint8_t *x, int64_t x_stride, float *c,    \
                                     struct kt_ahead ahead) {                                         \
    const int64_t steps = values / KT_STEP;                                                           \
    const int lines = (KT_LANES * (block_bytes) + 63) / 64;                                           \
    struct kt_shares shares = kt_shares_of(ahead, first, KT_PANEL_ROWS / KT_LANES * steps, lines);    \
    for (int row = 0; row < KT_PANEL_ROWS; row += KT_LANES) {                                         \
      kt_vf total[KT_GEMV_TOKENS] = {{0}};                                                            \
      for (int64_t s = 0; s < steps; s++, shares.next += shares.bytes) {                              \
        const uint8_t *block = first + row * row_bytes + s * (block_bytes);                           \
        const struct kt_rows rows = kt_rows_at(block, row_bytes);                                     \
        struct kt_gemv out = {.group = group_, .is_signed = signed_, .per_32 = 0, .tokens = tokens,   \
                              .lines = lines, .ahead = shares.next, .pitch = shares.pitch};           \
        out.x = (const struct kt_xq8 *)(x + s * x_stride);                                            \
        kt_unpack_##name(&rows, row, &out);                                                           \
        for (int t = 0; t < tokens; t++)                                                              \
          total[t] = kt_fma(out.sum[t], kt_splat_float(out.x[t].scale[0]), total[t]);                 \
      }                                                                                               \
      for (int t = 0; t < tokens; t++) kt_gemv_store(c + t * KT_STRIP_ROWS + row, total[t]);          \
    }                                                                                                 \
  }                                                                                                   \
  KT_GEMV_DISPATCH(name)

#define KT_GEMV_CALL(name, tokens) kt_gemv_##name##_of(tokens, first, row_bytes, values, x, x_stride, c, ahead)
#if KT_LANES == 16
#define KT_GEMV_MORE(name)                        \
  case 3: KT_GEMV_CALL(name, 3); break;           \
  case 4: KT_GEMV_CALL(name, 4); break;
#else
#define KT_GEMV_MORE(name)
#endif
#define KT_GEMV_DISPATCH(name)                                                                        \
  static void kt_gemv_##name(const uint8_t *first, int64_t row_bytes, int64_t values, const uint8_t *x, \
                             int64_t x_stride, int tokens, float *c, struct kt_ahead ahead) {         \
    switch (tokens) {                                                                                 \
      case 1: KT_GEMV_CALL(name, 1); break;                                                           \
      case 2: KT_GEMV_CALL(name, 2); break;                                                           \
      KT_GEMV_MORE(name)                                                                              \
      default: break;                                                                                 \
    }                                                                                                 \
  }

KT_GEMV_BLOCKS_OF(q4_0, 18, 1)
KT_GEMV_BLOCKS_OF(q4_1, 20, 0)
KT_GEMV_BLOCKS_OF(q5_0, 22, 1)
KT_GEMV_BLOCKS_OF(q5_1, 24, 0)
KT_GEMV_BLOCKS_OF(q8_0, 34, 1)
KT_GEMV_BLOCKS_OF(iq4_nl, 18, 1)
KT_GEMV_BLOCKS_OF(mxfp4, 17, 1)
KT_GEMV_K_OF(q2_k, 84, 16, 0)
KT_GEMV_K_OF(q3_k, 110, 16, 1)
KT_GEMV_K_OF(q4_k, 144, 32, 0)
KT_GEMV_K_OF(q5_k, 176, 32, 0)
KT_GEMV_K_OF(q6_k, 210, 16, 1)
KT_GEMV_K_OF(iq4_xs, 136, 32, 1)

#define KT_GEMV_TABLE                                                                                 \
  {[KT_CPU_Q4_0] = kt_gemv_q4_0,     [KT_CPU_Q4_1] = kt_gemv_q4_1, [KT_CPU_Q5_0] = kt_gemv_q5_0,      \
   [KT_CPU_Q5_1] = kt_gemv_q5_1,     [KT_CPU_Q8_0] = kt_gemv_q8_0, [KT_CPU_IQ4_NL] = kt_gemv_iq4_nl,  \
   [KT_CPU_MXFP4] = kt_gemv_mxfp4,   [KT_CPU_Q2_K] = kt_gemv_q2_k, [KT_CPU_Q3_K] = kt_gemv_q3_k,      \
   [KT_CPU_Q4_K] = kt_gemv_q4_k,     [KT_CPU_Q5_K] = kt_gemv_q5_k, [KT_CPU_Q6_K] = kt_gemv_q6_k,      \
   [KT_CPU_IQ4_XS] = kt_gemv_iq4_xs}

#endif
