/* Sixteen floats as an array: the reference that the AVX-512 variant is tested against. */
#include <math.h>
#include <string.h>

typedef struct {
  float v[16];
} vf;

#define VF_EACH(i) for (int i = 0; i < 16; i++)

static inline vf vf_set(float x) {
  vf r;
  VF_EACH(i) r.v[i] = x;
  return r;
}
static inline vf vf_load(const float *p) {
  vf r;
  memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void vf_store(float *p, vf x) { memcpy(p, x.v, sizeof x.v); }
static inline vf vf_load_int(const int32_t *p) {
  vf r;
  VF_EACH(i) r.v[i] = (float)p[i];
  return r;
}
static inline vf vf_add(vf a, vf b) {
  VF_EACH(i) a.v[i] += b.v[i];
  return a;
}
static inline vf vf_mul(vf a, vf b) {
  VF_EACH(i) a.v[i] *= b.v[i];
  return a;
}
static inline vf vf_div(vf a, vf b) {
  VF_EACH(i) a.v[i] /= b.v[i];
  return a;
}
static inline vf vf_fma(vf a, vf b, vf c) {
  VF_EACH(i) a.v[i] = a.v[i] * b.v[i] + c.v[i];
  return a;
}
static inline vf vf_min(vf bound, vf x) {
  VF_EACH(i) x.v[i] = bound.v[i] < x.v[i] ? bound.v[i] : x.v[i];
  return x;
}
static inline vf vf_max(vf bound, vf x) {
  VF_EACH(i) x.v[i] = bound.v[i] > x.v[i] ? bound.v[i] : x.v[i];
  return x;
}

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return float_of(sign | bits_of((float)fraction * 0x1p-24f));
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t float_to_half(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to or above 65520 */
  if (magnitude < 0x38800000u) /* subnormal half: the multiple of 2^-24 nearest to x */
    return (uint16_t)(sign | (uint32_t)lrintf(float_of(magnitude) * 0x1p24f));
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

static inline uint16_t float_to_bfloat(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline vf vf_load_as(const void *p, int32_t dtype, int64_t index, int64_t n) {
  vf r;
  VF_EACH(i) {
    if (i >= n) r.v[i] = 0.0f;
    else if (dtype == KT_F32) r.v[i] = ((const float *)p)[index + i];
    else if (dtype == KT_F16) r.v[i] = half_to_float(((const uint16_t *)p)[index + i]);
    else r.v[i] = float_of((uint32_t)((const uint16_t *)p)[index + i] << 16);
  }
  return r;
}

static inline void vf_store_as(vf x, int32_t dtype, void *p, int64_t index, int64_t n) {
  for (int i = 0; i < 16 && i < n; i++) {
    if (dtype == KT_F32) ((float *)p)[index + i] = x.v[i];
    else if (dtype == KT_F16) ((uint16_t *)p)[index + i] = float_to_half(x.v[i]);
    else ((uint16_t *)p)[index + i] = float_to_bfloat(x.v[i]);
  }
}

typedef uint32_t vmagnitude;
static inline vmagnitude vmagnitude_zero(void) { return 0; }
static inline vmagnitude vmagnitude_of(vmagnitude m, vf x) {
  VF_EACH(i) {
    const uint32_t bits = bits_of(x.v[i]) & 0x7fffffffu;
    m = bits > m ? bits : m;
  }
  return m;
}
static inline uint32_t vmagnitude_reduce(vmagnitude m) { return m; }

static inline void vf_store_int8(vf x, int8_t *p) { VF_EACH(i) p[i] = (int8_t)lrintf(x.v[i]); }

static inline vf vf_exp(vf x) {
  VF_EACH(i) x.v[i] = expf(x.v[i]);
  return x;
}
