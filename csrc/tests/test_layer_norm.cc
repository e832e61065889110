#include "test.h"

TEST(layer_norm, forward_equals_double_arithmetic) {
  for (int64_t cols : {1, 2, 5, 8, 15, 17, 33, 257, 1000}) {
    const int64_t rows = 7;
    const auto x = random_floats(rows * cols), residual = random_floats(rows * cols, 2);
    const auto weight = random_floats(cols, 3), bias = random_floats(cols, 4);
    std::vector<float> y(rows * cols), sum(rows * cols), mean(rows), rstd(rows);
    KERNEL(layer_norm_forward)(x.data(), residual.data(), weight.data(), bias.data(), y.data(), sum.data(),
                               mean.data(), rstd.data(), rows, cols, 1e-5f, FS_F32, FS_F32);
    for (int64_t r = 0; r < rows; ++r) {
      double m = 0, v = 0;
      for (int64_t i = 0; i < cols; ++i) m += sum[r * cols + i];
      m /= static_cast<double>(cols);
      for (int64_t i = 0; i < cols; ++i) v += (sum[r * cols + i] - m) * (sum[r * cols + i] - m);
      const double scale = 1 / sqrt(v / static_cast<double>(cols) + 1e-5);
      CHECK_CLOSE(mean[r], m, 1e-6);
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t at = r * cols + i;
        CHECK_CLOSE(sum[at], x[at] + residual[at], 0);
        CHECK_CLOSE(y[at], (sum[at] - m) * scale * weight[i] + bias[i], 1e-5);
      }
    }
  }
}

TEST(layer_norm, backward_is_the_derivative_of_forward) {
  const int64_t rows = 3, cols = 21;
  const auto x = random_floats(rows * cols), dy = random_floats(rows * cols, 2), weight = random_floats(cols, 3);
  std::vector<float> y(rows * cols), mean(rows), rstd(rows), dx(rows * cols), dweight(cols), dbias(cols);
  const auto forward = [&](const std::vector<float>& input) {
    KERNEL(layer_norm_forward)(input.data(), nullptr, weight.data(), nullptr, y.data(), nullptr, mean.data(),
                               rstd.data(), rows, cols, 1e-5f, FS_F32, FS_F32);
    double loss = 0;
    for (int64_t i = 0; i < rows * cols; ++i) loss += static_cast<double>(y[i]) * dy[i];
    return loss;
  };
  forward(x);
  KERNEL(layer_norm_backward)(dy.data(), nullptr, x.data(), weight.data(), mean.data(), rstd.data(), dx.data(),
                              dweight.data(), dbias.data(), rows, cols, FS_F32, FS_F32);
  const auto gradient = dx;
  for (int64_t i = 0; i < rows * cols; ++i) {
    auto above = x, below = x;
    above[i] += 0.01f;
    below[i] -= 0.01f;
    CHECK_CLOSE(gradient[i], (forward(above) - forward(below)) / (above[i] - below[i]), 5e-3);
  }
}

TEST(layer_norm, no_rows_and_bf16) {
  KERNEL(layer_norm_forward)(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 8, 1e-5f,
                             FS_F32, FS_F32);
  const int64_t rows = 5, cols = 37;
  const auto x = to_bf16(random_floats(rows * cols));
  const auto wide = from_bf16(x);
  std::vector<uint16_t> y(rows * cols);
  std::vector<float> y_wide(rows * cols), mean(rows), rstd(rows);
  KERNEL(layer_norm_forward)(x.data(), nullptr, nullptr, nullptr, y.data(), nullptr, mean.data(), rstd.data(), rows,
                             cols, 1e-5f, FS_BF16, FS_F32);
  KERNEL(layer_norm_forward)(wide.data(), nullptr, nullptr, nullptr, y_wide.data(), nullptr, mean.data(), rstd.data(),
                             rows, cols, 1e-5f, FS_F32, FS_F32);
  for (int64_t i = 0; i < rows * cols; ++i) CHECK_CLOSE(from_bf16(y[i]), y_wide[i], fabs(y_wide[i]) / 256);
}
