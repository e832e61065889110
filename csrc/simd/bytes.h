// Bytes as 16-bit lanes: one instruction works on 2 * kWidth of them.
#pragma once
#include "simd/vectors.h"

namespace {

typedef uint16_t vwords __attribute__((vector_size(4 * kWidth)));
typedef uint8_t vbytes __attribute__((vector_size(2 * kWidth)));
typedef int16_t vwords_signed __attribute__((vector_size(4 * kWidth)));
typedef int8_t vbytes_signed __attribute__((vector_size(2 * kWidth)));

FS_INLINE vwords load_bytes(const uint8_t* p) {
  const vbytes bytes = load_lanes<vbytes>(p, All{});
#if defined(__AVX512F__)
  return (vwords)_mm512_cvtepu8_epi16((__m256i)bytes);
#elif defined(__AVX2__)
  return (vwords)_mm256_cvtepu8_epi16((__m128i)bytes);
#else
  return __builtin_convertvector(bytes, vwords);
#endif
}
FS_INLINE vwords load_signed_bytes(const uint8_t* p) {
  const vbytes bytes = load_lanes<vbytes>(p, All{});
#if defined(__AVX512F__)
  return (vwords)_mm512_cvtepi8_epi16((__m256i)bytes);
#elif defined(__AVX2__)
  return (vwords)_mm256_cvtepi8_epi16((__m128i)bytes);
#else
  return (vwords)__builtin_convertvector((vbytes_signed)bytes, vwords_signed);
#endif
}
// The lower bytes of the lanes.
FS_INLINE void store_bytes(uint8_t* p, vwords x) {
#if defined(__AVX512F__)
  store_lanes(p, (vbytes)_mm512_cvtepi16_epi8((__m512i)x), All{});
#elif defined(__AVX2__)
  const __m256i bytes = (__m256i)(x & 0xff), packed = _mm256_packus_epi16(bytes, bytes);
  store_lanes(p, (vbytes)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)), All{});
#else
  store_lanes(p, __builtin_convertvector(x, vbytes), All{});
#endif
}
// Both at once: two shuffles less on AVX2.
FS_INLINE void store_bytes(uint8_t* a_to, uint8_t* b_to, vwords a, vwords b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)(a & 0xff), (__m256i)(b & 0xff)), 0xd8);
  store_lanes(a_to, (vbytes)_mm256_castsi256_si128(both), All{});
  store_lanes(b_to, (vbytes)_mm256_extracti128_si256(both, 1), All{});
#else
  store_bytes(a_to, a);
  store_bytes(b_to, b);
#endif
}

}  // namespace
