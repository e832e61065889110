// Weights and optimizer states between their storage formats and tiles of 256 floats in L1; fullstride.h describes the
// formats. Every function here works on a whole tile, so there are no tails, and is compiled once per ISA: a call a
// tile costs nothing, and copies of it in every combination of formats would be most of the library.
#pragma once
#include "kernel.h"
#include "random.h"

namespace {

constexpr int64_t kTile = FS_STATE_BLOCK;

// ---- narrow stores: two or four vectors at once, because AVX2 packs pairs ---------------------------------------

// The lower halves of the lanes of a and b. Precondition: the upper halves are zero.
FS_INLINE void store_halves(uint16_t* p, vuint a, vuint b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i packed = _mm256_packus_epi32((__m256i)a, (__m256i)b);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
#else
  store_lanes(p, narrow(a), All{});
  store_lanes(p + kWidth, narrow(b), All{});
#endif
}
// The lower bytes of the lanes of four vectors. Precondition: the rest is zero.
FS_INLINE void store_bytes(uint8_t* p, const vuint (&x)[4]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i ab = _mm256_packus_epi32((__m256i)x[0], (__m256i)x[1]);
  const __m256i cd = _mm256_packus_epi32((__m256i)x[2], (__m256i)x[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
#else
  for (int k = 0; k < 4; ++k) store_lanes(p + k * kWidth, narrow_to_bytes(x[k]), All{});
#endif
}
FS_INLINE vuint load_bytes(const uint8_t* p) {
  const vbyte bytes = load_lanes<vbyte>(p, All{});
#if defined(__AVX512F__)
  return (vuint)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
  return (vuint)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
#else
  return __builtin_convertvector(bytes, vuint);
#endif
}

FS_INLINE vuint larger(vuint a, vuint b) { return a > b ? a : b; }
FS_INLINE vuint smaller(vuint a, vuint b) { return a < b ? a : b; }
FS_INLINE uint32_t largest_lane(vuint v) {
  uint32_t largest = 0;
  for (int l = 0; l < kWidth; ++l) largest = v[l] > largest ? v[l] : largest;
  return largest;
}

// ---- weights ------------------------------------------------------------------------------------------------

[[maybe_unused]] __attribute__((noinline)) void decode_bf16(const bf16* from, float* to) {
  for (int64_t i = 0; i < kTile; i += kWidth) store(to + i, load(from + i, All{}), All{});
}

[[maybe_unused]] __attribute__((noinline)) void decode_split(const bf16* hi, const int16_t* lo, float* to) {
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vuint upper = widen(load_lanes<vhalf>(hi + i, All{})) << 16;
    const vint lower = (vint)(widen(load_lanes<vhalf>(lo + i, All{})) << 16) >> 16;
    store(to + i, float_of(upper + (vuint)lower), All{});
  }
}
[[maybe_unused]] __attribute__((noinline)) void encode_split(const float* from, bf16* hi, int16_t* lo) {
  const auto bits_at = [=](int64_t i) {
    const vfloat x = load(from + i, All{});
    const vuint u = bits_of(x);
    return x != x ? (u & 0x80000000u) | 0x7fc00000u : u;
  };
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) {
    const vuint a = bits_at(i), b = bits_at(i + kWidth);
    store_halves(hi + i, (a + 0x8000u) >> 16, (b + 0x8000u) >> 16);
    store_halves(reinterpret_cast<uint16_t*>(lo) + i, a & 0xffffu, b & 0xffffu);
  }
}

// ---- random bits -------------------------------------------------------------------------------------------------

// 32 bits for each element of the tile that starts at element `first`; the encoders below take one half each.
[[maybe_unused]] __attribute__((noinline)) void draw_noise(RandomKey key, int64_t first, uint32_t* noise) {
  for (int64_t i = 0; i < kTile; i += kWidth) store_lanes(noise + i, random_bits(key, indices_from(first + i)), All{});
}
enum class Half { kLower, kUpper };
template <Half half>
FS_INLINE vuint noise_at(const uint32_t* noise) {
  const vuint bits = load_lanes<vuint>(noise, All{});
  return half == Half::kLower ? bits & 0xffffu : bits >> 16;
}

// ---- bf16 with stochastic rounding ---------------------------------------------------------------------------------

// The bits of stochastic_bf16_bits (random.h). Far from overflow they are a mere sum; `seen`, the largest pattern of the
// tile, tells afterwards whether that held: three instructions an element instead of eleven.
template <Half half>
__attribute__((noinline)) void encode_bf16(const float* from, bf16* to, const uint32_t* noise) {
  constexpr uint32_t kSurelyFinite = 0x7f7f0000u;  // below it, 16 random bits cannot reach infinity
  vuint seen = {};
  const auto round = [&](int64_t i) {
    const vuint u = bits_of(load(from + i, All{}));
    seen = larger(seen, u & 0x7fffffffu);
    return (u + noise_at<half>(noise + i)) >> 16;
  };
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) store_halves(to + i, round(i), round(i + kWidth));
  if (largest_lane(seen) < kSurelyFinite) return;
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vuint rounded = stochastic_bf16_bits(load(from + i, All{}), noise_at<half>(noise + i));
    store_lanes(to + i, narrow(rounded), All{});
  }
}

// ---- 8 bits and a scale --------------------------------------------------------------------------------------------

constexpr uint32_t kCodeBase = 0x38000000u;  // the pattern of 2^-15, what code 0 stands for before it is subtracted
constexpr float kCodeShift = 0x1p-15f;

struct Scale {
  float value, inverse;  // powers of two; NaN when the block holds what cannot be scaled
};
// 1.067 leaves room below the last code, so that rounding up never overflows it.
FS_INLINE Scale scale_for(const float* from) {
  vuint seen = {};
  for (int64_t i = 0; i < kTile; i += kWidth) seen = larger(seen, bits_of(load(from + i, All{})) & 0x7fffffffu);
  const uint32_t largest = largest_lane(seen);  // NaN is above infinity in this order
  if (largest > 0x7d800000u) return {__builtin_nanf(""), __builtin_nanf("")};
  const uint32_t exponent = bits_of(float_of(largest) * 1.067f) >> 23;
  const uint32_t scale = (exponent > 1 ? exponent : 1) << 23;
  return {float_of(scale), float_of((254u << 23) - scale)};
}

[[maybe_unused]] __attribute__((noinline)) void decode_8bit_m(const uint8_t* from, float scale, float* to) {
  const vuint shift = broadcast(bits_of(scale * kCodeShift));
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vuint code = load_bytes(from + i);
    const vuint sign = (code << 24) & 0x80000000u;
    const vfloat shifted = float_of(((code << 20) & 0x07f00000u) | kCodeBase | sign);
    store(to + i, shifted * scale - float_of(shift | sign), All{});
  }
}
[[maybe_unused]] __attribute__((noinline)) void encode_8bit_m(const float* from, uint8_t* to, float* scale,
                                                              const uint32_t* noise) {
  const Scale block = scale_for(from);
  *scale = block.value;
  if (block.value != block.value) return static_cast<void>(memset(to, 0, kTile));
  const auto code_at = [=](int64_t i) {
    const vfloat x = load(from + i, All{});
    const vfloat shifted = absolute(x) * block.inverse + kCodeShift;
    const vuint code = (bits_of(shifted) + (noise_at<Half::kLower>(noise + i) << 4)) >> 20 & 0x7fu;
    return code | (bits_of(x) >> 24 & 0x80u);
  };
  for (int64_t i = 0; i < kTile; i += 4 * kWidth)
    store_bytes(to + i, {code_at(i), code_at(i + kWidth), code_at(i + 2 * kWidth), code_at(i + 3 * kWidth)});
}

// The tile holds sqrt(v), not v: the update has it at hand, and a second square root would be a third of the time.
[[maybe_unused]] __attribute__((noinline)) void decode_8bit_root(const uint8_t* from, float scale, float* to) {
  const float shift = scale * kCodeShift;
  for (int64_t i = 0; i < kTile; i += kWidth)
    store(to + i, float_of((load_bytes(from + i) << 19) + kCodeBase) * scale - shift, All{});
}
[[maybe_unused]] __attribute__((noinline)) void encode_8bit_root(const float* from, uint8_t* to, float* scale,
                                                                 const uint32_t* noise) {
  const Scale block = scale_for(from);
  *scale = block.value;
  if (block.value != block.value) return static_cast<void>(memset(to, 0, kTile));
  const auto code_at = [=](int64_t i) {
    const vfloat x = load(from + i, All{});
    const vfloat shifted = x * block.inverse + kCodeShift;
    const vuint code = ((bits_of(shifted) + (noise_at<Half::kUpper>(noise + i) << 3)) >> 19) - (kCodeBase >> 19);
    return larger(code, smaller(bits_of(x), broadcast(1u)));  // zero for zero only: m / (0 + eps) would explode
  };
  for (int64_t i = 0; i < kTile; i += 4 * kWidth)
    store_bytes(to + i, {code_at(i), code_at(i + kWidth), code_at(i + 2 * kWidth), code_at(i + 3 * kWidth)});
}

}  // namespace
