// Tiles of a product in vector registers: the innermost loop, for words of fp32 and of bf16.
//
// A tile is up to kRows rows of kVectors vectors. Each step of the depth loads one row of the panel of the right operand
// and broadcasts one word of each row of the left one: with 6 x 16 on AVX2 that is 8 loads for 12 multiply-adds, so the
// multiply-adds are the limit, and 12 sums in flight hide their latency.
#pragma once
#include "gemm/pack.h"

namespace {

template <class Words>
struct VectorTiles {
#if defined(__AVX512F__)
  static constexpr int kRows = 14, kVectors = 2;  // 28 sums of 32 registers
  static constexpr int64_t kWords = 192;
#elif defined(__AVX2__)
  static constexpr int kRows = 6, kVectors = 2;  // 12 sums of 16 registers
  static constexpr int64_t kWords = 256;
#elif defined(__aarch64__)
  static constexpr int kRows = 6, kVectors = 3;  // 18 sums of 32 registers; GCC 12 spills some of 24
  static constexpr int64_t kWords = 256;
#else
  static constexpr int kRows = 4, kVectors = 2;
  static constexpr int64_t kWords = 256;
#endif
  // kWords: of the depth done at a time, so that a panel of the right operand (16 to 24 KiB) stays in the first-level cache.
  static constexpr int64_t kCols = kVectors * kWidth, kStep = Words::kStep, kDepth = kWords * kStep, kRowUnit = 1;
#if defined(__AVX512F__)
  static constexpr bool kTakesLying = false;  // 14 rows where they lie are too many pointers for the registers
#else
  static constexpr bool kTakesLying = true;
#endif
  using Packed = uint32_t;
  using Element = typename Words::Element;

  struct Scope {};  // what a thread needs while it multiplies: nothing

  // Packed elements of a line of this depth.
  FS_INLINE static int64_t line_size(int64_t depth) { return divide_up(depth, kStep); }

  // Where a depth begins in a panel of rows and in one of columns. Precondition: a multiple of kStep.
  FS_INLINE static int64_t rows_at(int64_t depth, int64_t height) { return depth / kStep * height; }
  FS_INLINE static int64_t cols_at(int64_t depth) { return depth / kStep * kCols; }

  template <class T>
  static void pack_rows(const Lines<T>& m, const Panels& panels, Range range, int64_t depth, Packed* to) {
    ::pack_rows<Words>(m, panels, range, depth, to);
  }
  template <class T>
  static void pack_cols(const Lines<T>& m, int64_t count, int64_t depth, int64_t stride, Packed* to) {
    ::pack_cols<Words, kCols>(m, count, depth, stride, to);
  }

  // sums (or 0, if `fresh`) += a b over `depth`. a: a panel of `height` rows, b: one of kCols columns. sums: `stride` apart.
  FS_INLINE static void multiply(int64_t depth, const Packed* a, int64_t height, const Packed* b, float* sums,
                                 int64_t stride, bool fresh) {
    kPacked[height - 1](line_size(depth), a, 0, b, sums, stride, fresh);
  }
  // The same with rows of a as they lie, `row` words apart.
  FS_INLINE static void multiply_lying(int64_t depth, const Packed* a, int64_t row, int64_t height, const Packed* b,
                                       float* sums, int64_t stride, bool fresh) {
    kLying[height - 1](line_size(depth), a, row, b, sums, stride, fresh);
  }

 private:
  template <int kHeight, bool kIsPacked>
  static void multiply_rows(int64_t steps, const Packed* a, int64_t row, const Packed* b, float* sums, int64_t stride,
                            bool fresh) {
    // Without the pragma GCC 12 takes the sums through the stack before and after the loop.
    vfloat s[kHeight][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) s[r][v] = fresh ? vfloat{} : load(sums + r * stride + v * kWidth, All{});
    for (int64_t k = 0; k < steps; ++k, a += kIsPacked ? kHeight : 1, b += kCols) {
      vuint b_row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) b_row[v] = load_lanes<vuint>(b + v * kWidth, All{});
#pragma GCC unroll 16
      for (int r = 0; r < kHeight; ++r) {
        const vuint word = broadcast(a[kIsPacked ? r : r * row]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) s[r][v] = Words::add_product(s[r][v], word, b_row[v]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kHeight; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(sums + r * stride + v * kWidth, s[r][v], All{});
  }

  using Function = void (*)(int64_t steps, const Packed* a, int64_t row, const Packed* b, float* sums, int64_t stride,
                            bool fresh);
  template <bool kIsPacked, int... kHeights>
  struct Table {
    static constexpr Function functions[] = {multiply_rows<kHeights, kIsPacked>...};
  };
#if defined(__AVX512F__)
  static constexpr const Function* kPacked = Table<true, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>::functions;
  static constexpr const Function* kLying = nullptr;
#else
  static constexpr const Function* kPacked = Table<true, 1, 2, 3, 4, 5, 6>::functions;
  static constexpr const Function* kLying = Table<false, 1, 2, 3, 4, 5, 6>::functions;
#endif
};

}  // namespace
