// The innermost part of a matrix product: a tile of C kept in registers, and what is done to it before it is stored.
//
// A tile is up to kTileRows rows of kTileVectors vectors. Each step of the depth loads one row of the panel of B and
// broadcasts one column of the panel of A: with 6 x 16 on AVX2 that is 8 loads for 12 multiply-adds, so the
// multiply-adds are the limit, and 12 sums in flight hide their latency.
#pragma once
#include "kernels/activations.h"
#include "kernel.h"

namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 14, kTileVectors = 2;  // 28 sums of 32 registers
constexpr int64_t kDepth = 192;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 sums of 16 registers
constexpr int64_t kDepth = 256;
#elif defined(__aarch64__)
constexpr int kTileRows = 6, kTileVectors = 3;  // 18 sums of 32 registers; GCC 12 spills some of 24
constexpr int64_t kDepth = 256;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
constexpr int64_t kDepth = 256;
#endif
// kDepth: the depth done at a time, so that a panel of B (16 to 24 KiB) stays in the first-level cache.
constexpr int64_t kTileCols = kTileVectors * kWidth;
constexpr int64_t kTileSize = kTileRows * kTileCols;

// The part of A that a tile multiplies: element (r, k) is data[r * row + k * step]. Packed as [depth][kRows], or the
// rows of the matrix as they lie.
struct TileRows {
  const float* data;
  int64_t row;  // 0: packed
};

// sums (or 0, if `fresh`) += a b over `depth`. b: [depth][kTileCols]. sums: kRows rows, `stride` apart.
template <int kRows, bool kPacked>
FS_INLINE void multiply_tile_as(int64_t depth, const float* a, int64_t row, const float* b, float* sums, int64_t stride,
                                bool fresh) {
  // Without the pragma GCC 12 takes the sums through the stack before and after the loop.
  vfloat s[kRows][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) s[r][v] = fresh ? vfloat{} : load(sums + r * stride + v * kWidth, All{});
  for (int64_t k = 0; k < depth; ++k, a += kPacked ? kRows : 1, b += kTileCols) {
    vfloat b_row[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) b_row[v] = load(b + v * kWidth, All{});
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) s[r][v] += b_row[v] * a[kPacked ? r : r * row];
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) store(sums + r * stride + v * kWidth, s[r][v], All{});
}
template <int kRows>
void multiply_tile(int64_t depth, TileRows a, const float* b, float* sums, int64_t stride, bool fresh) {
  if (a.row)
    multiply_tile_as<kRows, false>(depth, a.data, a.row, b, sums, stride, fresh);
  else
    multiply_tile_as<kRows, true>(depth, a.data, 0, b, sums, stride, fresh);
}

using MultiplyTile = void (*)(int64_t depth, TileRows a, const float* b, float* sums, int64_t stride, bool fresh);
// multiply_tile for each number of rows, from 1 to kTileRows.
template <int... kRows>
struct TileTable {
  static constexpr MultiplyTile functions[] = {multiply_tile<kRows>...};
};
#if defined(__AVX512F__)
using Tiles = TileTable<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#elif defined(__AVX2__)
using Tiles = TileTable<1, 2, 3, 4, 5, 6>;
#elif defined(__aarch64__)
using Tiles = TileTable<1, 2, 3, 4, 5, 6>;
#else
using Tiles = TileTable<1, 2, 3, 4>;
#endif

// What becomes of the sums of a tile once they are complete.
template <class T>
struct Output {
  T* c;
  T* pre;  // or NULL: receives the sums with bias, before the activation
  int64_t stride;
  bool accumulate;
};

// c = activation(sums + bias) for rows x cols of a tile at `at`; with accumulate c + sums. bias: fp32, zeros if none.
template <class A, class T>
FS_INLINE void finish_tile(const float* sums, const float* bias, const Output<T>& out, int64_t at, int64_t rows,
                           int64_t cols) {
  for (int64_t r = 0; r < rows; ++r, sums += kTileCols, at += out.stride)
    for_vectors(cols, [&](int64_t i, auto lanes) {
      vfloat z = load(sums + i, All{}) + load(bias + i, All{});
      if (out.accumulate) z += load(out.c + at + i, lanes);
      if (out.pre) store(out.pre + at + i, z, lanes);
      store(out.c + at + i, A::value(z), lanes);
    });
}

}  // namespace
