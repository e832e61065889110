// Softmax cross-entropy over rows: the loss and the gradient of the logits in one call.
#include "kernels/softmax.h"

#include "kernel.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kCrossEntropyGrain = 16384;

struct Smoothing {
  float target, each;  // the target distribution: `each` everywhere, and `target` more at the target
};

// One row. The sum of the exponentials leaves out the target, and so does every formula where adding it first would
// cancel: a confident row keeps the digits of its small loss and of its small gradient at the target.
// e: the row of fp32 exponentials, or NULL if only the loss is wanted; may be dlogits itself when that is fp32.
template <class T>
FS_INLINE float cross_entropy_row(const T* x, int64_t target, T* dlogits, float* e, float scale, Smoothing smoothing,
                                  int64_t classes) {
  const float max = max_of_row(x, classes);
  const float at_target = load(x + target, First{1})[0] - max;
  float sum_shifted = 0;
  if (smoothing.each > 0)  // apart: one more addition in the loop below, and rows without smoothing would pay it
    sum_shifted = sum_in_blocks(0, classes, [=](int64_t i, auto lanes) { return load(x + i, lanes) - max; });
  float others;
  if (dlogits)
    others = sum_without(classes, target, [=](int64_t i, auto lanes) {
      const vfloat value = exp_nonpositive(load(x + i, lanes) - max);
      store(e + i, value, lanes);
      return value;
    });
  else
    others = sum_without(classes, target,
                         [=](int64_t i, auto lanes) { return exp_nonpositive(load(x + i, lanes) - max); });
  const float exp_target = exp_nonpositive(broadcast(at_target))[0];
  const float sum = others + exp_target;
  if (dlogits) {
    const float factor = scale / sum, each = scale * smoothing.each;
    for_vectors(classes, [=](int64_t i, auto lanes) {
      store_result(dlogits + i, load(e + i, lanes) * factor - each, lanes);
    });
    // p - q at the target, from the side that does not cancel: p - 1 is -others / sum.
    const bool confident = exp_target > others;
    const float gradient = confident ? (1 - smoothing.target) - others / sum : exp_target / sum - smoothing.target;
    store(dlogits + target, broadcast(scale * (gradient - smoothing.each)), First{1});
  }
  // The target is the maximum: log(1 + others). Otherwise log(sum) and -at_target are both positive.
  const float log_sum = at_target == 0 ? log1pf(others) : logf(sum);
  if (smoothing.each == 0) return log_sum - at_target;
  return log_sum - smoothing.target * at_target - smoothing.each * sum_shifted;
}

}  // namespace

FS_DEFINE(cross_entropy)(const void* logits, const int64_t* target, void* dlogits, float* losses, double* total,
                         int64_t* valid, int64_t rows, int64_t classes, int64_t ignore_index, float label_smoothing,
                         int32_t mean, int32_t dtype) {
  valid[0] = 0;
  valid[1] = -1;
  for (int64_t r = rows - 1; r >= 0; --r) {
    if (target[r] == ignore_index) continue;
    ++valid[0];
    if (target[r] < 0 || target[r] >= classes) valid[1] = r;
  }
  if (valid[1] >= 0) return;
  const Smoothing smoothing = {1 - label_smoothing, label_smoothing / static_cast<float>(classes)};
  const float scale = mean ? 1 / static_cast<float>(max_of(1, valid[0])) : 1;
  const int64_t grain = grain_rows(kCrossEntropyGrain, classes);
  const ExpScratch scratch(rows, dlogits ? classes : 0, grain, dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t r = begin; r < end; ++r) {
        T* d = row<T>(dlogits, r, classes);
        if (target[r] == ignore_index) {
          losses[r] = 0;
          if (d) memset(d, 0, sizeof(T) * static_cast<size_t>(classes));
          continue;
        }
        losses[r] = cross_entropy_row(row<T>(logits, r, classes), target[r], d, scratch.row(thread, d), scale,
                                      smoothing, classes);
      }
    });
  });
  *total = 0;
  for (int64_t r = 0; r < rows; ++r) *total += losses[r];
  if (mean) *total /= static_cast<double>(valid[0]);
}

// In row r: out = dlogits * factor[r * factor_stride].
FS_DEFINE(cross_entropy_scale)(const void* dlogits, const float* factor, int64_t factor_stride, void* out,
                               int64_t rows, int64_t classes, int32_t dtype) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain_rows(kCrossEntropyGrain, classes), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = row<T>(dlogits, r, classes);
        T* to = row<T>(out, r, classes);
        const float by = factor[r * factor_stride];
        for_vectors(classes, [=](int64_t i, auto lanes) { store(to + i, load(from + i, lanes) * by, lanes); });
      }
    });
  });
}
