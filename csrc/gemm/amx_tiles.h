// Tiles of a product in the CPU's matrix unit: 2 x 2 of its tiles, so that 4 loads feed 4 multiplications of 16 cycles.
#pragma once
#include "gemm/pack.h"
#include "simd/amx.h"

#if defined(__AMX_BF16__)

namespace {

struct AmxTiles {
  static constexpr int64_t kRows = 2 * kMatrixRows, kCols = 2 * kMatrixRows, kRowUnit = kMatrixRows, kStep = kMatrixDepth;
  // Of the depth done at a time: a panel of columns is 32 KiB, and sums pass through memory once in so many steps.
  static constexpr int64_t kDepth = 512;
  using Packed = bf16;
  using Element = bf16;
  using Scope = MatrixScope;

  FS_INLINE static int64_t line_size(int64_t depth) { return divide_up(depth, kStep) * kStep; }

  FS_INLINE static int64_t rows_at(int64_t depth, int64_t height) { return depth * divide_up(height, kRowUnit) * kRowUnit; }
  FS_INLINE static int64_t cols_at(int64_t depth) { return depth * kCols; }

  // Panel p stands at to + panels.begin(p) * line_size as [depth / 32][height / 16][row][32].
  static void pack_rows(const Lines<bf16>& m, const Panels& panels, Range range, int64_t depth, Packed* to) {
    for (int64_t p = range.first; p < range.last; ++p) {
      const int64_t begin = panels.begin(p), tiles = divide_up(panels.height(p), kMatrixRows);
      bf16* const target = to + begin * line_size(depth);
      for (int64_t t = 0; t < tiles; ++t)
        for (int64_t d = 0; d < depth; d += kStep) {
          const int64_t first = begin + t * kMatrixRows;
          pack_tile<true>(m.from(first, d), min_of(kMatrixRows, panels.rows - first), depth - d,
                          target + (d / kStep * tiles + t) * kSize);
        }
    }
  }
  // Panel q stands at to + q * stride as [depth / 32][2][pair][column].
  static void pack_cols(const Lines<bf16>& m, int64_t count, int64_t depth, int64_t stride, Packed* to) {
    for (int64_t l = 0; l < count; l += kMatrixRows)
      for (int64_t d = 0; d < depth; d += kStep)
        pack_tile<false>(m.from(l, d), min_of(kMatrixRows, count - l), depth - d,
                         to + l / kCols * stride + (d / kStep * 2 + l / kMatrixRows % 2) * kSize);
  }

  FS_INLINE static void multiply(int64_t depth, const Packed* a, int64_t height, const Packed* b, float* sums,
                                 int64_t stride, bool fresh) {
    if (height > kMatrixRows)
      multiply_as<true>(divide_up(depth, kStep), a, b, sums, stride, fresh);
    else
      multiply_as<false>(divide_up(depth, kStep), a, b, sums, stride, fresh);
  }

 private:
  static constexpr int64_t kSize = kMatrixRows * kMatrixDepth, kRowBytes = 2 * kMatrixDepth;

  // 16 lines x 32 of the depth, with zeros beyond both: a row of the tile is a line, or a pair of all lines.
  template <bool kByLines>
  static void pack_tile(const Lines<bf16>& m, int64_t count, int64_t depth, bf16* to) {
    using Reader = WordReader<Bf16Words, bf16>;
    vuint rows[kWidth];
    if (m.step == 1) {
      for (int64_t l = 0; l < kWidth; ++l) rows[l] = l < count ? read_line(m.at(l, 0), depth) : vuint{};
      if (!kByLines) transpose(rows);
    } else if (m.line == 1) {
      for (int64_t s = 0; s < kWidth; ++s)
        rows[s] = 2 * s >= depth      ? vuint{}
                  : count == kWidth ? Reader::across(m, 0, s, depth, All{})
                                    : Reader::across(m, 0, s, depth, First{count});
      if (kByLines) transpose(rows);
    } else {
      for (int64_t r = 0; r < kWidth; ++r)
        for (int64_t c = 0; c < kWidth; ++c) {
          const int64_t l = kByLines ? r : c, s = kByLines ? c : r;
          rows[r][c] = l < count && 2 * s < depth ? Reader::word(m, l, s, depth) : 0;
        }
    }
    for (int64_t r = 0; r < kWidth; ++r) store_lanes(to + r * kMatrixDepth, rows[r], All{});
  }
  FS_INLINE static vuint read_line(const bf16* p, int64_t depth) {
    if (depth >= kMatrixDepth) return load_lanes<vuint>(p, All{});
    const auto half = [](const bf16* from, int64_t n) {
      return n >= kWidth ? load_halves(from, All{}) : n > 0 ? load_halves(from, First{n}) : vhalf{};
    };
    return join(half(p, depth), half(p + kWidth, depth - kWidth));
  }

  // kTwo: of rows. Tiles 0 to 3 are sums, 4 and 5 rows, 6 and 7 columns.
  template <bool kTwo>
  static void multiply_as(int64_t steps, const bf16* a, const bf16* b, float* sums, int64_t stride, bool fresh) {
    const int64_t bytes = 4 * stride;
    float* const lower = sums + kMatrixRows * stride;
    if (fresh) {
      clear_matrix<0>();
      clear_matrix<1>();
      if (kTwo) {
        clear_matrix<2>();
        clear_matrix<3>();
      }
    } else {
      load_matrix<0>(sums, bytes);
      load_matrix<1>(sums + kMatrixRows, bytes);
      if (kTwo) {
        load_matrix<2>(lower, bytes);
        load_matrix<3>(lower + kMatrixRows, bytes);
      }
    }
    for (int64_t k = 0; k < steps; ++k, a += (kTwo ? 2 : 1) * kSize, b += 2 * kSize) {
      load_matrix<4>(a, kRowBytes);
      load_matrix<6>(b, kRowBytes);
      multiply_matrices<0, 4, 6>();
      load_matrix<7>(b + kSize, kRowBytes);
      multiply_matrices<1, 4, 7>();
      if (kTwo) {
        load_matrix<5>(a + kSize, kRowBytes);
        multiply_matrices<2, 5, 6>();
        multiply_matrices<3, 5, 7>();
      }
    }
    store_matrix<0>(sums, bytes);
    store_matrix<1>(sums + kMatrixRows, bytes);
    if (kTwo) {
      store_matrix<2>(lower, bytes);
      store_matrix<3>(lower + kMatrixRows, bytes);
    }
  }
};

}  // namespace

#endif
