// exp, log, tanh, sigmoid, erf, sin, cos, rsqrt of whole vectors. Bounds in ulp stand in ops/vector_math.py and are
// tested over the whole range of fp32. Coefficients: minimax fits by benchmarks/fit_polynomials.py.
#pragma once
#include "simd.h"

namespace {

// 2^n for integers n in [-252, 254], split in two factors so that neither overflows nor becomes denormal.
FS_INLINE vfloat scale_by_power(vfloat x, vint n) {
  const vint half = n >> 1;
  return x * float_of((half + 127) << 23) * float_of((n - half + 127) << 23);
}

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2.
FS_INLINE vfloat exp(vfloat x) {
  x = x > 89.0f ? broadcast(89.0f) : x;  // e^89 overflows, e^-104 is 0; written so that NaN stays
  x = x < -104.0f ? broadcast(-104.0f) : x;
  const vfloat n = round_small(x * 1.44269504f);
  const vfloat r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts, the first exact times n
  vfloat q = 1.395048916e-3f * r + 8.368889558e-3f;
  q = q * r + 4.166620583e-2f;
  q = q * r + 1.666651884e-1f;
  q = q * r + 5.000000095e-1f;
  return scale_by_power((q * r * r + r) + 1.0f, truncate(n));
}

// log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)).
FS_INLINE vfloat log(vfloat x) {
  const vint denormal = x < 1.17549435e-38f;
  const vfloat scaled = denormal ? x * 8388608.0f : x;
  const vint bits = (vint)scaled - 0x3f3504f3;  // the exponent rises where 1 + f reaches sqrt(1/2)
  const vfloat e = to_float((bits >> 23) - (denormal & 23));
  const vfloat f = float_of((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  vfloat p = 6.746601321e-2f * f - 1.167564130e-1f;
  p = p * f + 1.188817460e-1f;
  p = p * f - 1.240559142e-1f;
  p = p * f + 1.421955091e-1f;
  p = p * f - 1.666799567e-1f;
  p = p * f + 2.000211873e-1f;
  p = p * f - 2.500000960e-1f;
  p = p * f + 3.333331260e-1f;
  const vfloat ff = f * f;
  vfloat result = (f - (0.5f * ff - (f * ff * p + e * 1.42860677e-6f))) + e * 0.693145752f;
  result = x == __builtin_inff() ? x : result;
  result = x == 0.0f ? broadcast(-__builtin_inff()) : result;
  return x >= 0.0f ? result : broadcast(__builtin_nanf(""));
}

// 1 / (1 + e^-x), from the side where the exponential is small, so that the small tail keeps its digits.
FS_INLINE vfloat sigmoid(vfloat x) {
  const vfloat e = exp(-absolute(x));
  const vfloat big = 1.0f / (1.0f + e);
  return x < 0.0f ? e * big : big;
}

FS_INLINE vfloat tanh(vfloat x) {
  const vfloat a = absolute(x);
  const vfloat u = x * x;
  vfloat p = -5.717036561e-3f * u + 2.065057900e-2f;
  p = p * u - 5.374349526e-2f;
  p = p * u + 1.333149125e-1f;
  p = p * u - 3.333328392e-1f;
  const vfloat small = x + x * u * p;
  const vfloat large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  const vfloat signed_large = float_of(bits_of(large) | (bits_of(x) & 0x80000000u));
  return a < 0.625f ? small : signed_large;
}

// x P(x^2) for small x, 1 - e^Q(|x|) beyond, where Q is log erfc.
FS_INLINE vfloat erf(vfloat x) {
  const vfloat a = absolute(x);
  const vfloat u = x * x;
  vfloat p = 8.398932972e-5f * u - 8.150071173e-4f;
  p = p * u + 5.201739061e-3f;
  p = p * u - 2.685971135e-2f;
  p = p * u + 1.128370178e-1f;
  p = p * u - 3.761263420e-1f;
  p = p * u + 1.128379167f;
  const vfloat c = a > 4.0f ? broadcast(4.0f) : a;
  vfloat q = -4.564585425e-7f * c - 1.521278921e-5f;
  q = q * c + 4.020141677e-4f;
  q = q * c - 4.070940464e-3f;
  q = q * c + 2.493031512e-2f;
  q = q * c - 1.080560414e-1f;
  q = q * c - 6.335096165e-1f;
  q = q * c - 1.129448653f;
  q = q * c + 1.630812339e-4f;
  const vfloat large = a >= 4.0f ? broadcast(1.0f) : 1.0f - exp(q);
  const vfloat signed_large = float_of(bits_of(large) | (bits_of(x) & 0x80000000u));
  return a < 0.9217f ? x * p : signed_large;
}

}  // namespace
