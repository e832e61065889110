// Weights and optimizer states between their storage formats and tiles of 256 floats in L1; fullstride.h describes the
// formats. First pairs of vectors, for loops that stay in registers; then whole tiles, for updates that want plain floats.
#pragma once
#include "kernel.h"
#include "simd/merge.h"
#include "simd/random.h"

namespace {

constexpr int64_t kTile = FS_STATE_BLOCK;

// ---- pairs of vectors: the even and the odd elements of 2 * kWidth -------------------------------------------------
// Two bf16 lie in one 32-bit lane, so a shift and a mask take them apart and put them together again. In their natural
// order each vector would need a shuffle both ways, and shuffles share two ports with the shifts.

struct Pair {
  vfloat even, odd;
};
struct PairBits {
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

FS_INLINE Pair load_pair(const float* p) {
  const vfloat a = load(p, All{}), b = load(p + kWidth, All{});
  return {FS_SHUFFLE(a, b, FS_EVENS), FS_SHUFFLE(a, b, FS_ODDS)};
}
FS_INLINE void store_pair(float* p, Pair x) {
  store(p, FS_SHUFFLE(x.even, x.odd, FS_FRONT), All{});
  store(p + kWidth, FS_SHUFFLE(x.even, x.odd, FS_BACK), All{});
}
// The elements as the upper halves of floats.
FS_INLINE Pair split_upper(vuint both) { return {float_of(both << 16), float_of(both & 0xffff0000u)}; }
FS_INLINE Pair load_pair(const bf16* p) { return split_upper(load_lanes<vuint>(p, All{})); }
// The inverse: the upper or the lower halves of the lanes. GCC 12 sees no blend in the masks.
FS_INLINE vuint join_upper(PairBits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (vuint)_mm256_blend_epi16((__m256i)(x.even >> 16), (__m256i)x.odd, 0xaa);
#else
  return (x.even >> 16) | (x.odd & 0xffff0000u);
#endif
}
FS_INLINE vuint join_lower(PairBits x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (vuint)_mm256_blend_epi16((__m256i)x.even, (__m256i)(x.odd << 16), 0xaa);
#else
  return (x.even & 0xffffu) | (x.odd << 16);
#endif
}
FS_INLINE void store_upper(uint16_t* p, PairBits x) { store_lanes(p, join_upper(x), All{}); }
FS_INLINE void store_lower(uint16_t* p, PairBits x) { store_lanes(p, join_lower(x), All{}); }

// 2 * kWidth bytes as 16-bit lanes: one instruction works on both vectors of a pair.
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
// Precondition: lanes below 256.
FS_INLINE void store_bytes(uint8_t* p, vwords x) {
#if defined(__AVX512F__)
  store_lanes(p, (vbytes)_mm512_cvtepi16_epi8((__m512i)x), All{});
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi16((__m256i)x, (__m256i)x);
  store_lanes(p, (vbytes)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)), All{});
#else
  store_lanes(p, __builtin_convertvector(x, vbytes), All{});
#endif
}

FS_INLINE vuint larger(vuint a, vuint b) { return a > b ? a : b; }
FS_INLINE uint32_t largest_lane(vuint v) {
  uint32_t largest = 0;
  for (int l = 0; l < kWidth; ++l) largest = v[l] > largest ? v[l] : largest;
  return largest;
}

// A NaN made the quiet one with lower half 0, which neither rounding nor splitting can spoil.
FS_INLINE vfloat canonical(vfloat x) { return x != x ? broadcast(__builtin_nanf("")) : x; }

// ---- split weights -----------------------------------------------------------------------------------------------

FS_INLINE Pair load_split(const bf16* hi, const int16_t* lo) {
  const vuint upper = load_lanes<vuint>(hi, All{}), lower = load_lanes<vuint>(lo, All{});
  return {merge_bits(upper << 16, (vint)(lower << 16) >> 16), merge_bits(upper & 0xffff0000u, (vint)lower >> 16)};
}
// Precondition: NaN is canonical.
FS_INLINE void store_split(bf16* hi, int16_t* lo, Pair x) {
  const vuint even = bits_of(x.even), odd = bits_of(x.odd);
  store_upper(hi, {even + 0x8000u, odd + 0x8000u});
  store_lower(reinterpret_cast<uint16_t*>(lo), {even, odd});
}

// ---- bf16 with stochastic rounding ---------------------------------------------------------------------------------

// Elements 2 k and 2 k + 1 share the 32 random bits of index k: m takes the lower ones for the even element and the upper
// ones for the odd one, v the other way round. So m and v of one element are independent, at half the draws.
// Weights take theirs like m.
FS_INLINE vuint random_pair(RandomKey key, int64_t first) { return random_bits(key, indices_from(first >> 1)); }
template <int bits>
FS_INLINE PairBits noise_of_m(vuint random) {
  return {random & ((1u << bits) - 1), random >> (32 - bits)};
}
template <int bits>
FS_INLINE PairBits noise_of_v(vuint random) {
  return {random >> (32 - bits), random & ((1u << bits) - 1)};
}

// Precondition: NaN is canonical. Within 2^16 roundings of the largest float this may round up to infinity.
FS_INLINE void store_rounded(bf16* p, Pair x, PairBits noise) {
  store_upper(p, {bits_of(x.even) + noise.even, bits_of(x.odd) + noise.odd});
}

// ---- 8 bits and a scale --------------------------------------------------------------------------------------------

constexpr uint32_t kCodeBase = 0x38000000u;  // the pattern of 2^-15, what code 0 stands for before it is subtracted
constexpr float kCodeShift = 0x1p-15f;

struct Scale {
  float value, inverse;  // powers of two; NaN and 0 when the block holds what cannot be scaled
};
// For a block with this largest pattern without sign. 1.067 leaves room below the last code, so that rounding up never
// overflows it.
FS_INLINE Scale scale_for(uint32_t largest) {
  if (largest > 0x7d800000u) return {__builtin_nanf(""), 0};  // 2^124; NaN is above infinity in this order
  const uint32_t exponent = bits_of(float_of(largest) * 1.067f) >> 23;
  const uint32_t scale = (exponent > 1 ? exponent : 1) << 23;
  return {float_of(scale), float_of((254u << 23) - scale)};
}
FS_INLINE uint32_t largest_of(const float* tile) {
  vuint seen = {};
  for (int64_t i = 0; i < kTile; i += kWidth) seen = larger(seen, bits_of(load(tile + i, All{})) & 0x7fffffffu);
  return largest_lane(seen);
}

// Codes lie in the upper halves of floats, so a pair is put together and taken apart in 16-bit lanes.
constexpr uint16_t kCodeBaseUpper = kCodeBase >> 16;

FS_INLINE vfloat with_sign_of(vfloat x, float magnitude) {
  return float_of((bits_of(x) & 0x80000000u) | broadcast(bits_of(magnitude)));
}
FS_INLINE Pair load_m_codes(const uint8_t* p, float scale) {
  const Pair shifted = split_upper((vuint)((load_signed_bytes(p) << 4 & 0x87f0) | kCodeBaseUpper));
  const float shift = scale * kCodeShift;
  return {shifted.even * scale - with_sign_of(shifted.even, shift),
          shifted.odd * scale - with_sign_of(shifted.odd, shift)};
}
FS_INLINE Pair load_root_codes(const uint8_t* p, float scale) {
  const Pair shifted = split_upper((vuint)(load_bytes(p) << 3 | kCodeBaseUpper));
  return {shifted.even * scale - scale * kCodeShift, shifted.odd * scale - scale * kCodeShift};
}

// Sign and, in bits 20 to 26, the code; 20 bits of noise.
FS_INLINE vuint code_of_m(vfloat m, Scale scale, vuint noise) {
  return bits_of(m * scale.inverse + with_sign_of(m, kCodeShift)) + noise;
}
FS_INLINE vwords m_codes(Pair m, Scale scale, vuint random) {
  const PairBits noise = noise_of_m<20>(random);
  const vwords upper =
      (vwords)join_upper({code_of_m(m.even, scale, noise.even), code_of_m(m.odd, scale, noise.odd)});
  return (upper >> 4 & 0x7f) | (upper >> 8 & 0x80);
}
// Bits 19 to 26 of a lane, above them those of kCodeBase; 19 bits of noise.
FS_INLINE vuint code_of_root(vfloat root, Scale scale, vuint noise) {
  return bits_of(root * scale.inverse + kCodeShift) + noise;
}
// Never 0, because m / (0 + eps) would explode.
FS_INLINE vwords root_codes(Pair root, Scale scale, vuint random) {
  const PairBits noise = noise_of_v<19>(random);
  const vwords upper =
      (vwords)join_upper({code_of_root(root.even, scale, noise.even), code_of_root(root.odd, scale, noise.odd)});
  const vwords least = vwords{} + static_cast<uint16_t>(kCodeBaseUpper + 8);
  return (upper > least ? upper : least) >> 3 & 0xff;
}
// Both at once: two shuffles less on AVX2.
FS_INLINE void store_codes(uint8_t* m_to, uint8_t* v_to, vwords m, vwords v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16((__m256i)m, (__m256i)v), 0xd8);
  store_lanes(m_to, (vbytes)_mm256_castsi256_si128(both), All{});
  store_lanes(v_to, (vbytes)_mm256_extracti128_si256(both, 1), All{});
#else
  store_bytes(m_to, m);
  store_bytes(v_to, v);
#endif
}
FS_INLINE void store_m_codes(uint8_t* p, Pair m, Scale scale, vuint random) {
  store_bytes(p, m_codes(m, scale, random));
}
FS_INLINE void store_root_codes(uint8_t* p, Pair root, Scale scale, vuint random) {
  store_bytes(p, root_codes(root, scale, random));
}

// ---- whole tiles: every function is compiled once per ISA, for a call a tile costs nothing -----------------------------

#define FS_TILE [[maybe_unused]] __attribute__((noinline)) void

FS_TILE decode_bf16(const bf16* from, float* to) {
  for (int64_t i = 0; i < kTile; i += kWidth) store(to + i, load(from + i, All{}), All{});
}
FS_TILE decode_split(const bf16* hi, const int16_t* lo, float* to) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) store_pair(to + i, load_split(hi + i, lo + i));
}
FS_TILE encode_split(const float* from, bf16* hi, int16_t* lo) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) {
    const Pair x = load_pair(from + i);
    store_split(hi + i, lo + i, {canonical(x.even), canonical(x.odd)});
  }
}
// One number for two elements.
FS_TILE draw_noise(RandomKey key, int64_t first, uint32_t* random) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) store_lanes(random + i / 2, random_pair(key, first + i), All{});
}
FS_INLINE vuint random_at(const uint32_t* random, int64_t i) { return load_lanes<vuint>(random + i / 2, All{}); }

template <bool is_v>
FS_TILE encode_bf16(const float* from, bf16* to, const uint32_t* random) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) {
    const Pair x = load_pair(from + i);
    const vuint bits = random_at(random, i);
    store_rounded(to + i, {canonical(x.even), canonical(x.odd)}, is_v ? noise_of_v<16>(bits) : noise_of_m<16>(bits));
  }
}
FS_TILE decode_8bit_m(const uint8_t* from, float scale, float* to) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) store_pair(to + i, load_m_codes(from + i, scale));
}
FS_TILE encode_8bit_m(const float* from, uint8_t* to, float* scale, const uint32_t* random) {
  const Scale block = scale_for(largest_of(from));
  *scale = block.value;
  if (block.inverse == 0) return static_cast<void>(memset(to, 0, kTile));
  for (int64_t i = 0; i < kTile; i += 2 * kWidth)
    store_m_codes(to + i, load_pair(from + i), block, random_at(random, i));
}
// The tile holds sqrt(v), not v: the update has it at hand.
FS_TILE decode_8bit_root(const uint8_t* from, float scale, float* to) {
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) store_pair(to + i, load_root_codes(from + i, scale));
}
FS_TILE encode_8bit_root(const float* from, uint8_t* to, float* scale, const uint32_t* random) {
  const Scale block = scale_for(largest_of(from));
  *scale = block.value;
  if (block.inverse == 0) return static_cast<void>(memset(to, 0, kTile));
  for (int64_t i = 0; i < kTile; i += 2 * kWidth)
    store_root_codes(to + i, load_pair(from + i), block, random_at(random, i));
}

}  // namespace
