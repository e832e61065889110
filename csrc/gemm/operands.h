// The two matrices of a product, and how parts of them are packed whatever their types.
#pragma once
#include "gemm/pack.h"
#include "gemm/tile.h"

namespace {

struct Shape {
  int64_t m, n, k;
  int64_t num_parts() const { return max_of(1, (k + kDepth - 1) / kDepth); }
  int64_t part(int64_t i) const { return k * i / num_parts(); }  // where part i of the depth begins
  int64_t num_col_panels() const { return (n + kTileCols - 1) / kTileCols; }
};

using PackRows = void (*)(const void* a, int64_t row, int64_t col, int64_t row_begin, int64_t depth_begin,
                          const Panels& panels, int64_t first, int64_t last, int64_t depth, float* to);
using PackCols = void (*)(const void* b, int64_t row, int64_t col, int64_t depth_begin, int64_t col_begin, int64_t cols,
                          int64_t depth, int64_t stride, float* to);

template <class T>
void pack_rows_of(const void* a, int64_t row, int64_t col, int64_t row_begin, int64_t depth_begin,
                  const Panels& panels, int64_t first, int64_t last, int64_t depth, float* to) {
  const T* from = static_cast<const T*>(a) + row_begin * row + depth_begin * col;
  pack_rows(Strided<T>{from, row, col}, panels, first, last, depth, to);
}
template <class T>
void pack_cols_of(const void* b, int64_t row, int64_t col, int64_t depth_begin, int64_t col_begin, int64_t cols,
                  int64_t depth, int64_t stride, float* to) {
  const T* from = static_cast<const T*>(b) + depth_begin * row + col_begin * col;
  pack_cols<kTileCols>(Strided<T>{from, row, col}, cols, depth, stride, to);
}

struct Operands {
  Shape shape;
  const void *a, *b;
  int64_t a_row, a_col, b_row, b_col;
  int32_t a_dtype, b_dtype;

  PackRows pack_a() const { return a_dtype == FS_F32 ? pack_rows_of<float> : pack_rows_of<bf16>; }
  PackCols pack_b() const { return b_dtype == FS_F32 ? pack_cols_of<float> : pack_cols_of<bf16>; }
};

}  // namespace
