// Bitwise functions of three vectors and blends of 16-bit lanes: one instruction each with AVX-512, where GCC 12 finds
// two or three.
#pragma once
#include "simd/vectors.h"

namespace {

FS_INLINE vuint xor_of(vuint a, vuint b, vuint c) {
#if defined(__AVX512F__)
  return (vuint)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
  return a ^ b ^ c;
#endif
}
// (a ^ b) & mask
FS_INLINE vuint xor_and(vuint a, vuint b, vuint mask) {
#if defined(__AVX512F__)
  return (vuint)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)mask, 0x28);
#else
  return (a ^ b) & mask;
#endif
}
// The bits of a where mask is 1, those of b elsewhere.
template <class V>
FS_INLINE V select_bits(V mask, V a, V b) {
#if defined(__AVX512F__)
  return (V)_mm512_ternarylogic_epi32((__m512i)mask, (__m512i)a, (__m512i)b, 0xca);
#else
  return (mask & a) | (~mask & b);
#endif
}
// The upper 16 bits of each lane of `upper`, the lower ones of `lower`.
FS_INLINE vuint blend_halves(vuint upper, vuint lower) {
#if defined(__AVX512F__)
  return (vuint)_mm512_mask_blend_epi16(0xaaaaaaaau, (__m512i)lower, (__m512i)upper);
#elif defined(__AVX2__)
  return (vuint)_mm256_blend_epi16((__m256i)lower, (__m256i)upper, 0xaa);
#else
  return (upper & 0xffff0000u) | (lower & 0xffffu);
#endif
}

}  // namespace
