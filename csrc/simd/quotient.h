// Division where the divider is the bottleneck.
#pragma once
#include "simd/vectors.h"

namespace {

// Whether a / b is the quicker way. On Zen 4 quotient() made an optimizer step in cache 8 % slower. On Intel, where the
// divider is busy with a vector of AVX-512 for 16 cycles instead of 6, it is the way; that is from tables of
// instructions, not measured. A CPU with AVX-512 and without its BF16 is Intel's.
inline bool divides_quickly() {
#if defined(__AVX512BF16__)
  return __builtin_cpu_is("amd");
#elif defined(__AVX512F__)
  return false;
#else
  return true;
#endif
}

// a / b within 2 ulp, and as a / b for zeros, infinities and NaN: with AVX-512 from an estimate of 14 bits and a step
// of Newton. Above 2^126 a divisor may count as infinite.
FS_INLINE vfloat quotient(vfloat a, vfloat b) {
#if defined(__AVX512F__)
  // What the inverse is by the class of b, four bits each: NaN stays NaN, zero gives infinity of its sign (6), infinity
  // gives zero (7: negative, 8: positive); 0 keeps what was computed.
  const __m512i classes = _mm512_set1_epi32(0x00870622);
  const __m512 d = (__m512)b, estimate = _mm512_maskz_rcp14_ps(0xffff, d);
  const __m512 error = _mm512_fnmadd_ps(d, estimate, _mm512_set1_ps(1.0f));
  const __m512 inverse = _mm512_fmadd_ps(estimate, error, estimate);
  return (vfloat)_mm512_mul_ps((__m512)a, _mm512_fixupimm_ps(inverse, d, classes, 0));
#else
  return a / b;
#endif
}

}  // namespace
