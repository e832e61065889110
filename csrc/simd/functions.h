// exp, log, tanh, sigmoid, erf, sin, cos, rsqrt of whole vectors. Bounds in ulp stand in ops/vector_math.py and are
// tested over the whole range of fp32. Coefficients: minimax fits by benchmarks/fit_polynomials.py.
// Polynomials are grouped so that their parts run side by side (Estrin): a chain of additions is longer than what the
// scheduler of Zen 4 sees, and exp was 11 % slower with one.
// Denormals are right, in and out, where the thread does not flush them; else they count as zeros of their sign.
#pragma once
#include "simd/vectors.h"

namespace {

// 2^n for integers n in [-252, 254], split in two factors so that neither overflows nor becomes denormal.
FS_INLINE vfloat scale_by_power(vfloat x, vint n) {
  const vint half = n >> 1;
  return x * float_of((half + 127) << 23) * float_of((n - half + 127) << 23);
}

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2.
FS_INLINE vfloat exp(vfloat x) {
  x = max_of(broadcast(-104.0f), min_of(broadcast(89.0f), x));  // e^89 overflows, e^-104 is 0; NaN stays
  const vfloat n = round_small(x * 1.44269504f);
  const vfloat r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts, the first exact times n
  const vfloat rr = r * r;
  const vfloat high = 1.381459762e-3f * r + 8.368716575e-3f;
  const vfloat low = 4.166838899e-2f * r + 1.666652113e-1f;
  const vfloat q = (high * rr + low) * r + 4.999999404e-1f;
  return scale_by_power((q * rr + r) + 1.0f, truncate(n));
}

// log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)).
FS_INLINE vfloat log(vfloat x) {
  const vint denormal = x < 1.17549435e-38f;
  const vfloat scaled = denormal ? x * 8388608.0f : x;
  const vuint bits = bits_of(scaled) - 0x3f3504f3u;  // the exponent rises where 1 + f reaches sqrt(1/2)
  const vfloat e = to_float(((vint)bits >> 23) - (denormal & 23));
  const vfloat f = float_of((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const vfloat ff = f * f;
  const vfloat p8 = 6.746627390e-2f * ff + (-1.167564839e-1f * f + 1.188816652e-1f);
  const vfloat p4 = p8 * ff + (-1.240558997e-1f * f + 1.421955228e-1f);
  const vfloat p2 = (-1.666799635e-1f * f + 2.000211924e-1f) * ff + (-2.500000894e-1f * f + 3.333331347e-1f);
  const vfloat p = p4 * (ff * ff) + p2;
  vfloat result = (f - (0.5f * ff - (f * ff * p + e * 1.42860677e-6f))) + e * 0.693145752f;
  result = x == __builtin_inff() ? x : result;
  result = x == 0.0f ? broadcast(-__builtin_inff()) : result;
  return x >= 0.0f ? result : broadcast(__builtin_nanf(""));
}

// 1 / (1 + e^-x), from the side where the exponential is small, so that the small tail keeps its digits.
FS_INLINE vfloat sigmoid(vfloat x) {
  const vfloat e = exp(-absolute(x));
  return (x < 0.0f ? e : broadcast(1.0f)) / (1.0f + e);
}

// magnitude >= 0, or NaN, with the sign of x: odd functions keep -0 this way.
FS_INLINE vfloat with_sign_of(vfloat x, vfloat magnitude) {
  return float_of(bits_of(magnitude) | (bits_of(x) & 0x80000000u));
}

FS_INLINE vfloat tanh(vfloat x) {
  const vfloat a = absolute(x);
  const vfloat u = a * a;
  const vfloat uu = u * u;
  const vfloat high = -5.717041902e-3f * uu + (2.065058425e-2f * u - 5.374349654e-2f);
  const vfloat p = high * uu + (1.333149076e-1f * u - 3.333328366e-1f);
  const vfloat small = a + a * u * p;
  const vfloat large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return with_sign_of(x, a < 0.625f ? small : large);
}

// x + x P(x^2) for small x, 1 - e^Q(|x|) beyond, where Q is log erfc.
FS_INLINE vfloat erf(vfloat x) {
  const vfloat a = absolute(x);
  const vfloat u = a * a;
  const vfloat uu = u * u;
  const vfloat p4 = 8.371246804e-5f * uu + (-8.142974693e-4f * u + 5.201056134e-3f);
  const vfloat p2 = p4 * uu + (-2.685940824e-2f * u + 1.128369570e-1f);
  const vfloat p = p2 * uu + (-3.761263490e-1f * u + 1.283791661e-1f);
  const vfloat c = min_of(broadcast(4.0f), a);
  const vfloat cc = c * c;
  const vfloat q6 = -4.564875837e-7f * cc + (-1.521239574e-5f * c + 4.020118795e-4f);
  const vfloat q4 = q6 * cc + (-4.070932977e-3f * c + 2.493030019e-2f);
  const vfloat q2 = q4 * cc + (-1.080560237e-1f * c - 6.335096359e-1f);
  const vfloat q = q2 * cc + (-1.129448652f * c + 1.630801999e-4f);
  return with_sign_of(x, a < 0.9217f ? a + a * p : 1.0f - exp(q));
}

FS_INLINE vfloat rsqrt(vfloat x) { return 1.0f / sqrt(x); }

// ---- sin and cos ------------------------------------------------------------------------------------------

// Up to here quarter_turns() is exact enough; lanes beyond, few in practice, go through libm one by one.
constexpr float kTurnsLimit = 100000.0f;

// a = n * pi / 2 + r with |r| <= pi / 4 and a bit, for a in [0, kTurnsLimit]. The lower two bits of n say which
// quarter of the circle it is. r has to be good relative to itself, and it can be as small as 2^-27 there.
struct QuarterTurns {
  vfloat r;
  vuint n;
};
FS_INLINE QuarterTurns quarter_turns(vfloat a) {
  const vfloat shifted = a * 0.636619772f + 12582912.0f;  // as round_small: n stands in the lowest bits
  const vfloat n = shifted - 12582912.0f;
  vfloat r = a;
#if defined(__AVX2__) || defined(__aarch64__)
  // pi / 2 in three parts of 24 bits. The first product cancels against a without any rounding, so it must be fused
  // for certain and not at the compiler's discretion.
  constexpr float kParts[] = {-1.57079637f, 4.37113883e-8f, 1.71512451e-15f};
  for (const float part : kParts) {
#if defined(__AVX512F__)
    r = (vfloat)_mm512_fmadd_ps((__m512)n, _mm512_set1_ps(part), (__m512)r);
#elif defined(__AVX2__)
    r = (vfloat)_mm256_fmadd_ps((__m256)n, _mm256_set1_ps(part), (__m256)r);
#else
    r = (vfloat)vfmaq_n_f32((float32x4_t)r, (float32x4_t)n, part);
#endif
  }
#else
  // The first part has 33 bits: exact times n.
  for (int l = 0; l < kWidth; ++l) {
    const double turns = n[l];
    r[l] = static_cast<float>((a[l] - turns * 1.5707963267341256) - turns * 6.077100506506192e-11);
  }
#endif
  return {r, bits_of(shifted)};
}

// sin(r + n pi / 2).
FS_INLINE vfloat sin_of_turns(vfloat r, vuint n) {
  const vfloat u = r * r;
  vfloat s = 2.716394647e-6f * u - 1.983913098e-4f;
  s = s * u + 8.333329111e-3f;
  s = s * u - 1.666666716e-1f;
  vfloat c = 2.441396646e-5f * u - 1.388714765e-3f;
  c = c * u + 4.166664183e-2f;
  c = (c * u - 0.5f) * u + 1.0f;
  const vfloat value = (n & 1) != 0 ? c : r + r * u * s;
  return float_of(bits_of(value) ^ (n & 2) << 30);
}

// y with the lanes beyond kTurnsLimit, infinities and NaN among them, as libm has them.
inline __attribute__((noinline, cold)) vfloat sin_of_far_lanes(vfloat x, vfloat y) {
  for (int l = 0; l < kWidth; ++l)
    if (!(__builtin_fabsf(x[l]) <= kTurnsLimit)) y[l] = static_cast<float>(__builtin_sin(x[l]));
  return y;
}
inline __attribute__((noinline, cold)) vfloat cos_of_far_lanes(vfloat x, vfloat y) {
  for (int l = 0; l < kWidth; ++l)
    if (!(__builtin_fabsf(x[l]) <= kTurnsLimit)) y[l] = static_cast<float>(__builtin_cos(x[l]));
  return y;
}

FS_INLINE vfloat sin(vfloat x) {
  const vfloat a = absolute(x);
  const QuarterTurns turns = quarter_turns(a);
  const vfloat y = float_of(bits_of(sin_of_turns(turns.r, turns.n)) ^ (bits_of(x) & 0x80000000u));
  return any(~(a <= kTurnsLimit)) ? sin_of_far_lanes(x, y) : y;
}
FS_INLINE vfloat cos(vfloat x) {
  const vfloat a = absolute(x);
  const QuarterTurns turns = quarter_turns(a);
  const vfloat y = sin_of_turns(turns.r, turns.n + 1);
  return any(~(a <= kTurnsLimit)) ? cos_of_far_lanes(x, y) : y;
}

// e^x for x <= 0, as a softmax needs it: no clamp above, one scaling step, 0 from -87.7 downwards. The magic number
// 1.5 * 2^23 + 127 leaves n + 127 in the lower bits, so one shift makes 2^n; at n = -127, the clamp, the factor is 0.
// With an FMA one product by ln 2 is enough: its fp32 rounding is off by 1.9e-9, times n <= 126 two ulp at the far
// end. Bounds, tested in tests/ops/test_softmax.py: 3 ulp for x >= -20, 5 ulp to -87.3 (the smallest normal result).
FS_INLINE vfloat exp_nonpositive(vfloat x) {
  x = max_of(broadcast(-88.0f), x);  // in this order a NaN stays
  const vfloat shifted = x * 1.44269504f + 12583039.0f;
  const vfloat n = shifted - 12583039.0f;
#if defined(__FMA__) || defined(__aarch64__)
  const vfloat r = x - n * 0.693147182f;
#else
  const vfloat r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
#endif
  vfloat p = 8.290306150e-3f * r + 4.189797537e-2f;
  p = p * r + 1.666763658e-1f;
  p = p * r + 4.999914919e-1f;
  p = p * r + 9.999997070e-1f;
  return (p * r + 1.0f) * float_of(bits_of(shifted) << 23);
}

}  // namespace
