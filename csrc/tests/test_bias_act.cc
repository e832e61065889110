#include "test.h"

namespace {

constexpr int32_t kActivations[] = {FS_NONE, FS_RELU, FS_GELU, FS_GELU_TANH, FS_SILU};

double activation_of(int32_t activation, double x) {
  switch (activation) {
    case FS_RELU: return x > 0 ? x : 0;
    case FS_GELU: return x * 0.5 * erfc(-x / sqrt(2.0));
    case FS_GELU_TANH: return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case FS_SILU: return x / (1 + exp(-x));
    default: return x;
  }
}
double slope_of(int32_t activation, double x) {
  if (activation == FS_RELU) return x > 0;
  return (activation_of(activation, x + 1e-5) - activation_of(activation, x - 1e-5)) / 2e-5;
}

struct Shape {
  int64_t rows, cols;
};
// Narrow columns that are folded, whole and partial pairs, more columns than a strip, rows and columns cut for threads.
constexpr Shape kShapes[] = {{1, 1}, {3, 1}, {70001, 1}, {999, 7}, {5, 33}, {300, 513}, {7, 1000}, {2, 20011}};

}  // namespace

TEST(bias_act, forward_and_backward_equal_double_arithmetic) {
  for (const auto [rows, cols] : kShapes) {
    const int64_t n = rows * cols;
    const auto x = random_floats(n), bias = random_floats(cols, 2), dy = random_floats(n, 3);
    for (int32_t activation : kActivations) {
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        std::vector<float> y(n), dx(n), dbias(cols);
        KERNEL(bias_act_forward)(x.data(), b, y.data(), rows, cols, activation, FS_F32, FS_F32);
        const float* saved = activation == FS_RELU ? y.data() : x.data();
        KERNEL(bias_act_backward)(dy.data(), saved, b, dx.data(), dbias.data(), rows, cols, activation, FS_F32, FS_F32);
        std::vector<double> sums(cols);
        for (int64_t i = 0; i < n; ++i) {
          const double z = b ? x[i] + b[i % cols] : x[i], expected = dy[i] * slope_of(activation, z);
          CHECK_CLOSE(y[i], activation_of(activation, z), 2e-6);
          if (activation != FS_NONE) CHECK_CLOSE(dx[i], expected, 2e-5);
          sums[i % cols] += expected;
        }
        for (int64_t i = 0; i < cols; ++i) CHECK_CLOSE(dbias[i], sums[i], 1e-5 * static_cast<double>(rows) + 1e-4);
      }
    }
  }
}

TEST(bias_act, bf16_equals_fp32_rounded) {
  for (const auto [rows, cols] : kShapes) {
    const int64_t n = rows * cols;
    const auto x = to_bf16(random_floats(n)), dy = to_bf16(random_floats(n, 3)), bias = to_bf16(random_floats(cols, 2));
    const auto wide_x = from_bf16(x), wide_dy = from_bf16(dy), wide_bias = from_bf16(bias);
    for (int32_t activation : kActivations) {
      std::vector<uint16_t> y(n), dx(n);
      std::vector<float> y_wide(n), dx_wide(n), dbias(cols), dbias_wide(cols), dbias_mixed(cols);
      KERNEL(bias_act_forward)(x.data(), bias.data(), y.data(), rows, cols, activation, FS_BF16, FS_BF16);
      KERNEL(bias_act_forward)(wide_x.data(), bias.data(), y_wide.data(), rows, cols, activation, FS_F32, FS_BF16);
      for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(from_bf16(y[i]), y_wide[i], fabs(y_wide[i]) / 256);
      const auto wide_y = from_bf16(y);
      const void* saved = activation == FS_RELU ? y.data() : x.data();
      const float* wide_saved = activation == FS_RELU ? wide_y.data() : wide_x.data();
      KERNEL(bias_act_backward)(dy.data(), saved, bias.data(), dx.data(), dbias.data(), rows, cols, activation,
                                FS_BF16, FS_BF16);
      KERNEL(bias_act_backward)(dy.data(), saved, wide_bias.data(), dx.data(), dbias_mixed.data(), rows, cols,
                                activation, FS_BF16, FS_F32);
      KERNEL(bias_act_backward)(wide_dy.data(), wide_saved, wide_bias.data(), dx_wide.data(), dbias_wide.data(), rows,
                                cols, activation, FS_F32, FS_F32);
      for (int64_t i = 0; i < n && activation != FS_NONE; ++i)
        CHECK_CLOSE(from_bf16(dx[i]), dx_wide[i], fabs(dx_wide[i]) / 256);
      for (int64_t i = 0; i < cols; ++i) {
        CHECK_CLOSE(dbias[i], dbias_wide[i], 1e-5 * sqrt(static_cast<double>(rows)));
        CHECK_CLOSE(dbias_mixed[i], dbias[i], 0);
      }
    }
  }
}

TEST(bias_act, gradients_may_be_left_out_and_dx_may_alias_dy) {
  const int64_t rows = 9, cols = 37;
  const auto x = random_floats(rows * cols), dy = random_floats(rows * cols, 2), bias = random_floats(cols, 3);
  for (int32_t activation : kActivations) {
    if (activation == FS_NONE) continue;
    std::vector<float> dx(rows * cols), dbias(cols);
    auto in_place = dy;
    KERNEL(bias_act_backward)(dy.data(), x.data(), bias.data(), dx.data(), dbias.data(), rows, cols, activation, FS_F32,
                              FS_F32);
    KERNEL(bias_act_backward)(in_place.data(), x.data(), bias.data(), in_place.data(), nullptr, rows, cols, activation,
                              FS_F32, FS_F32);
    for (int64_t i = 0; i < rows * cols; ++i) CHECK_CLOSE(in_place[i], dx[i], 0);
  }
}

TEST(bias_act, no_rows_give_a_bias_gradient_of_zero) {
  std::vector<float> dbias(5, 1.0f);
  KERNEL(bias_act_forward)(nullptr, nullptr, nullptr, 0, 5, FS_GELU, FS_F32, FS_F32);
  KERNEL(bias_act_backward)(nullptr, nullptr, nullptr, nullptr, dbias.data(), 0, 5, FS_GELU, FS_F32, FS_F32);
  for (float value : dbias) CHECK(value == 0);
}
