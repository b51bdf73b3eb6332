/* Weight types: block sizes and which family of kernels computes on them. */
#ifndef KT_TYPES_H
#define KT_TYPES_H

#include <stdint.h>

/* K is walked in steps of this many values: the super-block of the K-quants, or eight blocks of 32. */
#define KT_STEP 256
#define KT_TYPE_SLOTS 40

/* A family shares one dot kernel. In every quantised family a weight is scale[group] * q + min[group]
 * with q a small integer; families differ in the group size, in whether q is signed (then there is no
 * min) and in how finely the activations are scaled. */
enum kt_family {
  KT_FAMILY_K32,     /* groups of 32, signed; activations scaled per 256 */
  KT_FAMILY_K32_MIN, /* the same, unsigned with a minimum */
  KT_FAMILY_K16,     /* groups of 16, signed; activations scaled per 256 */
  KT_FAMILY_K16_MIN,
  KT_FAMILY_B32, /* blocks of 32, signed; activations scaled per 32 */
  KT_FAMILY_B32_MIN,
  KT_FAMILY_FLOAT, /* float32 and float16, computed in float32 */
  KT_FAMILY_BF16,  /* the activations are rounded to bfloat16 as well; sums are float32 */
  KT_FAMILY_COUNT
};

/* How activations are laid out for a family (struct kt_xq8 or struct kt_xf32; what is in
 * the latter for KT_X_BF16 is each variant's own affair). */
enum kt_x_kind { KT_X_Q8_256, KT_X_Q8_32, KT_X_F32, KT_X_BF16, KT_X_KINDS };

struct kt_type {
  const char *name; /* null: no such type */
  int16_t block_values;
  int16_t block_bytes;
  uint8_t family;
  int16_t codebook; /* entries of its codebook, 0 if it has none */
  int8_t codebook_width;
};

/* The type behind a GGML number, or null. */
const struct kt_type *kt_type_find(int number);

static inline enum kt_x_kind kt_family_x_kind(int family) {
  if (family == KT_FAMILY_FLOAT) return KT_X_F32;
  if (family == KT_FAMILY_BF16) return KT_X_BF16;
  return family == KT_FAMILY_B32 || family == KT_FAMILY_B32_MIN ? KT_X_Q8_32 : KT_X_Q8_256;
}

static inline int kt_family_signed(int family) {
  return family == KT_FAMILY_K32 || family == KT_FAMILY_K16 || family == KT_FAMILY_B32;
}

static inline int kt_family_group(int family) {
  return family == KT_FAMILY_K16 || family == KT_FAMILY_K16_MIN ? 16 : 32;
}

#endif
