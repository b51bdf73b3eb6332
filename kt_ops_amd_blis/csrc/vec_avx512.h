/* Sixteen floats in an AVX-512 register. Same names and meaning as vec_portable.h. */
#include <immintrin.h>

typedef __m512 vf;

static inline __mmask16 vf_mask(int64_t n) {
  return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1u);
}

static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_load_int(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }

/* NaN in the second argument survives (the instruction returns its second operand then). */
static inline vf vf_min(vf bound, vf x) { return _mm512_min_ps(bound, x); }
static inline vf vf_max(vf bound, vf x) { return _mm512_max_ps(bound, x); }

/* First n (at most 16) values of a type as float, zeros after them; nothing beyond them is read. */
static inline vf vf_load_as(const void *p, int32_t dtype, int64_t index, int64_t n) {
  const __mmask16 mask = vf_mask(n);
  if (dtype == KT_F32) return _mm512_maskz_loadu_ps(mask, (const float *)p + index);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + index);
  if (dtype == KT_F16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

static inline void vf_store_as(vf x, int32_t dtype, void *p, int64_t index, int64_t n) {
  const __mmask16 mask = vf_mask(n);
  if (dtype == KT_F32) {
    _mm512_mask_storeu_ps((float *)p + index, mask, x);
    return;
  }
  __m256i half;
  if (dtype == KT_F16) {
    half = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else { /* nearest even; NaN keeps its sign and becomes quiet */
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                   _mm512_set1_epi32(0x00400000));
    half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  _mm256_mask_storeu_epi16((uint16_t *)p + index, mask, half);
}

/* Largest magnitude of many values, as bits: IEEE order is integer order once the sign is off, and any
 * non-finite value compares above every finite one. */
typedef __m512i vmagnitude;
static inline vmagnitude vmagnitude_zero(void) { return _mm512_setzero_si512(); }
static inline vmagnitude vmagnitude_of(vmagnitude m, vf x) {
  return _mm512_max_epu32(
      m, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}
static inline uint32_t vmagnitude_reduce(vmagnitude m) { return _mm512_reduce_max_epu32(m); }

/* Round to nearest even and store sixteen int8; the values are within [-127.5, 127.5]. */
static inline void vf_store_int8(vf x, int8_t *p) {
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

/* exp(x), relative error below 2e-7; saturates to 0 and infinity, NaN stays. */
static inline vf vf_exp(vf x) {
  x = vf_max(vf_set(-104.0f), vf_min(vf_set(89.0f), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  /* ln 2 in two parts, so that n * ln 2 is subtracted without losing bits */
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720.0f); /* Taylor to degree 6; |r| <= ln(2) / 2 */
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}
