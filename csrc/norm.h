// What the row norms share: scratch, parameter vectors in fp32, the residual sum.
#pragma once
#include "rows.h"

namespace {

// Elements that are worth a thread in the norms: see benchmarks/thresholds.md.
constexpr int64_t kNormGrain = 16384;

// Rows cut for the threads, and the accumulators of each at zero.
struct NormScratch : RowScratch {
  int64_t grain;

  NormScratch(int64_t rows, int64_t cols, int num_vectors, int per_thread)
      : NormScratch(cols, num_vectors, per_thread, rows, grain_rows(kNormGrain, cols)) {}

 private:
  NormScratch(int64_t cols, int num_vectors, int per_thread, int64_t rows, int64_t grain)
      : RowScratch(cols, static_cast<int>(max_of(1, fs_internal_num_threads(rows, grain))), num_vectors, per_thread),
        grain(grain) {
    if (per_thread) memset(accumulator(0, 0), 0, sizeof(float) * threads * per_thread * stride);
  }
};

// The row to normalise: x itself, or x + residual after storing it, so that forward sees what backward will see.
template <class T>
FS_INLINE const T* add_residual(const T* x, const T* residual, T* sum, int64_t cols) {
  if (!residual) return x;
  for_vectors(cols, [=](int64_t i, auto lanes) { store(sum + i, load(x + i, lanes) + load(residual + i, lanes), lanes); });
  return sum;
}

}  // namespace
