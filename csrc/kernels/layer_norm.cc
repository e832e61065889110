// LayerNorm over rows, forward and backward, with an optional residual addition in front.
#include "kernel.h"
#include "kernels/norm.h"

namespace {

// Below this many columns one Welford pass beats two passes of vector sums: see benchmarks/thresholds.md.
constexpr int64_t kWelfordCols = 6;

struct Statistics {
  float mean, rstd;
};

// One pass, no cancellation: mean and sum of squared deviations, element by element (Welford 1962).
template <class T>
FS_INLINE Statistics welford(const T* s, int64_t cols, float eps) {
  float mean = 0, deviation = 0;
  for (int64_t i = 0; i < cols; ++i) {
    const float value = sizeof(T) == 4 ? static_cast<float>(s[i]) : bf16_to_float(static_cast<bf16>(s[i]));
    const float delta = value - mean;
    mean += delta / static_cast<float>(i + 1);
    deviation += delta * (value - mean);
  }
  return {mean, 1 / sqrtf(deviation / static_cast<float>(cols) + eps)};
}

template <class T>
FS_INLINE Statistics two_pass(const T* s, int64_t cols, float eps) {
  const float mean = sum_of(cols, [=](int64_t i, auto lanes) { return load(s + i, lanes); }) / static_cast<float>(cols);
  const float variance = sum_of(cols, [=](int64_t i, auto lanes) {
    const vfloat centred = load(s + i, lanes) - mean;
    return centred * centred;
  });
  return {mean, 1 / sqrtf(variance / static_cast<float>(cols) + eps)};
}

template <class T>
FS_INLINE void forward_row(const T* s, const float* weight, const float* bias, T* y, Statistics stats, int64_t cols) {
  const auto loop = [=](auto has_weight, auto has_bias) {
    for_vectors(cols, [=](int64_t i, auto lanes) {
      vfloat h = (load(s + i, lanes) - stats.mean) * stats.rstd;
      if constexpr (has_weight.value) h *= load(weight + i, lanes);
      if constexpr (has_bias.value) h += load(bias + i, lanes);
      store(y + i, h, lanes);
    });
  };
  with_flag(weight, [&](auto has_weight) { with_flag(bias, [&](auto has_bias) { loop(has_weight, has_bias); }); });
}

// With h = (s - mean) * rstd and g = dy * weight:  dx = rstd * (g - mean(g) - h * mean(g * h)) + dsum.
template <class T>
FS_INLINE void backward_row(const T* dy, const T* dsum, const T* s, const float* weight, Statistics stats, T* dx,
                            float* dweight, float* dbias, int64_t cols) {
  vfloat sum_g = {}, sum_gh = {};
  const auto accumulate = [&](auto has_weight, auto has_dweight) {
    for_vectors(cols, [&](int64_t i, auto lanes) {
      const vfloat d = load(dy + i, lanes);
      const vfloat h = keep((load(s + i, lanes) - stats.mean) * stats.rstd, lanes);
      if constexpr (has_dweight.value) {
        store(dweight + i, load(dweight + i, lanes) + d * h, lanes);
        store(dbias + i, load(dbias + i, lanes) + d, lanes);
      }
      vfloat g = d;
      if constexpr (has_weight.value) g *= load(weight + i, lanes);
      sum_g += g;
      sum_gh += g * h;
    });
  };
  with_flag(weight, [&](auto has_weight) {
    with_flag(dweight, [&](auto has_dweight) { accumulate(has_weight, has_dweight); });
  });
  const float mean_g = sum(sum_g) / static_cast<float>(cols), mean_gh = sum(sum_gh) / static_cast<float>(cols);
  const auto finish = [=](auto has_weight, auto has_dsum) {
    for_vectors(cols, [=](int64_t i, auto lanes) {
      const vfloat h = (load(s + i, lanes) - stats.mean) * stats.rstd;
      vfloat g = load(dy + i, lanes);
      if constexpr (has_weight.value) g *= load(weight + i, lanes);
      vfloat d = stats.rstd * (g - mean_g - h * mean_gh);
      if constexpr (has_dsum.value) d += load(dsum + i, lanes);
      store(dx + i, d, lanes);
    });
  };
  with_flag(weight, [&](auto has_weight) { with_flag(dsum, [&](auto has_dsum) { finish(has_weight, has_dsum); }); });
}

}  // namespace

FS_DEFINE(layer_norm_forward)(const void* x, const void* residual, const void* weight, const void* bias, void* y,
                              void* sum, float* mean, float* rstd, int64_t rows, int64_t cols, float eps,
                              int32_t dtype, int32_t weight_dtype) {
  const NormScratch scratch(rows, cols, 2, 0);
  const float* w = scratch.vector(0, weight, weight_dtype);
  const float* b = scratch.vector(1, bias, weight_dtype);
  const bool narrow = cols < fs_internal_welford_cols(kWelfordCols);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, scratch.grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const T* s = add_residual(row<T>(x, r, cols), row<T>(residual, r, cols), row<T>(sum, r, cols), cols);
        const Statistics stats = narrow ? welford(s, cols, eps) : two_pass(s, cols, eps);
        mean[r] = stats.mean;
        rstd[r] = stats.rstd;
        forward_row(s, w, b, row<T>(y, r, cols), stats, cols);
      }
    });
  });
}

FS_DEFINE(layer_norm_backward)(const void* dy, const void* dsum, const void* x, const void* weight, const float* mean,
                               const float* rstd, void* dx, float* dweight, float* dbias, int64_t rows, int64_t cols,
                               int32_t dtype, int32_t weight_dtype) {
  const NormScratch scratch(rows, cols, 1, dweight ? 2 : 0);
  const float* w = scratch.vector(0, weight, weight_dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, scratch.grain, [&](int64_t begin, int64_t end, int thread) {
      float* dw = dweight ? scratch.accumulator(thread, 0) : nullptr;
      float* db = dweight ? scratch.accumulator(thread, 1) : nullptr;
      for (int64_t r = begin; r < end; ++r)
        backward_row(row<T>(dy, r, cols), row<T>(dsum, r, cols), row<T>(x, r, cols), w, {mean[r], rstd[r]},
                     row<T>(dx, r, cols), dw, db, cols);
    });
  });
  if (dweight) {
    scratch.add_up(0, dweight);
    scratch.add_up(1, dbias);
  }
}
