/* The loops behind kt_cpu_measure(). */
#ifndef KT_LIMITS_H
#define KT_LIMITS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* Four independent sums, for the vectoriser. */
static int64_t kt_read(const uint8_t *memory, int64_t bytes) {
  uint64_t sum[32] = {0};
  for (int64_t at = 0; at + 256 <= bytes; at += 256) {
    uint64_t words[32];
    memcpy(words, memory + at, sizeof words);
    for (int i = 0; i < 32; i++) sum[i] += words[i];
  }
  uint64_t total = 0;
  for (int i = 0; i < 32; i++) total += sum[i];
  return (int64_t)total;
}

#if defined(__AVX512VNNI__)

#define KT_PEAK_OPERATIONS (12 * 128)

static int64_t kt_peak(int64_t rounds) {
  __m512i sum[12], a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(5);
  /* They begin differently, or the compiler would see that all sums are one. */
#pragma GCC unroll 12
  for (int i = 0; i < 12; i++) sum[i] = _mm512_set1_epi32(i);
  for (int64_t r = 0; r < rounds; r++) {
    __asm__ volatile("" : "+v"(a)); /* a new factor, for all the compiler knows */
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
  }
  __m512i all = sum[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; i++) all = _mm512_add_epi32(all, sum[i]);
  return _mm512_reduce_or_epi32(all); /* a sum could overflow */
}

#elif defined(__AVX2__)

#define KT_PEAK_OPERATIONS (8 * 64)

static int64_t kt_peak(int64_t rounds) {
  __m256i sum[8], a = _mm256_set1_epi8(3);
  const __m256i b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) sum[i] = _mm256_set1_epi32(i);
  for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      __asm__ volatile("" : "+v"(a)); /* a new factor, for all the compiler knows */
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  __m256i all = sum[0];
#pragma GCC unroll 8
  for (int i = 1; i < 8; i++) all = _mm256_add_epi32(all, sum[i]);
  return _mm256_extract_epi32(all, 0);
}

#else

#define KT_PEAK_OPERATIONS 0
#define kt_peak ((kt_peak_fn *)0)

#endif

#endif
