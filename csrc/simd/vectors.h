// Vectors of kWidth floats, the same source for every ISA, and the element types that kernels read and write.
//
// The types are the vector extensions of GCC and Clang: + - * / & | ^ << >> and comparisons work lane by lane,
// a * b + c becomes one FMA where there is one, and `mask ? a : b` selects. Intrinsics stand only where the
// compilers have no operator or generate poor code. The portable variant uses none of them.
//
// Plain loops were tried first and ran at 0.7 of this speed, because GCC 12 kept partial sums in memory
// (docs/experiments.md).
//
// Everything is in an anonymous namespace. A function with external linkage would be merged across variants by
// the linker and could bring AVX-512 code to a CPU without it. No STL in kernel files for the same reason.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Lanes of a and b in any order; lanes of b count on from those of a. GCC has Clang's builtin since version 12 only.
#if defined(__clang__) || __GNUC__ >= 12
#define FS_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FS_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vint{__VA_ARGS__})
#endif
#define FS_INLINE inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

using bf16 = uint16_t;  // the upper half of an fp32 pattern

typedef float vfloat __attribute__((vector_size(4 * kWidth)));
typedef int32_t vint __attribute__((vector_size(4 * kWidth)));  // also the result of comparisons: 0 or -1 a lane
typedef uint32_t vuint __attribute__((vector_size(4 * kWidth)));
typedef uint16_t vhalf __attribute__((vector_size(2 * kWidth)));
typedef uint8_t vbyte __attribute__((vector_size(kWidth)));
typedef double vdouble __attribute__((vector_size(4 * kWidth)));  // half as many lanes

// ---- scalars and bits ------------------------------------------------------------------------------------

FS_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FS_INLINE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }
FS_INLINE vuint bits_of(vfloat x) { return (vuint)x; }
FS_INLINE vfloat float_of(vuint x) { return (vfloat)x; }
FS_INLINE vfloat float_of(vint x) { return (vfloat)x; }

FS_INLINE vfloat broadcast(float x) { return vfloat{} + x; }
FS_INLINE vuint broadcast(uint32_t x) { return vuint{} + x; }
FS_INLINE vint broadcast(int32_t x) { return vint{} + x; }

FS_INLINE vint lane_numbers() {
  vint numbers;
  for (int l = 0; l < kWidth; ++l) numbers[l] = l;
  return numbers;
}

FS_INLINE float bf16_to_float(bf16 x) { return float_of(static_cast<uint32_t>(x) << 16); }
// Round to nearest, ties to even; a NaN stays one (the carry could turn it into an infinity).
FS_INLINE bf16 float_to_bf16(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  const uint32_t quiet = u >> 16 | 0x40;
  return static_cast<bf16>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// ---- conversions of whole vectors ------------------------------------------------------------------------

FS_INLINE vint truncate(vfloat x) { return __builtin_convertvector(x, vint); }
FS_INLINE vfloat to_float(vint x) { return __builtin_convertvector(x, vfloat); }
// GCC 12 makes four shuffles of __builtin_convertvector where one instruction does it.
FS_INLINE vuint widen(vhalf x) {
#if defined(__AVX512F__)
  return (vuint)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
  return (vuint)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, vuint);
#endif
}
// The lower halves of the lanes. Precondition: the upper halves are zero.
FS_INLINE vhalf narrow(vuint x) {
#if defined(__AVX512F__)
  return (vhalf)_mm512_cvtepi32_epi16((__m512i)x);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return (vhalf)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(x, vhalf);
#endif
}
// a, then b, in one register. GCC 12 takes an array of them through memory.
FS_INLINE vuint join(vhalf a, vhalf b) {
#if defined(__AVX512F__)
  return (vuint)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)a), (__m256i)b, 1);
#elif defined(__AVX2__)
  return (vuint)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)a), (__m128i)b, 1);
#else
  const vhalf both[2] = {a, b};
  return __builtin_bit_cast(vuint, both);
#endif
}
// join(narrow(a), narrow(b)), with one shuffle across the register where there are two.
FS_INLINE vuint narrow(vuint a, vuint b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (vuint)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)a, (__m256i)b), 0xd8);
#else
  return join(narrow(a), narrow(b));
#endif
}
// The lower bytes of the lanes. Precondition: the rest is zero.
FS_INLINE vbyte narrow_to_bytes(vuint x) {
#if defined(__AVX512F__)
  return (vbyte)_mm512_cvtepi32_epi8((__m512i)x);
#elif defined(__AVX2__)
  const __m128i halves = (__m128i)narrow(x);
  return (vbyte)_mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
#else
  return __builtin_convertvector(x, vbyte);
#endif
}

FS_INLINE vfloat bf16_to_float(vhalf x) { return float_of(widen(x) << 16); }
// As the scalar float_to_bf16. The BF16 instructions round alike, but take and give zero for denormals.
FS_INLINE vhalf float_to_bf16(vfloat x) {
#if defined(__AVX512BF16__)
  return __builtin_bit_cast(vhalf, _mm512_cvtneps_pbh((__m512)x));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return __builtin_bit_cast(vhalf, vcvt_bf16_f32((float32x4_t)x));
#else
  const vuint u = bits_of(x);
  const vuint rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  return narrow(x != x ? u >> 16 | 0x40 : rounded);
#endif
}

// ---- loads and stores: all lanes, or the first few of the last vector -------------------------------------

struct All {
  static constexpr int64_t count = kWidth;
};
struct First {
  int64_t count;  // 1 .. kWidth - 1
};

template <class V, class T>
FS_INLINE V load_lanes(const T* p, All) {
  V v;
  memcpy(&v, p, sizeof(v));
  return v;
}
// Up to three 16-bit elements in the lower bits of a word.
FS_INLINE uint64_t load_few(const void* p, int64_t n) {
  const char* from = static_cast<const char*>(p);
  uint16_t last = 0;
  uint32_t pair = 0;
  if (n & 1) memcpy(&last, from + 2 * (n - 1), 2);
  if (!(n & 2)) return last;
  memcpy(&pair, from, 4);
  return static_cast<uint64_t>(last) << 32 | pair;
}
FS_INLINE void store_few(void* p, uint64_t word, int64_t n) {
  char* to = static_cast<char*>(p);
  const uint16_t last = static_cast<uint16_t>(n & 2 ? word >> 32 : word);
  const uint32_t pair = static_cast<uint32_t>(word);
  if (n & 2) memcpy(to, &pair, 4);
  if (n & 1) memcpy(to + 2 * (n - 1), &last, 2);
}
// Absent lanes are zero. A vector put together from elements in memory would wait for the store buffer, and a memcpy
// of unknown length would be a call, so 16-bit elements are joined in general registers.
typedef uint64_t vword __attribute__((vector_size(kWidth == 8 ? 16 : 8)));
template <class V, class T>
FS_INLINE V load_lanes(const T* p, First lanes) {
  if constexpr (sizeof(T) == 2 && kWidth <= 8) {
    uint64_t lower;
    if constexpr (kWidth == 8) {
      if (lanes.count >= 4) {
        memcpy(&lower, p, 8);
        return (V)(vword{lower, load_few(p + 4, lanes.count - 4)});
      }
    }
    lower = load_few(p, lanes.count);
    return (V)(vword{lower});
  } else {
    V v = {};
    for (int l = 0; l < kWidth - 1; ++l)
      if (l < lanes.count) v[l] = p[l];
    return v;
  }
}
template <class V, class T>
FS_INLINE void store_lanes(T* p, V v, All) {
  memcpy(p, &v, sizeof(v));
}
template <class V, class T>
FS_INLINE void store_lanes(T* p, V v, First lanes) {
  if constexpr (sizeof(T) == 2 && kWidth <= 8) {
    const vword words = (vword)v;
    if constexpr (kWidth == 8) {
      if (lanes.count >= 4) {
        const uint64_t lower = words[0];
        memcpy(p, &lower, 8);
        return store_few(p + 4, words[kWidth == 8], lanes.count - 4);
      }
    }
    store_few(p, words[0], lanes.count);
  } else {
    for (int l = 0; l < kWidth - 1; ++l)
      if (l < lanes.count) p[l] = v[l];
  }
}

template <class Lanes>
FS_INLINE vfloat load(const float* p, Lanes lanes) {
#if defined(__AVX512F__)
  if constexpr (__is_same(Lanes, First)) return (vfloat)_mm512_maskz_loadu_ps((1u << lanes.count) - 1, p);
#elif defined(__AVX2__)
  if constexpr (__is_same(Lanes, First))
    return (vfloat)_mm256_maskload_ps(p, (__m256i)(lane_numbers() < static_cast<int32_t>(lanes.count)));
#endif
  return load_lanes<vfloat>(p, lanes);
}
template <class Lanes>
FS_INLINE vhalf load_halves(const bf16* p, Lanes lanes) {
#if defined(__AVX512F__)
  if constexpr (__is_same(Lanes, First))
    return (vhalf)_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << lanes.count) - 1), p);
#endif
  return load_lanes<vhalf>(p, lanes);
}
template <class Lanes>
FS_INLINE vfloat load(const bf16* p, Lanes lanes) {
  return bf16_to_float(load_halves(p, lanes));
}
template <class Lanes>
FS_INLINE void store(float* p, vfloat v, Lanes lanes) {
#if defined(__AVX512F__)
  if constexpr (__is_same(Lanes, First)) return _mm512_mask_storeu_ps(p, (1u << lanes.count) - 1, (__m512)v);
#elif defined(__AVX2__)
  if constexpr (__is_same(Lanes, First))
    return _mm256_maskstore_ps(p, (__m256i)(lane_numbers() < static_cast<int32_t>(lanes.count)), (__m256)v);
#endif
  store_lanes(p, v, lanes);
}
template <class Lanes>
FS_INLINE void store(bf16* p, vfloat v, Lanes lanes) {
#if defined(__AVX512F__)
  if constexpr (__is_same(Lanes, First))
    return _mm256_mask_storeu_epi16(p, static_cast<__mmask16>((1u << lanes.count) - 1), (__m256i)float_to_bf16(v));
#endif
  store_lanes(p, float_to_bf16(v), lanes);
}

// store() for the result of arithmetic on values that were bf16. The lower half of a NaN is zero there, so rounding
// cannot carry it into an infinity, and the three instructions that guard against it fall away: a softmax gains 8 %.
template <class Lanes>
FS_INLINE void store_result(bf16* p, vfloat v, Lanes lanes) {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  store(p, v, lanes);
#else
  const vuint u = bits_of(v);
  store_lanes(p, narrow((u + 0x7fffu + (u >> 16 & 1)) >> 16), lanes);
#endif
}
template <class Lanes>
FS_INLINE void store_result(float* p, vfloat v, Lanes lanes) {
  store(p, v, lanes);
}

// ---- arithmetic without an operator ----------------------------------------------------------------------

FS_INLINE vfloat sqrt(vfloat x) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);  // unmasked, GCC 12 warns of its own header
#elif defined(__AVX2__)
  return (vfloat)_mm256_sqrt_ps((__m256)x);
#elif defined(__aarch64__)
  return (vfloat)vsqrtq_f32((float32x4_t)x);
#else
  for (int l = 0; l < kWidth; ++l) x[l] = sqrtf(x[l]);
  return x;
#endif
}
FS_INLINE vfloat absolute(vfloat x) { return float_of(bits_of(x) & 0x7fffffffu); }
// The larger lane; a NaN in b wins, one in a does not. GCC 12 makes a comparison and a blend of the selection.
FS_INLINE vfloat max_of(vfloat a, vfloat b) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
FS_INLINE vfloat min_of(vfloat a, vfloat b) {
#if defined(__AVX512F__)
  return (vfloat)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vfloat)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}
// To the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 pushes the fraction out.
FS_INLINE vfloat round_small(vfloat x) { return (x + 12582912.0f) - 12582912.0f; }

// Whether some lane of a comparison is true.
FS_INLINE bool any(vint mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int32_t joined = 0;
  for (int l = 0; l < kWidth; ++l) joined |= mask[l];
  return joined != 0;
#endif
}

// The nearest integer, ties to even, for |x| < 2^22. Unlike adding a constant it cannot be fused with a product before
// it, so x is rounded first in every variant.
FS_INLINE vint round_to_int(vfloat x) {
#if defined(__AVX512F__)
  return (vint)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (vint)_mm256_cvtps_epi32((__m256)x);
#elif defined(__aarch64__)
  return (vint)vcvtnq_s32_f32((float32x4_t)x);
#else
  return truncate(round_small(x));
#endif
}

// v with zero in the absent lanes.
FS_INLINE vfloat keep(vfloat v, All) { return v; }
FS_INLINE vfloat keep(vfloat v, First lanes) {
  return lane_numbers() < static_cast<int32_t>(lanes.count) ? v : vfloat{};
}

FS_INLINE float sum(vfloat v) {
  float lanes[kWidth];
  memcpy(lanes, &v, sizeof(v));
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}
FS_INLINE float max_lane(vfloat v) {
  float lanes[kWidth];
  memcpy(lanes, &v, sizeof(v));
  for (int width = kWidth / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = lanes[l] > lanes[l + width] ? lanes[l] : lanes[l + width];
  return lanes[0];
}

// ---- sums in double ---------------------------------------------------------------------------------------

FS_INLINE vdouble lower_as_double(vfloat x) {
#if defined(__AVX512F__)
  return (vdouble)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
#elif defined(__AVX2__)
  return (vdouble)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
#else
  typedef float half __attribute__((vector_size(2 * kWidth)));
  half lower;
  memcpy(&lower, &x, sizeof(lower));
  return __builtin_convertvector(lower, vdouble);
#endif
}
FS_INLINE vdouble upper_as_double(vfloat x) {
#if defined(__AVX512F__)
  return (vdouble)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
  return (vdouble)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#else
  typedef float half __attribute__((vector_size(2 * kWidth)));
  half upper;
  memcpy(&upper, reinterpret_cast<const char*>(&x) + sizeof(upper), sizeof(upper));
  return __builtin_convertvector(upper, vdouble);
#endif
}

// Squares of floats summed in double: exact squares, no overflow, and a finite total exactly if all terms are finite.
struct SumOfSquares {
  vdouble lower = {}, upper = {};

  FS_INLINE void add(vfloat x) {
    const vdouble a = lower_as_double(x), b = upper_as_double(x);
    lower += a * a;
    upper += b * b;
  }
  FS_INLINE double total() const {
    const vdouble both = lower + upper;
    double sum = 0;
    for (int l = 0; l < kWidth / 2; ++l) sum += both[l];
    return sum;
  }
};

// ---- loops ------------------------------------------------------------------------------------------------

// body(i, lanes) for each vector of [0, n): lanes is All, and First for what is left over.
template <class Body>
FS_INLINE void for_vectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i, All{});
  if (i < n) body(i, First{n - i});
}

// Sum over [0, n) of f(i, lanes), in four interleaved partial sums to hide the latency of the adder.
template <class F>
FS_INLINE float sum_of(int64_t n, const F& f) {
  vfloat s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    s0 += f(i, All{});
    s1 += f(i + kWidth, All{});
    s2 += f(i + 2 * kWidth, All{});
    s3 += f(i + 3 * kWidth, All{});
  }
  for (; i + kWidth <= n; i += kWidth) s0 += f(i, All{});
  if (i < n) s1 += keep(f(i, First{n - i}), First{n - i});
  return sum((s0 + s1) + (s2 + s3));
}

}  // namespace
