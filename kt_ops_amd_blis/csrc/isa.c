/* Chooses the row kernels. AVX-512 needs the CPU's word and the operating system's (XCR0). */
#include "isa.h"

#include <stdatomic.h>
#include <string.h>

extern const kt_rows kt_rows_portable;
#ifdef KT_HAVE_AVX512
extern const kt_rows kt_rows_avx512;
#endif

static int avx512_usable(void) {
#if defined(KT_HAVE_AVX512)
  /* GCC's and Clang's check reads XCR0 as well, so a kernel that does not save ZMM says no here. */
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

static _Atomic(const kt_rows *) current;

const kt_rows *kt_rows_current(void) {
  const kt_rows *rows = atomic_load_explicit(&current, memory_order_acquire);
  if (rows) return rows;
  rows = &kt_rows_portable;
#ifdef KT_HAVE_AVX512
  if (avx512_usable()) rows = &kt_rows_avx512;
#endif
  atomic_store_explicit(&current, rows, memory_order_release);
  return rows;
}

const char *kt_isa(void) { return kt_rows_current()->name; }

kt_status kt_force_isa(const char *name) {
  const kt_rows *rows = NULL;
  if (!name) return KT_BAD_ARGUMENT;
  if (strcmp(name, kt_rows_portable.name) == 0) rows = &kt_rows_portable;
#ifdef KT_HAVE_AVX512
  if (strcmp(name, kt_rows_avx512.name) == 0 && avx512_usable()) rows = &kt_rows_avx512;
#endif
  if (!rows) return KT_BAD_ISA;
  atomic_store_explicit(&current, rows, memory_order_release);
  return KT_OK;
}
