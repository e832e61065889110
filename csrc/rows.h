// What kernels over matrices share: how a matrix is cut for the threads, and scratch for parameter vectors and sums
// over rows.
#pragma once
#include "kernel.h"

namespace {

// Scratch of one call: fp32 copies of parameter vectors, then fp32 accumulators of that length for each thread.
struct RowScratch {
  int64_t cols, stride;
  int threads, num_vectors, per_thread;
  float* base;

  RowScratch(int64_t cols, int threads, int num_vectors, int per_thread)
      : cols(cols), stride((cols + 15) / 16 * 16), threads(threads), num_vectors(num_vectors), per_thread(per_thread) {
    base = static_cast<float*>(fs_internal_scratch((num_vectors + threads * per_thread) * stride * 4));
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

// A matrix cut into one block a thread: of whole rows where there are enough of them, else of columns.
struct Blocks {
  static constexpr int64_t kColumnUnit = 64;  // columns are cut at multiples of it: no cache line has two writers

  int64_t rows, cols, grain;
  bool by_rows;

  // `elements` elements are worth a thread.
  Blocks(int64_t rows, int64_t cols, int64_t elements) : rows(rows), cols(cols) {
    elements = fs_internal_grain(elements);
    // With four rows a thread, the one that gets a row more than another works at most a quarter longer.
    by_rows = rows >= 4 * fs_internal_num_threads(rows * cols, elements) || cols < 2 * kColumnUnit;
    grain = max_of(1, elements / max_of(1, by_rows ? cols : rows * kColumnUnit));
  }

  int64_t num_units() const { return by_rows ? rows : (cols + kColumnUnit - 1) / kColumnUnit; }
  int threads() const { return static_cast<int>(max_of(1, fs_internal_num_threads(num_units(), grain))); }

  // body(first row, end row, first column, end column, thread)
  template <class Body>
  void run(const Body& body) const {
    parallel_for(num_units(), grain, [&](int64_t begin, int64_t end, int thread) {
      if (by_rows)
        body(begin, end, int64_t{0}, cols, thread);
      else
        body(int64_t{0}, rows, begin * kColumnUnit, min_of(cols, end * kColumnUnit), thread);
    });
  }
};

}  // namespace
