/* Which variant runs: what the CPU has, what the operating system switched on, what was asked for. */
#include <stdatomic.h>
#include <stddef.h>

#include "core/kernels.h"
#include "kt_ops_cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/* Linux hands out the 8 KiB tile state only to processes that ask for it. */
static int amx_permitted(void) {
#if defined(__linux__)
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return 0;
#endif
}

static int has(uint32_t word, uint32_t mask) { return (word & mask) == mask; }

/* Asked for only where AVX-512 itself may be used. Kept: in a virtual machine the instruction traps, and
 * takes longer than the kernels of a small layer. */
static int has_bf16(void) {
  static atomic_int known = -1;
  int found = atomic_load(&known);
  if (found < 0) {
    uint32_t a, b, c, d;
    found = __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 1u << 5);
    atomic_store(&known, found);
  }
  return found;
}

static int detect(void) {
  enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
  uint32_t a, b, c, d, b7, c7, d7;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return KT_CPU_ISA_C;
  if (!has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return KT_CPU_ISA_C;
  const uint64_t xcr0 = read_xcr0();
  if ((xcr0 & XCR0_AVX) != XCR0_AVX || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return KT_CPU_ISA_C;
  if (!has(b7, bit_AVX2)) return KT_CPU_ISA_C;
  if ((xcr0 & XCR0_AVX512) != XCR0_AVX512 ||
      !has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) || !has(c7, bit_AVX512VNNI))
    return KT_CPU_ISA_AVX2;
  if (!has_bf16()) return KT_CPU_ISA_AVX512;
  const uint32_t amx_tile = 1u << 24, amx_int8 = 1u << 25;
  if ((xcr0 & XCR0_AMX) != XCR0_AMX || !has(d7, amx_tile | amx_int8) || !amx_permitted())
    return KT_CPU_ISA_AVX512;
  return KT_CPU_ISA_AMX;
}

#else

static int has_bf16(void) { return 0; }
static int detect(void) { return KT_CPU_ISA_C; }

#endif

static const char *const names[KT_CPU_ISA_COUNT] = {"c", "avx2", "avx512", "amx"};

static const struct kt_kernels *table_of(int isa) {
  switch (isa) {
    case KT_CPU_ISA_C: return kt_kernels_c;
    case KT_CPU_ISA_AVX2: return kt_kernels_avx2;
    case KT_CPU_ISA_AVX512: return has_bf16() && kt_kernels_avx512_bf16 ? kt_kernels_avx512_bf16 : kt_kernels_avx512;
    case KT_CPU_ISA_AMX: return kt_kernels_amx;
    default: return NULL;
  }
}

static atomic_int best_isa = -1, current_isa = -1;

const char *kt_cpu_isa_name(int isa) {
  return isa >= 0 && isa < KT_CPU_ISA_COUNT ? names[isa] : NULL;
}

int kt_cpu_isa_built(int isa) { return table_of(isa) != NULL; }

int kt_cpu_isa_best(void) {
  int best = atomic_load(&best_isa);
  if (best < 0) {
    best = detect();
    while (!kt_cpu_isa_built(best)) best--;
    atomic_store(&best_isa, best);
  }
  return best;
}

int kt_cpu_isa_current(void) {
  const int current = atomic_load(&current_isa);
  return current < 0 ? kt_cpu_isa_best() : current;
}

int kt_cpu_isa_set(int isa) {
  if (!kt_cpu_isa_built(isa) || isa > kt_cpu_isa_best()) return KT_CPU_VARIANT;
  atomic_store(&current_isa, isa);
  return KT_CPU_OK;
}

const struct kt_kernels *kt_kernels_current(void) { return table_of(kt_cpu_isa_current()); }

const struct kt_kernels *kt_kernels_exact(void) {
  const int current = kt_cpu_isa_current();
  return table_of(current == KT_CPU_ISA_AMX ? KT_CPU_ISA_AVX512 : current);
}
