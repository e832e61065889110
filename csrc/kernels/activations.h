// Activations and their derivatives, for bias_act.cc and glu.cc.
//
// Each activation has value(x) and both(x), the value with the slope: they share the one exponential, and what a
// caller does not use costs nothing. On infinities and NaN they are as torch has them: value(-inf) is NaN except for
// ReLU, and so is every slope at an infinity.
#pragma once
#include "simd/vectors.h"

namespace {

struct ValueAndSlope {
  vfloat value, slope;
};

// e^-x for x in [-89, 88.3], within 3e-7 of itself: infinite from -88.4 on, 0 from 87.7 on. A third of exp() in
// simd/functions.h: no denormal results, so one power of two serves, and its exponent is the end of a rounded sum.
FS_INLINE vfloat exp_minus(vfloat x) {
  const vfloat shifted = x * 1.44269504f + 12582912.0f;  // as round_small: n stands in the lowest bits
  const vfloat n = shifted - 12582912.0f;
  const vfloat r = x - n * 0.693147182f;
  vfloat p = 4.189797491e-2f - 8.290305734e-3f * r;
  p = p * r - 1.666763723e-1f;
  p = p * r + 4.999915063e-1f;
  p = p * r - 9.999997020e-1f;
  p = p * r + 1.0f;
  return p * float_of(0x3f800000u - (bits_of(shifted) << 23));
}

// x between the limits, NaN kept.
FS_INLINE vfloat clamp(vfloat x, float low, float high) {
  return max_of(broadcast(low), min_of(broadcast(high), x));
}

struct Identity {
  static FS_INLINE vfloat value(vfloat x) { return x; }
};

struct Relu {
  static FS_INLINE vfloat value(vfloat x) { return max_of(vfloat{}, x); }
};

// x s with s = 1 / (1 + e^-x);  slope s (1 + x (1 - s)).
struct Silu {
  static FS_INLINE vfloat denominator(vfloat x) { return exp_minus(clamp(x, -88.8f, 87.0f)) + 1.0f; }
  static FS_INLINE vfloat value(vfloat x) { return x / denominator(x); }
  static FS_INLINE ValueAndSlope both(vfloat x) {
    const vfloat s = 1.0f / denominator(x);
    return {x * s, s + x * (s - s * s)};
  }
};

// x (1 + tanh(w / 2)) / 2 = x s with s = 1 / (1 + e^-w), w = sqrt(8 / pi) (x + 0.044715 x^3);
// slope s + x s (1 - s) w'.
// This way around nothing cancels at negative x. Limits on x and not on w, so that w' is finite wherever x is.
struct GeluTanh {
  static constexpr float kLinear = 1.59576912f, kCubic = 0.0713548163f;
  static FS_INLINE vfloat limited(vfloat x) { return clamp(x, -10.06f, 10.0f); }  // w from -88.7 to 87.3
  static FS_INLINE vfloat denominator(vfloat c) { return exp_minus(c * (kCubic * c * c + kLinear)) + 1.0f; }
  static FS_INLINE vfloat value(vfloat x) { return x / denominator(limited(x)); }
  static FS_INLINE ValueAndSlope both(vfloat x) {
    const vfloat c = limited(x);
    const vfloat s = 1.0f / denominator(c);
    return {x * s, s + x * ((s - s * s) * (3 * kCubic * c * c + kLinear))};
  }
};

// x Phi(x), Phi the normal distribution function;  slope Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi).
// Phi(-a) = e^(-a^2 / 2) t P(t) with t = 1 / (1 + 0.3 a), a form of Hastings (1955): it keeps its digits in the tail,
// where 1 + erf cancels, and value and slope need the same exponential. P: benchmarks/fit_polynomials.py.
struct Gelu {
  static FS_INLINE vfloat value(vfloat x) { return both(x).value; }
  static FS_INLINE ValueAndSlope both(vfloat x) {
    const vfloat e = exp_minus(min_of(broadcast(88.0f), 0.5f * x * x));
    const vfloat t = 1.0f / (0.3f * absolute(x) + 1.0f);
    vfloat p = 3.626189381e-2f * t - 1.593583673e-1f;
    p = p * t + 2.095254362e-1f;
    p = p * t - 5.607156456e-2f;
    p = p * t + 1.295315325e-1f;
    p = p * t + 9.970954806e-2f;
    p = p * t + 1.207726151e-1f;
    p = p * t + 1.196289286e-1f;
    const vfloat tail = p * t * e;
    const vfloat phi = x < 0.0f ? tail : 1.0f - tail;
    return {x * phi, phi + x * (e * 0.398942280f)};
  }
};

}  // namespace
