// Weights and optimizer states between their storage formats and blocks of 256 floats in L1; fullstride.h describes the
// formats. First even and odd elements, for loops that stay in registers; then whole blocks, for updates that want
// plain floats.
#pragma once
#include "kernel.h"
#include "simd/even_odd.h"
#include "simd/random.h"

namespace {

constexpr int64_t kBlock = FS_STATE_BLOCK;

// ---- what both need -----------------------------------------------------------------------------------------------

FS_INLINE vuint larger(vuint a, vuint b) { return a > b ? a : b; }
FS_INLINE uint32_t largest_lane(vuint v) {
  uint32_t largest = 0;
  for (int l = 0; l < kWidth; ++l) largest = v[l] > largest ? v[l] : largest;
  return largest;
}

// A NaN made the quiet one with lower half 0, which neither rounding nor splitting can spoil.
FS_INLINE vfloat canonical(vfloat x) { return x != x ? broadcast(__builtin_nanf("")) : x; }

// ---- split weights -----------------------------------------------------------------------------------------------

FS_INLINE EvenOdd load_split_even_odd(const bf16* hi, const int16_t* lo) {
  return merge_halves(load_lanes<vuint>(hi, All{}), load_lanes<vuint>(lo, All{}));
}
// Precondition: NaN is canonical.
FS_INLINE void store_split_even_odd(bf16* hi, int16_t* lo, EvenOdd x) {
  const vuint even = bits_of(x.even), odd = bits_of(x.odd);
  store_upper(hi, {even + 0x8000u, odd + 0x8000u});
  store_lower(reinterpret_cast<uint16_t*>(lo), {even, odd});
}

// ---- bf16 with stochastic rounding --------------------------------------------------------------------------

// Elements 2 k and 2 k + 1 share the 32 random bits of index k: m takes the lower ones for the even element and the upper
// ones for the odd one, v the other way round. So m and v of one element are independent, at half the draws.
// Weights take theirs like m.
struct Noise {
  vuint lower, upper;
  FS_INLINE EvenOddBits of_m() const { return {lower, upper}; }
  FS_INLINE EvenOddBits of_v() const { return {upper, lower}; }
};
template <int bits>
FS_INLINE Noise noise_from(vuint random) {
  return {random & ((1u << bits) - 1), random >> (32 - bits)};
}

struct BlockOffsets {
  alignas(64) uint32_t of[kBlock / 2];
  constexpr BlockOffsets() : of() {
    for (uint32_t k = 0; k < kBlock / 2; ++k) of[k] = k;
  }
};
constexpr BlockOffsets kOffsets;

// The random bits of one block, to the bit those of random_bits(). Within a block the upper half of the index is a
// constant, so its first round is one xor, and the key of the second is shifted and added once.
struct BlockRandom {
  vuint outer, inner;
  BlockRandom() = default;
  FS_INLINE BlockRandom(RandomKey key, int64_t first) {
    const uint32_t base = static_cast<uint32_t>(first >> 1) ^ key.outer;
    outer = broadcast(base ^ base >> 16);
    inner = broadcast(key.inner ^ key.inner >> 15);
  }
  FS_INLINE vuint before_last_round(int64_t i) const {
    vuint x = (load_lanes<vuint>(kOffsets.of + i / 2, All{}) ^ outer) * 0x7feb352du;
    x = xor_of(x, x >> 15, inner);
    return x * 0x846ca68bu;
  }
  // 32 bits for each pair of elements from i on.
  FS_INLINE vuint draw(int64_t i) const {
    const vuint x = before_last_round(i);
    return x ^ x >> 16;
  }
  // noise_from<16>(draw(i)): the last round leaves the upper half alone.
  FS_INLINE Noise draw_halves(int64_t i) const {
    const vuint x = before_last_round(i), upper = x >> 16;
    return {xor_and(x, upper, broadcast(0xffffu)), upper};
  }
};

// Precondition: NaN is canonical. Within 2^16 roundings of the largest float this may round up to infinity.
FS_INLINE void store_rounded(bf16* p, EvenOdd x, EvenOddBits noise) {
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
FS_INLINE uint32_t largest_of(const float* block) {
  vuint seen = {};
  for (int64_t i = 0; i < kBlock; i += kWidth) seen = larger(seen, bits_of(load(block + i, All{})) & 0x7fffffffu);
  return largest_lane(seen);
}

// Codes lie in the upper halves of floats, so a pair is put together and taken apart in 16-bit lanes.
constexpr uint16_t kCodeBaseUpper = kCodeBase >> 16;

FS_INLINE vfloat with_sign_of(vfloat x, float magnitude) {
  return float_of((bits_of(x) & 0x80000000u) | broadcast(bits_of(magnitude)));
}
FS_INLINE EvenOdd load_m_codes(const uint8_t* p, float scale) {
  const EvenOdd shifted = split_upper((vuint)((load_signed_bytes(p) << 4 & 0x87f0) | kCodeBaseUpper));
  const float shift = scale * kCodeShift;
  return {shifted.even * scale - with_sign_of(shifted.even, shift),
          shifted.odd * scale - with_sign_of(shifted.odd, shift)};
}
FS_INLINE EvenOdd load_root_codes(const uint8_t* p, float scale) {
  const EvenOdd shifted = split_upper((vuint)(load_bytes(p) << 3 | kCodeBaseUpper));
  return {shifted.even * scale - scale * kCodeShift, shifted.odd * scale - scale * kCodeShift};
}

// Sign and, in bits 20 to 26, the code; 20 bits of noise.
FS_INLINE vuint code_of_m(vfloat m, Scale scale, vuint noise) {
  return bits_of(m * scale.inverse + with_sign_of(m, kCodeShift)) + noise;
}
FS_INLINE vwords m_codes(EvenOdd m, Scale scale, vuint random) {
  const EvenOddBits noise = noise_from<20>(random).of_m();
  const vwords upper =
      (vwords)join_upper({code_of_m(m.even, scale, noise.even), code_of_m(m.odd, scale, noise.odd)});
  return select_bits(vwords{} + static_cast<uint16_t>(0x80), upper >> 8, upper >> 4);
}
// Bits 19 to 26 of a lane, above them those of kCodeBase; 19 bits of noise.
FS_INLINE vuint code_of_root(vfloat root, Scale scale, vuint noise) {
  return bits_of(root * scale.inverse + kCodeShift) + noise;
}
// Never 0, because m / (0 + eps) would explode.
FS_INLINE vwords root_codes(EvenOdd root, Scale scale, vuint random) {
  const EvenOddBits noise = noise_from<19>(random).of_v();
  const vwords upper =
      (vwords)join_upper({code_of_root(root.even, scale, noise.even), code_of_root(root.odd, scale, noise.odd)});
  const vwords least = vwords{} + static_cast<uint16_t>(kCodeBaseUpper + 8);
  return (upper > least ? upper : least) >> 3;
}
FS_INLINE void store_m_codes(uint8_t* p, EvenOdd m, Scale scale, vuint random) {
  store_bytes(p, m_codes(m, scale, random));
}
FS_INLINE void store_root_codes(uint8_t* p, EvenOdd root, Scale scale, vuint random) {
  store_bytes(p, root_codes(root, scale, random));
}

// ---- whole blocks: every function is compiled once per ISA, for a call a block costs nothing ----------------

#define FS_WHOLE_BLOCK [[maybe_unused]] __attribute__((noinline)) void

FS_WHOLE_BLOCK decode_bf16(const bf16* from, float* to) {
  for (int64_t i = 0; i < kBlock; i += kWidth) store(to + i, load(from + i, All{}), All{});
}
FS_WHOLE_BLOCK decode_split(const bf16* hi, const int16_t* lo, float* to) {
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) store_even_odd(to + i, load_split_even_odd(hi + i, lo + i));
}
FS_WHOLE_BLOCK encode_split(const float* from, bf16* hi, int16_t* lo) {
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd x = load_even_odd(from + i);
    store_split_even_odd(hi + i, lo + i, {canonical(x.even), canonical(x.odd)});
  }
}
// One number for two elements.
FS_WHOLE_BLOCK draw_noise(RandomKey key, int64_t first, uint32_t* random) {
  const BlockRandom source(key, first);
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) store_lanes(random + i / 2, source.draw(i), All{});
}
FS_INLINE vuint random_at(const uint32_t* random, int64_t i) { return load_lanes<vuint>(random + i / 2, All{}); }

template <bool is_v>
FS_WHOLE_BLOCK encode_bf16(const float* from, bf16* to, const uint32_t* random) {
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd x = load_even_odd(from + i);
    const Noise noise = noise_from<16>(random_at(random, i));
    store_rounded(to + i, {canonical(x.even), canonical(x.odd)}, is_v ? noise.of_v() : noise.of_m());
  }
}
FS_WHOLE_BLOCK decode_8bit_m(const uint8_t* from, float scale, float* to) {
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) store_even_odd(to + i, load_m_codes(from + i, scale));
}
FS_WHOLE_BLOCK encode_8bit_m(const float* from, uint8_t* to, float* scale, const uint32_t* random) {
  const Scale block = scale_for(largest_of(from));
  *scale = block.value;
  if (block.inverse == 0) return static_cast<void>(memset(to, 0, kBlock));
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth)
    store_m_codes(to + i, load_even_odd(from + i), block, random_at(random, i));
}
// The block holds sqrt(v), not v: the update has it at hand.
FS_WHOLE_BLOCK decode_8bit_root(const uint8_t* from, float scale, float* to) {
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) store_even_odd(to + i, load_root_codes(from + i, scale));
}
FS_WHOLE_BLOCK encode_8bit_root(const float* from, uint8_t* to, float* scale, const uint32_t* random) {
  const Scale block = scale_for(largest_of(from));
  *scale = block.value;
  if (block.inverse == 0) return static_cast<void>(memset(to, 0, kBlock));
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth)
    store_root_codes(to + i, load_even_odd(from + i), block, random_at(random, i));
}

}  // namespace
