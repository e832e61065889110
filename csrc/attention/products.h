// Products of the blocks of attention, by the tiles of gemm/: operands are packed once and used by many blocks.
#pragma once
#include "attention/call.h"
#include "gemm/tiles.h"

namespace {

// The tiles that multiply tensors of T.
template <class T>
struct TilesOf {
  using type = F32Tiles;
};
template <>
struct TilesOf<bf16> {
  using type = Bf16Tiles;
};

struct Span {
  int64_t begin, end;
};

template <class Tiles>
struct BlockProducts {
  using Packed = typename Tiles::Packed;
  using Element = typename Tiles::Element;  // of what is multiplied
  static constexpr int64_t kCols = Tiles::kCols;
  static constexpr int64_t kPadded = divide_up(kBlockTokens, kCols) * kCols;
  // Rows of a tile of scores are a cache line longer than they need: else they would share a few sets of the cache.
  static constexpr int64_t kStride = kPadded + 16;

  static int64_t padded(int64_t cols) { return divide_up(cols, kCols) * kCols; }
  static Panels panels(int64_t lines) { return Panels(lines, Tiles::kRows, Tiles::kRowUnit); }
  // Packed elements of up to kBlockTokens rows, and of so many columns.
  static int64_t rows_size(int64_t depth) { return kBlockTokens * Tiles::line_size(depth); }
  static int64_t cols_size(int64_t cols, int64_t depth) { return padded(cols) * Tiles::line_size(depth); }

  template <class T>
  static void pack_rows(const Lines<T>& lines, int64_t count, int64_t depth, Packed* to) {
    const Panels all = panels(count);
    Tiles::pack_rows(lines, all, {0, all.count}, depth, to);
  }
  template <class T>
  static void pack_cols(const Lines<T>& lines, int64_t count, int64_t depth, Packed* to) {
    Tiles::pack_cols(lines, count, depth, kCols * Tiles::line_size(depth), to);
  }

  // to = a b, or to += a b. a: `rows` packed rows, b: packed columns, both of this depth. Of the tile of rows [first, last)
  // and columns [first, last) only the span spans(rows, cols) of the depth is taken; without any it is left alone.
  template <class Spans>
  static void multiply(const Packed* a, int64_t rows, const Packed* b, int64_t cols, int64_t depth, float* to,
                       int64_t stride, bool add, const Spans& spans) {
    const Panels all = panels(rows);
    const int64_t line = Tiles::line_size(depth);
    for (int64_t col = 0; col < cols; col += kCols)
      for (int64_t p = 0; p < all.count; ++p) {
        const int64_t row = all.begin(p), height = all.height(p);
        Span span = spans(Range{row, row + height}, Range{col, col + kCols});
        if (span.begin >= span.end) continue;
        span.begin -= span.begin % Tiles::kStep;
        Tiles::multiply(span.end - span.begin, a + row * line + Tiles::rows_at(span.begin, height), height,
                        b + col * line + Tiles::cols_at(span.begin), to + row * stride + col, stride, !add);
      }
  }
};

}  // namespace
