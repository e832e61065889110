// The even and the odd elements of 2 * kWidth as two vectors, whatever their storage format, so that elements of
// several formats meet. A Pair (pairs.h) has fp32 in the order of memory instead.
//
// Two bf16 lie in one 32-bit lane, so a shift and a mask take them apart and put them together again. In their natural
// order each vector would need a shuffle both ways, and shuffles share two ports with the shifts.
#pragma once
#include "simd/bits.h"
#include "simd/bytes.h"

namespace {

struct EvenOdd {
  vfloat even, odd;
};
struct EvenOddBits {
  vuint even, odd;
};

#if defined(__AVX512F__)
#define FS_EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define FS_ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define FS_FRONT 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define FS_BACK 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX2__)
#define FS_EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define FS_ODDS 1, 3, 5, 7, 9, 11, 13, 15
#define FS_FRONT 0, 8, 1, 9, 2, 10, 3, 11
#define FS_BACK 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FS_EVENS 0, 2, 4, 6
#define FS_ODDS 1, 3, 5, 7
#define FS_FRONT 0, 4, 1, 5
#define FS_BACK 2, 6, 3, 7
#endif

FS_INLINE EvenOdd load_even_odd(const float* p) {
  const vfloat a = load(p, All{}), b = load(p + kWidth, All{});
  return {FS_SHUFFLE(a, b, FS_EVENS), FS_SHUFFLE(a, b, FS_ODDS)};
}
FS_INLINE void store_even_odd(float* p, EvenOdd x) {
  store(p, FS_SHUFFLE(x.even, x.odd, FS_FRONT), All{});
  store(p + kWidth, FS_SHUFFLE(x.even, x.odd, FS_BACK), All{});
}
// The elements as the upper halves of floats.
FS_INLINE EvenOdd split_upper(vuint both) { return {float_of(both << 16), float_of(both & 0xffff0000u)}; }
FS_INLINE EvenOdd load_even_odd(const bf16* p) { return split_upper(load_lanes<vuint>(p, All{})); }
// The inverse: the upper or the lower halves of the lanes.
FS_INLINE vuint join_upper(EvenOddBits x) { return blend_halves(x.odd, x.even >> 16); }
FS_INLINE vuint join_lower(EvenOddBits x) { return blend_halves(x.odd << 16, x.even); }
// The floats (hi << 16) + lo of split weights. In 16-bit lanes one instruction serves both vectors: lo stays as it is,
// and where it is negative it borrows one from hi. A negative lo belongs to no zero (merge.h).
FS_INLINE EvenOdd merge_halves(vuint hi, vuint lo) {
  const vwords_signed given = (vwords_signed)lo, upper = (vwords_signed)hi;
#if defined(__AVX512F__)
  const __mmask32 zero = _mm512_testn_epi16_mask((__m512i)upper, _mm512_set1_epi16(0x7fff));
  const vwords_signed lower =
      (vwords_signed)_mm512_mask_max_epi16((__m512i)given, zero, (__m512i)given, _mm512_setzero_si512());
#else
  const vwords_signed lower = (upper & 0x7fff) == 0 ? (given > 0 ? given : vwords_signed{}) : given;
#endif
  const vuint halves = (vuint)(upper + (lower >> 15));
  return {float_of(blend_halves(halves << 16, (vuint)lower)), float_of(blend_halves(halves, (vuint)lower >> 16))};
}
FS_INLINE void store_upper(uint16_t* p, EvenOddBits x) { store_lanes(p, join_upper(x), All{}); }
FS_INLINE void store_lower(uint16_t* p, EvenOddBits x) { store_lanes(p, join_lower(x), All{}); }

}  // namespace
