// Row softmax, forward and backward, with a factor on the input and an optional causal limit.
#include "kernels/softmax.h"

#include "kernel.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kSoftmaxGrain = 8192;

// The columns that row r sees: all, or with block_rows > 0 as many as its place in its block and the offset allow.
FS_INLINE int64_t visible(int64_t r, int64_t cols, int64_t block_rows, int64_t offset) {
  return block_rows > 0 ? min_of(cols, r % block_rows + offset + 1) : cols;
}

template <class T>
FS_INLINE void hide(T* y, int64_t from, int64_t cols) {
  if (from < cols) memset(y + from, 0, sizeof(T) * static_cast<size_t>(cols - from));
}

// e: the row of fp32 exponentials; may be y itself when that is fp32.
template <class T>
FS_INLINE void softmax_row(const T* x, T* y, float* e, float scale, int64_t n) {
  const float max = max_of_row(x, n);
  const float sum = sum_in_blocks(0, n, [=](int64_t i, auto lanes) {
    const vfloat value = exp_nonpositive((load(x + i, lanes) - max) * scale);
    store(e + i, value, lanes);
    return value;
  });
  const float factor = 1 / sum;
  for_vectors(n, [=](int64_t i, auto lanes) { store_result(y + i, load(e + i, lanes) * factor, lanes); });
}

template <class T>
FS_INLINE void softmax_backward_row(const T* dy, const T* y, T* dx, float scale, int64_t n) {
  const float dot =
      sum_in_blocks(0, n, [=](int64_t i, auto lanes) { return load(dy + i, lanes) * load(y + i, lanes); });
  for_vectors(n, [=](int64_t i, auto lanes) {
    store_result(dx + i, scale * load(y + i, lanes) * (load(dy + i, lanes) - dot), lanes);
  });
}

}  // namespace

FS_DEFINE(softmax_forward)(const void* x, void* y, int64_t rows, int64_t cols, float scale, int64_t block_rows,
                           int64_t offset, int32_t dtype) {
  const int64_t grain = grain_rows(kSoftmaxGrain, cols);
  const ExpScratch scratch(rows, cols, grain, dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = row<T>(y, r, cols);
        const int64_t n = visible(r, cols, block_rows, offset);
        softmax_row(row<T>(x, r, cols), out, scratch.row(thread, out), scale, n);
        hide(out, n, cols);
      }
    });
  });
}

FS_DEFINE(softmax_backward)(const void* dy, const void* y, void* dx, int64_t rows, int64_t cols, float scale,
                            int64_t block_rows, int64_t offset, int32_t dtype) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain_rows(kSoftmaxGrain, cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = row<T>(dx, r, cols);
        const int64_t n = visible(r, cols, block_rows, offset);
        softmax_backward_row(row<T>(dy, r, cols), row<T>(y, r, cols), out, scale, n);
        hide(out, n, cols);
      }
    });
  });
}
