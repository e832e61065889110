// Tiles of a product by arm64's bfmmla: 8 x 8 in 16 registers of 2 x 2 sums.
#pragma once
#include "gemm/pack.h"
#include "simd/mmla.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

namespace {

struct MmlaTiles {
  static constexpr int64_t kRows = 8, kCols = 8, kRowUnit = 2, kStep = kMmlaDepth;
  static constexpr int64_t kDepth = 512;  // done at a time: a panel of columns is 8 KiB
  using Packed = bf16;
  using Element = bf16;
  struct Scope {};

  FS_INLINE static int64_t line_size(int64_t depth) { return divide_up(depth, kStep) * kStep; }
  FS_INLINE static int64_t rows_at(int64_t depth, int64_t height) { return depth * divide_up(height, kRowUnit) * kRowUnit; }
  FS_INLINE static int64_t cols_at(int64_t depth) { return depth * kCols; }

  // Panel p stands at to + panels.begin(p) * line_size as [depth / 4][height][4].
  static void pack_rows(const Lines<bf16>& m, const Panels& panels, Range range, int64_t depth, Packed* to) {
    for (int64_t p = range.first; p < range.last; ++p) {
      const int64_t begin = panels.begin(p), height = panels.height(p);
      pack(m.from(begin, 0), height, divide_up(height, kRowUnit) * kRowUnit, depth, to + begin * line_size(depth));
    }
  }
  static void pack_cols(const Lines<bf16>& m, int64_t count, int64_t depth, int64_t stride, Packed* to) {
    for (int64_t l = 0; l < count; l += kCols)
      pack(m.from(l, 0), min_of(kCols, count - l), kCols, depth, to + l / kCols * stride);
  }

  FS_INLINE static void multiply(int64_t depth, const Packed* a, int64_t height, const Packed* b, float* sums,
                                 int64_t stride, bool fresh) {
    switch (divide_up(height, kRowUnit)) {
      case 1: return multiply_as<1>(divide_up(depth, kStep), a, b, sums, stride, fresh);
      case 2: return multiply_as<2>(divide_up(depth, kStep), a, b, sums, stride, fresh);
      case 3: return multiply_as<3>(divide_up(depth, kStep), a, b, sums, stride, fresh);
      default: return multiply_as<4>(divide_up(depth, kStep), a, b, sums, stride, fresh);
    }
  }

 private:
  // `count` lines, with zeros up to `height` and to whole steps, as [depth / 4][height][4].
  static void pack(const Lines<bf16>& m, int64_t count, int64_t height, int64_t depth, bf16* to) {
    for (int64_t d = 0; d < depth; d += kStep)
      for (int64_t l = 0; l < height; ++l, to += kStep) {
        if (m.step == 1 && l < count && d + kStep <= depth) {
          memcpy(to, m.at(l, d), kStep * sizeof(bf16));
          continue;
        }
        for (int64_t i = 0; i < kStep; ++i) to[i] = l < count && d + i < depth ? *m.at(l, d + i) : bf16{0};
      }
  }

  // kPairs: of rows.
  template <int kPairs>
  static void multiply_as(int64_t steps, const bf16* a, const bf16* b, float* sums, int64_t stride, bool fresh) {
    constexpr int kColPairs = kCols / 2, kPairSize = 2 * kMmlaDepth;
    vfloat s[kPairs][kColPairs];
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kColPairs; j += 2) {
        const float* from = sums + 2 * i * stride + 2 * j;
        const MmlaPair pair = fresh ? MmlaPair{} : exchange_halves({load(from, All{}), load(from + stride, All{})});
        s[i][j] = pair.first;
        s[i][j + 1] = pair.second;
      }
    for (int64_t k = 0; k < steps; ++k, a += kPairs * kPairSize, b += kColPairs * kPairSize)
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < kColPairs; ++j) s[i][j] = add_mmla(s[i][j], a + i * kPairSize, b + j * kPairSize);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kColPairs; j += 2) {
        float* to = sums + 2 * i * stride + 2 * j;
        const MmlaPair rows = exchange_halves({s[i][j], s[i][j + 1]});
        store(to, rows.first, All{});
        store(to + stride, rows.second, All{});
      }
  }
};

}  // namespace

#endif
