// Formats that are stored but not computed in: exact bf16, fp16, split fp32. Everything here works on patterns, so
// flushing of denormals does not touch it, and every variant gives the same bits.
#pragma once
#include "simd/merge.h"
#include "simd/pairs.h"

namespace {

// ---- bf16 ---------------------------------------------------------------------------------------------------

// To nearest, ties to even, as float_to_bf16 but with denormals in every variant: the BF16 instructions drop them.
FS_INLINE vhalf float_to_bf16_exact(vfloat x) {
  const vuint u = bits_of(x);
  return narrow(x != x ? u >> 16 | 0x40 : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

// Of two vectors in order, a first. The guard for NaN is a branch here: three instructions a vector less.
FS_INLINE vuint float_to_bf16_exact(vfloat a, vfloat b) {
  if (__builtin_expect(any((a != a) | (b != b)), 0)) return join(float_to_bf16_exact(a), float_to_bf16_exact(b));
  const vuint u = bits_of(a), v = bits_of(b);
  return narrow((u + 0x7fffu + (u >> 16 & 1)) >> 16, (v + 0x7fffu + (v >> 16 & 1)) >> 16);
}

// ---- fp16 ---------------------------------------------------------------------------------------------------

// Its own type, because bf16 is uint16_t already.
struct fp16 {
  uint16_t bits;
};

// The instructions keep fp16 denormals whatever the flush mode is.
FS_INLINE vfloat fp16_to_float(vhalf x) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_maskz_cvtph_ps(0xffff, (__m256i)x);
#elif defined(__AVX2__)
  return (vfloat)_mm256_cvtph_ps((__m128i)x);
#elif defined(__aarch64__)
  return (vfloat)vcvt_f32_f16((float16x4_t)x);
#else
  const vuint u = widen(x), magnitude = u & 0x7fffu;
  const vuint normal = (magnitude << 13) + (112u << 23);  // the bias of the exponent: 127 against 15
  const vuint special = magnitude << 13 | 0x7f800000u | (magnitude > 0x7c00u ? broadcast(0x400000u) : vuint{});
  // A denormal is its mantissa times 2^-24: an integer, converted exactly.
  const vuint small = bits_of(to_float((vint)magnitude) * 5.9604644775390625e-8f);
  const vuint value = magnitude < 0x400u ? small : magnitude < 0x7c00u ? normal : special;
  return float_of(value | (u & 0x8000u) << 16);
#endif
}

// To nearest, ties to even; beyond 65504 and a half step infinity; a NaN keeps the upper bits of its payload, quiet.
FS_INLINE vhalf float_to_fp16(vfloat x) {
#if defined(__AVX512F__)
  return (vhalf)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (vhalf)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  return (vhalf)vcvt_f16_f32((float32x4_t)x);
#else
  const vuint u = bits_of(x), magnitude = u & 0x7fffffffu;
  const vuint normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  // Adding 0.5 leaves the multiples of 2^-24, the fp16 denormals, in the lowest bits of the sum, rounded.
  const vuint small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const vuint nan = 0x7e00u | (magnitude >> 13 & 0x1ffu);
  vuint value = magnitude < (113u << 23) ? small : normal;
  value = magnitude >= 0x477ff000u ? broadcast(0x7c00u) : value;  // 65520 and more
  value = magnitude > 0x7f800000u ? nan : value;
  return narrow(value | (u >> 16 & 0x8000u));
#endif
}

FS_INLINE vuint float_to_fp16(vfloat a, vfloat b) { return join(float_to_fp16(a), float_to_fp16(b)); }

template <class Lanes>
FS_INLINE vfloat load(const fp16* p, Lanes lanes) {
  return fp16_to_float(load_lanes<vhalf>(reinterpret_cast<const uint16_t*>(p), lanes));
}

// ---- split fp32: hi (bf16, rounded to nearest, ties away from zero) and lo (int16) -------------------------

// hi = (bits + 0x8000) >> 16 and lo = bits - (hi << 16), which is the lower half read as a signed number. Together
// they are every bit of x. A NaN becomes the quiet NaN with lo = 0: the carry could make hi an infinity or a zero.
struct Split {
  vhalf hi, lo;
};
FS_INLINE Split split_bits(vfloat x) {
  vuint u = bits_of(x);
  u = x != x ? (u & 0x80000000u) | 0x7fc00000u : u;
  return {narrow((u + 0x8000u) >> 16), narrow(u & 0xffffu)};
}
// Of two vectors in order, a first.
struct SplitPair {
  vuint hi, lo;
};
FS_INLINE SplitPair split_bits(vfloat a, vfloat b) {
  if (__builtin_expect(any((a != a) | (b != b)), 0)) {
    const Split first = split_bits(a), second = split_bits(b);
    return {join(first.hi, second.hi), join(first.lo, second.lo)};
  }
  const vuint u = bits_of(a), v = bits_of(b);
  return {narrow((u + 0x8000u) >> 16, (v + 0x8000u) >> 16), narrow(u & 0xffffu, v & 0xffffu)};
}
// (hi << 16) + lo, the whole float.
FS_INLINE vfloat merge_bits(vhalf hi, vhalf lo) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return merge_bits(widen(hi) << 16, (vint)_mm256_cvtepi16_epi32((__m128i)lo));
#else
  return merge_bits(widen(hi) << 16, (vint)(widen(lo) << 16) >> 16);
#endif
}

template <class Lanes>
FS_INLINE vfloat load_split(const bf16* hi, const int16_t* lo, Lanes lanes) {
  return merge_bits(load_lanes<vhalf>(hi, lanes), load_lanes<vhalf>(lo, lanes));
}
template <class Lanes>
FS_INLINE void store_split(bf16* hi, int16_t* lo, vfloat x, Lanes lanes) {
  const Split parts = split_bits(x);
  store_lanes(hi, parts.hi, lanes);
  store_lanes(lo, parts.lo, lanes);
}

}  // namespace
