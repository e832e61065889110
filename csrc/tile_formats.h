// Weights and optimizer states between their storage formats and tiles of 256 floats in L1; fullstride.h describes the
// formats. First pairs of vectors, for loops that stay in registers; then whole tiles, for updates that want plain floats.
#pragma once
#include "kernel.h"
#include "random.h"

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
FS_INLINE Pair load_pair(const bf16* p) {
  const vuint both = load_lanes<vuint>(p, All{});
  return {float_of(both << 16), float_of(both & 0xffff0000u)};
}
// The upper halves of the lanes.
FS_INLINE void store_upper(uint16_t* p, PairBits x) {
  store_lanes(p, (x.even >> 16) | (x.odd & 0xffff0000u), All{});
}
FS_INLINE void store_lower(uint16_t* p, PairBits x) { store_lanes(p, (x.even & 0xffffu) | (x.odd << 16), All{}); }
// Bytes: the even one in the lowest bits of a lane, the odd one in the next eight.
FS_INLINE vuint load_byte_pair(const uint8_t* p) { return widen(load_lanes<vhalf>(p, All{})); }
FS_INLINE void store_byte_pair(uint8_t* p, vuint codes) { store_lanes(p, narrow(codes), All{}); }

FS_INLINE vuint larger(vuint a, vuint b) { return a > b ? a : b; }
FS_INLINE vuint smaller(vuint a, vuint b) { return a < b ? a : b; }
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
  return {float_of((upper << 16) + (vuint)((vint)(lower << 16) >> 16)),
          float_of((upper & 0xffff0000u) + (vuint)((vint)lower >> 16))};
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

// The codes of a lane: `at` is 0 for the even element, 8 for the odd one.
template <int at>
FS_INLINE vfloat m_of_code(vuint codes, float scale) {
  const vuint sign = (codes << (24 - at)) & 0x80000000u;
  const vfloat shifted = float_of(((codes << (20 - at)) & 0x07f00000u) | kCodeBase | sign);
  return shifted * scale - float_of(broadcast(bits_of(scale * kCodeShift)) | sign);
}
template <int at>
FS_INLINE vfloat root_of_code(vuint codes, float scale) {
  return float_of(((codes << (19 - at)) & 0x07f80000u) | kCodeBase) * scale - scale * kCodeShift;
}
// Bits 24 to 31 of a lane; 20 bits of noise.
FS_INLINE vuint code_of_m(vfloat m, Scale scale, vuint noise) {
  const vuint shifted = bits_of(absolute(m) * scale.inverse + kCodeShift) + noise;
  return (shifted << 4 & 0x7f000000u) | (bits_of(m) & 0x80000000u);
}
// Bits 19 to 26 of a lane, above them those of kCodeBase; 19 bits of noise. Never 0, because m / (0 + eps) would explode.
FS_INLINE vuint code_of_root(vfloat root, Scale scale, vuint noise) {
  const vuint shifted = bits_of(root * scale.inverse + kCodeShift) + noise;
  return larger(shifted, broadcast(kCodeBase + (1u << 19)));
}

FS_INLINE Pair load_m_codes(const uint8_t* p, float scale) {
  const vuint codes = load_byte_pair(p);
  return {m_of_code<0>(codes, scale), m_of_code<8>(codes, scale)};
}
FS_INLINE void store_m_codes(uint8_t* p, Pair m, Scale scale, vuint random) {
  const PairBits noise = noise_of_m<20>(random);
  const vuint even = code_of_m(m.even, scale, noise.even), odd = code_of_m(m.odd, scale, noise.odd);
  store_byte_pair(p, even >> 24 | odd >> 16);
}
FS_INLINE Pair load_root_codes(const uint8_t* p, float scale) {
  const vuint codes = load_byte_pair(p);
  return {root_of_code<0>(codes, scale), root_of_code<8>(codes, scale)};
}
FS_INLINE void store_root_codes(uint8_t* p, Pair root, Scale scale, vuint random) {
  const PairBits noise = noise_of_v<19>(random);
  const vuint even = code_of_root(root.even, scale, noise.even), odd = code_of_root(root.odd, scale, noise.odd);
  store_byte_pair(p, (even >> 19 & 0xffu) | (odd >> 11 & 0xff00u));
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
