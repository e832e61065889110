// Matrices of 32-bit words with rows and columns exchanged in registers. Bits are moved, never computed with.
#pragma once
#include "simd/vectors.h"

namespace {

// ---- four lanes at a time -----------------------------------------------------------------------------------

typedef uint32_t vquad __attribute__((vector_size(16)));

// Four words as they lie; four bf16 as the floats they stand for.
FS_INLINE vquad load_quad(const void* p) {
  vquad v;
  memcpy(&v, p, sizeof(v));
  return v;
}
FS_INLINE vquad load_widened_quad(const bf16* p) {
#if defined(__AVX2__)
  return (vquad)_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))) << 16;
#else
  return vquad{p[0], p[1], p[2], p[3]} << 16;
#endif
}

// quad(0) in the lowest four lanes, quad(1) in the next ones, ...
template <class Quad>
FS_INLINE vuint join_quads(const Quad& quad) {
#if defined(__AVX512F__)
  __m512i v = _mm512_castsi128_si512((__m128i)quad(0));
  v = _mm512_inserti32x4(v, (__m128i)quad(1), 1);
  v = _mm512_inserti32x4(v, (__m128i)quad(2), 2);
  return (vuint)_mm512_inserti32x4(v, (__m128i)quad(3), 3);
#elif defined(__AVX2__)
  return (vuint)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)quad(0)), (__m128i)quad(1), 1);
#else
  return quad(0);
#endif
}

// The 4 x 4 matrices that stand side by side in four vectors, each transposed.
FS_INLINE void transpose_quads(vuint v[4]) {
#if defined(__AVX512F__)
#define FS_LOW(a, b) _mm512_unpacklo_epi32((__m512i)a, (__m512i)b)
#define FS_HIGH(a, b) _mm512_unpackhi_epi32((__m512i)a, (__m512i)b)
#define FS_LOW_PAIR(a, b) (vuint) _mm512_unpacklo_epi64((__m512i)a, (__m512i)b)
#define FS_HIGH_PAIR(a, b) (vuint) _mm512_unpackhi_epi64((__m512i)a, (__m512i)b)
#elif defined(__AVX2__)
#define FS_LOW(a, b) _mm256_unpacklo_epi32((__m256i)a, (__m256i)b)
#define FS_HIGH(a, b) _mm256_unpackhi_epi32((__m256i)a, (__m256i)b)
#define FS_LOW_PAIR(a, b) (vuint) _mm256_unpacklo_epi64((__m256i)a, (__m256i)b)
#define FS_HIGH_PAIR(a, b) (vuint) _mm256_unpackhi_epi64((__m256i)a, (__m256i)b)
#else
#define FS_LOW(a, b) FS_SHUFFLE(a, b, 0, 4, 1, 5)
#define FS_HIGH(a, b) FS_SHUFFLE(a, b, 2, 6, 3, 7)
#define FS_LOW_PAIR(a, b) FS_SHUFFLE(a, b, 0, 1, 4, 5)
#define FS_HIGH_PAIR(a, b) FS_SHUFFLE(a, b, 2, 3, 6, 7)
#endif
  const auto ab_low = FS_LOW(v[0], v[1]), ab_high = FS_HIGH(v[0], v[1]);
  const auto cd_low = FS_LOW(v[2], v[3]), cd_high = FS_HIGH(v[2], v[3]);
  v[0] = FS_LOW_PAIR(ab_low, cd_low);
  v[1] = FS_HIGH_PAIR(ab_low, cd_low);
  v[2] = FS_LOW_PAIR(ab_high, cd_high);
  v[3] = FS_HIGH_PAIR(ab_high, cd_high);
#undef FS_LOW
#undef FS_HIGH
#undef FS_LOW_PAIR
#undef FS_HIGH_PAIR
}

// ---- whole vectors ------------------------------------------------------------------------------------------

// Every second lane of a and b, beginning with the first ones: a0 b0 a1 b1 ...
struct Interleaved {
  vuint low, high;
};
FS_INLINE Interleaved interleave(vuint a, vuint b) {
#if defined(__AVX512F__)
  return {FS_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          FS_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
#elif defined(__AVX2__)
  return {FS_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11), FS_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)};
#else
  return {FS_SHUFFLE(a, b, 0, 4, 1, 5), FS_SHUFFLE(a, b, 2, 6, 3, 7)};
#endif
}

// kWidth x kWidth words with rows and columns exchanged: interleaving row i with row i + kWidth / 2 moves one bit of the
// row number into the column number, and as many times as there are bits exchanges them.
FS_INLINE void transpose(vuint (&rows)[kWidth]) {
  for (int bits = kWidth; bits > 1; bits /= 2) {
    vuint next[kWidth];
    for (int i = 0; i < kWidth / 2; ++i) {
      const Interleaved pair = interleave(rows[i], rows[i + kWidth / 2]);
      next[2 * i] = pair.low;
      next[2 * i + 1] = pair.high;
    }
    for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
  }
}

}  // namespace
