#include "core/codebook.h"

#include <stdatomic.h>
#include <string.h>

#include "core/types.h"
#include "kt_ops_cpu.h"

int8_t kt_codebook_iq2_xxs[256 * 8];
int8_t kt_codebook_iq2_xs[512 * 8];
int8_t kt_codebook_iq2_s[1024 * 8];
int8_t kt_codebook_iq3_xxs[256 * 4];
int8_t kt_codebook_iq3_s[512 * 4];
int8_t kt_codebook_iq1[2048 * 8];

static atomic_int ready[KT_TYPE_SLOTS];

static int8_t *codebook_of(int type) {
  switch (type) {
    case KT_CPU_IQ2_XXS: return kt_codebook_iq2_xxs;
    case KT_CPU_IQ2_XS: return kt_codebook_iq2_xs;
    case KT_CPU_IQ2_S: return kt_codebook_iq2_s;
    case KT_CPU_IQ3_XXS: return kt_codebook_iq3_xxs;
    case KT_CPU_IQ3_S: return kt_codebook_iq3_s;
    case KT_CPU_IQ1_S:
    case KT_CPU_IQ1_M: return kt_codebook_iq1;
    default: return NULL;
  }
}

int kt_codebook_ready(int type) {
  if (codebook_of(type) == NULL) return 1;
  return atomic_load_explicit(&ready[type], memory_order_acquire);
}

int kt_cpu_codebook_set(int type, const int8_t *values, int64_t count) {
  int8_t *book = codebook_of(type);
  const struct kt_type *info = kt_type_find(type);
  if (book == NULL || info == NULL) return KT_CPU_TYPE;
  if (values == NULL || count != (int64_t)info->codebook * info->codebook_width) return KT_CPU_ARGUMENT;
  memcpy(book, values, (size_t)count);
  if (type == KT_CPU_IQ1_S || type == KT_CPU_IQ1_M) {
    atomic_store_explicit(&ready[KT_CPU_IQ1_S], 1, memory_order_release);
    atomic_store_explicit(&ready[KT_CPU_IQ1_M], 1, memory_order_release);
  } else {
    atomic_store_explicit(&ready[type], 1, memory_order_release);
  }
  return KT_CPU_OK;
}
