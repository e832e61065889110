// RMSNorm over rows, forward and backward, with an optional residual addition in front.
#include "kernel.h"
#include "kernels/norm.h"

namespace {

template <class T>
FS_INLINE float forward_row(const T* s, const float* weight, T* y, float eps, int64_t cols) {
  const float square = sum_of(cols, [=](int64_t i, auto lanes) {
    const vfloat value = load(s + i, lanes);
    return value * value;
  });
  const float rstd = 1 / sqrtf(square / static_cast<float>(cols) + eps);
  with_flag(weight, [=](auto has_weight) {
    for_vectors(cols, [=](int64_t i, auto lanes) {
      vfloat h = load(s + i, lanes) * rstd;
      if constexpr (has_weight.value) h *= load(weight + i, lanes);
      store(y + i, h, lanes);
    });
  });
  return rstd;
}

// With h = s * rstd and g = dy * weight:  dx = rstd * (g - h * mean(g * h)) + dsum.
template <class T>
FS_INLINE void backward_row(const T* dy, const T* dsum, const T* s, const float* weight, float rstd, T* dx,
                            float* dweight, int64_t cols) {
  vfloat sum_gh = {};
  const auto accumulate = [&](auto has_weight, auto has_dweight) {
    for_vectors(cols, [&](int64_t i, auto lanes) {
      vfloat gh = load(dy + i, lanes) * (load(s + i, lanes) * rstd);
      if constexpr (has_dweight.value) store(dweight + i, load(dweight + i, lanes) + gh, lanes);
      if constexpr (has_weight.value) gh *= load(weight + i, lanes);
      sum_gh += gh;
    });
  };
  with_flag(weight, [&](auto has_weight) {
    with_flag(dweight, [&](auto has_dweight) { accumulate(has_weight, has_dweight); });
  });
  const float mean_gh = sum(sum_gh) / static_cast<float>(cols);
  const auto finish = [=](auto has_weight, auto has_dsum) {
    for_vectors(cols, [=](int64_t i, auto lanes) {
      vfloat g = load(dy + i, lanes);
      if constexpr (has_weight.value) g *= load(weight + i, lanes);
      vfloat d = rstd * (g - load(s + i, lanes) * rstd * mean_gh);
      if constexpr (has_dsum.value) d += load(dsum + i, lanes);
      store(dx + i, d, lanes);
    });
  };
  with_flag(weight, [&](auto has_weight) { with_flag(dsum, [&](auto has_dsum) { finish(has_weight, has_dsum); }); });
}

}  // namespace

FS_DEFINE(rms_norm_forward)(const void* x, const void* residual, const void* weight, void* y, void* sum, float* rstd,
                            int64_t rows, int64_t cols, float eps, int32_t dtype, int32_t weight_dtype) {
  const NormScratch scratch(rows, cols, 1, 0);
  const float* w = scratch.vector(0, weight, weight_dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, scratch.grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const T* s = add_residual(row<T>(x, r, cols), row<T>(residual, r, cols), row<T>(sum, r, cols), cols);
        rstd[r] = forward_row(s, w, row<T>(y, r, cols), eps, cols);
      }
    });
  });
}

FS_DEFINE(rms_norm_backward)(const void* dy, const void* dsum, const void* x, const void* weight, const float* rstd,
                             void* dx, float* dweight, int64_t rows, int64_t cols, int32_t dtype,
                             int32_t weight_dtype) {
  const NormScratch scratch(rows, cols, 1, dweight ? 1 : 0);
  const float* w = scratch.vector(0, weight, weight_dtype);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, scratch.grain, [&](int64_t begin, int64_t end, int thread) {
      float* dw = dweight ? scratch.accumulator(thread, 0) : nullptr;
      for (int64_t r = begin; r < end; ++r)
        backward_row(row<T>(dy, r, cols), row<T>(dsum, r, cols), row<T>(x, r, cols), w, rstd[r], row<T>(dx, r, cols),
                     dw, cols);
    });
  });
  if (dweight) scratch.add_up(0, dweight);
}
