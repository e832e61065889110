// Words of 32 bits that vector products are summed from: one float, or two bf16 that follow each other in the depth.
#pragma once
#include "simd/transpose.h"

namespace {

struct F32Words {
  using Element = float;
  static constexpr int64_t kStep = 1;  // of the depth in a word
  FS_INLINE static vfloat add_product(vfloat sum, vuint a, vuint b) { return sum + float_of(a) * float_of(b); }
};

#if defined(__AVX512BF16__)
// A word is multiplied by a word and both products are added: twice the work of an fp32 multiply-add in the same time.
struct Bf16Words {
  using Element = bf16;
  static constexpr int64_t kStep = 2;
  FS_INLINE static vfloat add_product(vfloat sum, vuint a, vuint b) {
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// Words with these lower and upper halves.
FS_INLINE vuint join_halves(vhalf lower, vhalf upper) { return widen(lower) | widen(upper) << 16; }

// A matrix as lines along the depth: element d of line l is data[l * line + d * step]. Rows of the left operand of a
// product are such lines, and columns of the right one.
template <class T>
struct Lines {
  const T* data;
  int64_t line, step;

  FS_INLINE const T* at(int64_t l, int64_t d) const { return data + l * line + d * step; }
  FS_INLINE Lines from(int64_t l, int64_t d) const { return {at(l, d), line, step}; }
};

// Reads words of lines of T. Precondition of the vector functions: the depth has all of what they read.
template <class Words, class T>
struct WordReader;

template <>
struct WordReader<F32Words, float> {
  // Word s of line l; depth: of the line, beyond which there are zeros.
  FS_INLINE static uint32_t word(const Lines<float>& m, int64_t l, int64_t s, int64_t) { return bits_of(*m.at(l, s)); }
  // Four words from s on, of lines that are dense in the depth.
  FS_INLINE static vquad quad(const Lines<float>& m, int64_t l, int64_t s) { return load_quad(m.at(l, s)); }
  // Word s of kWidth lines (or the first few) that lie side by side.
  template <class Lanes>
  FS_INLINE static vuint across(const Lines<float>& m, int64_t l, int64_t s, int64_t, Lanes lanes) {
    return bits_of(load(m.at(l, s), lanes));
  }
};
template <>
struct WordReader<F32Words, bf16> {
  FS_INLINE static uint32_t word(const Lines<bf16>& m, int64_t l, int64_t s, int64_t) {
    return static_cast<uint32_t>(*m.at(l, s)) << 16;
  }
  FS_INLINE static vquad quad(const Lines<bf16>& m, int64_t l, int64_t s) { return load_widened_quad(m.at(l, s)); }
  template <class Lanes>
  FS_INLINE static vuint across(const Lines<bf16>& m, int64_t l, int64_t s, int64_t, Lanes lanes) {
    return bits_of(load(m.at(l, s), lanes));
  }
};
#if defined(__AVX512BF16__)
template <>
struct WordReader<Bf16Words, bf16> {
  FS_INLINE static uint32_t word(const Lines<bf16>& m, int64_t l, int64_t s, int64_t depth) {
    const uint32_t lower = *m.at(l, 2 * s);
    return 2 * s + 1 < depth ? lower | static_cast<uint32_t>(*m.at(l, 2 * s + 1)) << 16 : lower;
  }
  FS_INLINE static vquad quad(const Lines<bf16>& m, int64_t l, int64_t s) { return load_quad(m.at(l, 2 * s)); }
  template <class Lanes>
  FS_INLINE static vuint across(const Lines<bf16>& m, int64_t l, int64_t s, int64_t depth, Lanes lanes) {
    const vhalf lower = load_halves(m.at(l, 2 * s), lanes);
    return join_halves(lower, 2 * s + 1 < depth ? load_halves(m.at(l, 2 * s + 1), lanes) : vhalf{});
  }
};
#endif

// Words s .. s + 3 of up to kWidth lines that are dense in the depth: lane l of v[j] is word s + j of line l. Lines from
// `count` on are the last one again.
template <class Words, class T>
FS_INLINE void read_quads(const Lines<T>& m, int64_t count, int64_t s, vuint v[4]) {
  for (int j = 0; j < 4; ++j)
    v[j] = join_quads([&](int q) {
      const int64_t l = 4 * q + j;
      return WordReader<Words, T>::quad(m, l < count ? l : count - 1, s);
    });
  transpose_quads(v);
}

}  // namespace
