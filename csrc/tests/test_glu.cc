#include "test.h"

namespace {

double gate_of(int32_t activation, double x) {
  if (activation == FS_GELU) return x * 0.5 * erfc(-x / sqrt(2.0));
  if (activation == FS_GELU_TANH) return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x / (1 + exp(-x));
}
double slope_of(int32_t activation, double x) {
  return (gate_of(activation, x + 1e-5) - gate_of(activation, x - 1e-5)) / 2e-5;
}

constexpr int32_t kGates[] = {FS_SILU, FS_GELU, FS_GELU_TANH};

}  // namespace

TEST(glu, two_tensors_equal_double_arithmetic) {
  for (int64_t n : kSizes) {
    const auto gate = random_floats(n), up = random_floats(n, 2), dy = random_floats(n, 3);
    std::vector<float> y(n), dgate(n), dup(n);
    for (int32_t activation : kGates) {
      KERNEL(glu_forward)(gate.data(), n, up.data(), n, y.data(), 1, n, activation, FS_F32);
      KERNEL(glu_backward)(dy.data(), gate.data(), n, up.data(), n, dgate.data(), n, dup.data(), n, 1, n, activation,
                           FS_F32);
      for (int64_t i = 0; i < n; ++i) {
        const double value = gate_of(activation, gate[i]);
        CHECK_CLOSE(y[i], value * up[i], 4e-6);
        CHECK_CLOSE(dgate[i], static_cast<double>(dy[i]) * up[i] * slope_of(activation, gate[i]), 5e-5);
        CHECK_CLOSE(dup[i], dy[i] * value, 4e-6);
      }
    }
  }
}

template <class T>
static void halves_equal_two_tensors(int isa, const std::vector<T>& x, const std::vector<T>& dy, int64_t rows,
                                     int64_t cols, int32_t dtype) {
  std::vector<T> gate(rows * cols), up(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    gate[i] = x[i / cols * 2 * cols + i % cols];
    up[i] = x[i / cols * 2 * cols + cols + i % cols];
  }
  for (int32_t activation : kGates) {
    std::vector<T> y(rows * cols), y_halves(rows * cols), dgate(rows * cols), dup(rows * cols), dx(2 * rows * cols);
    KERNEL(glu_forward)(gate.data(), cols, up.data(), cols, y.data(), rows, cols, activation, dtype);
    KERNEL(glu_forward)(x.data(), 2 * cols, x.data() + cols, 2 * cols, y_halves.data(), rows, cols, activation, dtype);
    CHECK(y == y_halves);
    KERNEL(glu_backward)(dy.data(), gate.data(), cols, up.data(), cols, dgate.data(), cols, dup.data(), cols, rows,
                         cols, activation, dtype);
    KERNEL(glu_backward)(dy.data(), x.data(), 2 * cols, x.data() + cols, 2 * cols, dx.data(), 2 * cols,
                         dx.data() + cols, 2 * cols, rows, cols, activation, dtype);
    auto in_place = x;
    KERNEL(glu_backward)(dy.data(), in_place.data(), 2 * cols, in_place.data() + cols, 2 * cols, in_place.data(),
                         2 * cols, in_place.data() + cols, 2 * cols, rows, cols, activation, dtype);
    CHECK(in_place == dx);
    for (int64_t i = 0; i < rows * cols; ++i) {
      CHECK(dx[i / cols * 2 * cols + i % cols] == dgate[i]);
      CHECK(dx[i / cols * 2 * cols + cols + i % cols] == dup[i]);
    }
  }
}

TEST(glu, halves_of_one_tensor_give_the_same_bits) {
  for (int64_t cols : {1, 5, 8, 16, 17, 33, 257, 10007}) {
    const int64_t rows = 7;
    const auto x = random_floats(2 * rows * cols), dy = random_floats(rows * cols, 2);
    halves_equal_two_tensors(isa, x, dy, rows, cols, FS_F32);
    halves_equal_two_tensors(isa, to_bf16(x), to_bf16(dy), rows, cols, FS_BF16);
  }
}

TEST(glu, bf16_equals_fp32_rounded) {
  for (int64_t n : kSizes) {
    const auto gate = to_bf16(random_floats(n)), up = to_bf16(random_floats(n, 2));
    const auto wide_gate = from_bf16(gate), wide_up = from_bf16(up);
    std::vector<uint16_t> y(n);
    std::vector<float> y_wide(n);
    for (int32_t activation : kGates) {
      KERNEL(glu_forward)(gate.data(), n, up.data(), n, y.data(), 1, n, activation, FS_BF16);
      KERNEL(glu_forward)(wide_gate.data(), n, wide_up.data(), n, y_wide.data(), 1, n, activation, FS_F32);
      for (int64_t i = 0; i < n; ++i) CHECK(y[i] == to_bf16(y_wide[i]));
    }
  }
}

TEST(glu, no_rows) {
  for (int32_t dtype : {FS_F32, FS_BF16}) {
    KERNEL(glu_forward)(nullptr, 16, nullptr, 16, nullptr, 0, 8, FS_SILU, dtype);
    KERNEL(glu_backward)(nullptr, nullptr, 16, nullptr, 16, nullptr, 16, nullptr, 16, 0, 8, FS_SILU, dtype);
  }
}
