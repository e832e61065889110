// What the row norms share: scratch, parameter vectors in fp32, the residual sum.
#pragma once
#include "kernel.h"

namespace {

// Elements that are worth a thread in the norms: see benchmarks/thresholds.md.
constexpr int64_t kNormGrain = 16384;

// Scratch of one call: fp32 copies of parameter vectors, then fp32 accumulators of that length for each thread.
struct NormScratch {
  int64_t cols, stride, grain;
  int threads, num_vectors, per_thread;
  float* base;

  NormScratch(int64_t rows, int64_t cols, int num_vectors, int per_thread)
      : cols(cols), stride((cols + 15) / 16 * 16), grain(grain_rows(kNormGrain, cols)),
        threads(static_cast<int>(max_of(1, fs_internal_num_threads(rows, grain)))), num_vectors(num_vectors),
        per_thread(per_thread) {
    base = static_cast<float*>(fs_internal_scratch((num_vectors + threads * per_thread) * stride * 4));
    if (per_thread) memset(accumulator(0, 0), 0, sizeof(float) * threads * per_thread * stride);
  }

  // A parameter vector as floats; NULL stays NULL.
  const float* vector(int which, const void* source, int32_t dtype) const {
    if (!source || dtype == FS_F32) return static_cast<const float*>(source);
    float* copy = base + which * stride;
    const bf16* from = static_cast<const bf16*>(source);
    for_vectors(cols, [=](int64_t i, auto lanes) { store(copy + i, load(from + i, lanes), lanes); });
    return copy;
  }
  float* accumulator(int thread, int which) const {
    return base + (num_vectors + static_cast<int64_t>(thread) * per_thread + which) * stride;
  }
  // out = that accumulator summed over the threads, in their order.
  void add_up(int which, float* out) const {
    for_vectors(cols, [&](int64_t i, auto lanes) {
      vfloat total = {};
      for (int t = 0; t < threads; ++t) total += load(accumulator(t, which) + i, lanes);
      store(out + i, total, lanes);
    });
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
