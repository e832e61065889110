#include "test.h"

TEST(rms_norm, forward_equals_double_arithmetic) {
  for (int64_t cols : {1, 2, 5, 8, 15, 17, 33, 257, 1000}) {
    const int64_t rows = 7;
    const auto x = random_floats(rows * cols), residual = random_floats(rows * cols, 2), weight = random_floats(cols, 3);
    std::vector<float> y(rows * cols), sum(rows * cols), rstd(rows);
    KERNEL(rms_norm_forward)(x.data(), residual.data(), weight.data(), y.data(), sum.data(), rstd.data(), rows, cols,
                             1e-6f, FS_F32, FS_F32);
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int64_t i = 0; i < cols; ++i) square += static_cast<double>(sum[r * cols + i]) * sum[r * cols + i];
      const double scale = 1 / sqrt(square / static_cast<double>(cols) + 1e-6);
      CHECK_CLOSE(rstd[r], scale, 1e-6 * scale);
      for (int64_t i = 0; i < cols; ++i) CHECK_CLOSE(y[r * cols + i], sum[r * cols + i] * scale * weight[i], 1e-5);
    }
  }
}

TEST(rms_norm, backward_in_bf16_is_the_rounded_fp32_one) {
  const int64_t rows = 6, cols = 37;
  const auto x = to_bf16(random_floats(rows * cols)), dy = to_bf16(random_floats(rows * cols, 2));
  const auto dsum = to_bf16(random_floats(rows * cols, 3)), weight = to_bf16(random_floats(cols, 4));
  const auto x_wide = from_bf16(x), dy_wide = from_bf16(dy), dsum_wide = from_bf16(dsum), weight_wide = from_bf16(weight);
  const std::vector<float> rstd(rows, 0.9f);
  std::vector<uint16_t> dx(rows * cols);
  std::vector<float> dx_wide(rows * cols), dweight(cols), dweight_wide(cols);
  KERNEL(rms_norm_backward)(dy.data(), dsum.data(), x.data(), weight.data(), rstd.data(), dx.data(), dweight.data(),
                            rows, cols, FS_BF16, FS_BF16);
  KERNEL(rms_norm_backward)(dy_wide.data(), dsum_wide.data(), x_wide.data(), weight_wide.data(), rstd.data(),
                            dx_wide.data(), dweight_wide.data(), rows, cols, FS_F32, FS_F32);
  for (int64_t i = 0; i < rows * cols; ++i) CHECK_CLOSE(from_bf16(dx[i]), dx_wide[i], fabs(dx_wide[i]) / 256);
  for (int64_t i = 0; i < cols; ++i) CHECK_CLOSE(dweight[i], dweight_wide[i], 0);
}
