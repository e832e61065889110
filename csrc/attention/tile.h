// Products of small fp32 matrices that lie in the cache, and the tiles of rows that they are fed with: attention.cc.
//
// A product is cut into pieces of kTileRows x kTileCols whose sums stay in registers while the depth runs: elements of
// the left matrix are broadcast, rows of the right one are read as vectors. So the right matrix and the result have
// rows padded to kTileCols, and the left one may lie by rows or by columns.
#pragma once
#include "kernel.h"

namespace {

// As many sums as the registers hold beside one row of the right matrix and one broadcast element.
#if defined(__AVX512F__)
constexpr int kTileRows = 12, kTileVectors = 2;
#elif defined(__aarch64__)
constexpr int kTileRows = 6, kTileVectors = 4;
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#endif
constexpr int kTileCols = kTileVectors * kWidth;

FS_INLINE int64_t padded(int64_t cols) { return (cols + kTileCols - 1) / kTileCols * kTileCols; }
// The distance of rows of a tile: a cache line more than they need, or rows of 512 bytes would share eight cache sets.
FS_INLINE int64_t tile_stride(int64_t cols) { return (cols + 15) / 16 * 16 + 16; }

// The left matrix: element (row, p) is at[row * stride + p] by rows, at[p * stride + row] by columns.
template <bool kByRows>
struct Left {
  const float* at;
  int64_t stride;
  FS_INLINE const float* piece(int64_t row, int64_t p) const {
    return kByRows ? at + row * stride + p : at + p * stride + row;
  }
};
struct Right {
  const float* at;
  int64_t stride;
};
struct Target {
  float* at;
  int64_t stride;
  bool add;  // to what is there
};

// One piece of M rows. Not inlined: there are up to a dozen of them for each layout, and the loop is long.
template <int M, bool kByRows>
__attribute__((noinline)) void multiply_piece(const float* left, int64_t left_stride, const float* right,
                                              int64_t right_stride, float* to, int64_t to_stride, int64_t depth,
                                              bool add) {
  vfloat sums[M][kTileVectors];
  for (int i = 0; i < M; ++i)
    for (int v = 0; v < kTileVectors; ++v)
      sums[i][v] = add ? load(to + i * to_stride + v * kWidth, All{}) : vfloat{};
  for (int64_t p = 0; p < depth; ++p) {
    vfloat row[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) row[v] = load(right + v * kWidth, All{});
    for (int i = 0; i < M; ++i) {
      const float element = kByRows ? left[i * left_stride] : left[i];
      for (int v = 0; v < kTileVectors; ++v) sums[i][v] += element * row[v];
    }
    left += kByRows ? 1 : left_stride;
    right += right_stride;
  }
  for (int i = 0; i < M; ++i)
    for (int v = 0; v < kTileVectors; ++v) store(to + i * to_stride + v * kWidth, sums[i][v], All{});
}

template <int M, bool kByRows>
FS_INLINE void multiply_rows(int64_t rows, const float* left, int64_t left_stride, const float* right,
                             int64_t right_stride, float* to, int64_t to_stride, int64_t depth, bool add) {
  if (rows >= M)
    return multiply_piece<M, kByRows>(left, left_stride, right, right_stride, to, to_stride, depth, add);
  if constexpr (M > 1)
    multiply_rows<M - 1, kByRows>(rows, left, left_stride, right, right_stride, to, to_stride, depth, add);
}

struct Span {
  int64_t begin, end;
};

// to = left right, or to += left right, rows x cols. Of the piece that begins at (row, col) only the depths span(row,
// col) are taken, and a piece of no depth is left alone; cols is a multiple of kTileCols.
template <bool kByRows, class Depths>
FS_INLINE void multiply(int64_t rows, int64_t cols, Left<kByRows> left, Right right, Target to, const Depths& depths) {
  for (int64_t col = 0; col < cols; col += kTileCols)
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const Span span = depths(row, col);
      if (span.begin >= span.end) continue;
      multiply_rows<kTileRows, kByRows>(rows - row, left.piece(row, span.begin), left.stride,
                                        right.at + span.begin * right.stride + col, right.stride,
                                        to.at + row * to.stride + col, to.stride, span.end - span.begin, to.add);
    }
}

// ---- tiles of rows -----------------------------------------------------------------------------------------

// rows x cols of a tensor as fp32, each row continued with zeros to padded(cols).
template <class T>
FS_INLINE void load_tile(const T* x, int64_t x_stride, int64_t rows, int64_t cols, float* tile, int64_t stride) {
  const int64_t end = padded(cols);
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * x_stride;
    float* to = tile + r * stride;
    int64_t c = 0;
    for (; c + kWidth <= cols; c += kWidth) store(to + c, load(from + c, All{}), All{});
    if (c < cols) {
      store(to + c, load(from + c, First{cols - c}), All{});  // absent lanes are zero
      c += kWidth;
    }
    for (; c < end; c += kWidth) store(to + c, vfloat{}, All{});
  }
}

// Every second lane of a and b, beginning with the first ones: a0 b0 a1 b1 ...
struct Interleaved {
  vfloat low, high;
};
FS_INLINE Interleaved interleave(vfloat a, vfloat b) {
#if defined(__AVX512F__)
  return {FS_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
          FS_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)};
#elif defined(__AVX2__)
  return {FS_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11), FS_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)};
#else
  return {FS_SHUFFLE(a, b, 0, 4, 1, 5), FS_SHUFFLE(a, b, 2, 6, 3, 7)};
#endif
}

// kWidth x kWidth elements with rows and columns exchanged: interleaving row i with row i + kWidth / 2 moves one bit of
// the row number into the column number, and as many times as there are bits exchanges them.
FS_INLINE void transpose(vfloat (&rows)[kWidth]) {
  for (int bits = kWidth; bits > 1; bits /= 2) {
    vfloat next[kWidth];
    for (int i = 0; i < kWidth / 2; ++i) {
      const Interleaved pair = interleave(rows[i], rows[i + kWidth / 2]);
      next[2 * i] = pair.low;
      next[2 * i + 1] = pair.high;
    }
    for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
  }
}

// tile[c][r] = factor * x[r][c]: cols rows, each continued with zeros to padded(rows).
template <class T>
FS_INLINE void load_transposed(const T* x, int64_t x_stride, int64_t rows, int64_t cols, float factor, float* tile,
                               int64_t stride) {
  const int64_t end = padded(rows);
  for (int64_t r = 0; r < end; r += kWidth) {
    const int64_t present = min_of(kWidth, rows - r);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      vfloat block[kWidth];
      for (int i = 0; i < kWidth; ++i)
        block[i] = i < present ? factor * load(x + (r + i) * x_stride + c, lanes) : vfloat{};
      transpose(block);
      for (int i = 0; i < kWidth; ++i)
        if (i < lanes.count) store(tile + (c + i) * stride + r, block[i], All{});
    });
  }
}

}  // namespace
