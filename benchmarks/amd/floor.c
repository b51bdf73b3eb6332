/* What this CPU can do at best, for the ratios the benchmarks print: int8 dot products from registers
 * and reads of memory that no cache holds. Built by floor.py with the machine's own compiler. */
#include <immintrin.h>
#include <omp.h>
#include <stddef.h>

#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

/* Billions of int8 operations (a multiplication and an addition each) per second. */
double vnni_gops(int threads, long loops) {
  const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
  {
#define DECLARE(i) __m512i x##i = _mm512_set1_epi32(i);
    EACH(DECLARE)
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (long n = 0; n < loops; n++) {
#define STEP(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(x##i) : "v"(a), "v"(b));
      EACH(STEP)
    }
#define KEEP(i) __asm__ volatile("" ::"v"(x##i));
    EACH(KEEP)
  }
  return 12.0 * 128.0 * (double)loops * threads / (omp_get_wtime() - start) / 1e9;
}

/* Gigabytes read per second; `bytes` should be far above the last cache. */
double read_gbs(int threads, const char *data, size_t bytes) {
  const size_t part = bytes / (size_t)threads / 256 * 256;
  const double start = omp_get_wtime();
#pragma omp parallel num_threads(threads)
  {
    const char *p = data + part * (size_t)omp_get_thread_num();
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < part; i += 256) {
      a = _mm512_or_si512(a, _mm512_loadu_si512(p + i));
      b = _mm512_or_si512(b, _mm512_loadu_si512(p + i + 64));
      c = _mm512_or_si512(c, _mm512_loadu_si512(p + i + 128));
      d = _mm512_or_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    __asm__ volatile("" ::"v"(a));
  }
  return (double)part * threads / (omp_get_wtime() - start) / 1e9;
}
