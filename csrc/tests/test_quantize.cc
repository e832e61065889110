#include "test.h"

namespace {

constexpr int64_t kShapes[][2] = {{0, 5}, {5, 0}, {1, 1}, {3, 7}, {2, 17}, {9, 33}, {31, 65}, {257, 129}, {67, 1025}};

float absmax_of(const std::vector<float>& x, int64_t start, int64_t step, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(x[start + i * step]));
  return largest;
}

}  // namespace

TEST(quantize, rows_and_columns_come_back_within_half_a_step) {
  for (const auto& [rows, cols] : kShapes) {
    auto x = random_floats(rows * cols);
    for (int64_t i = 0; i < rows * cols; i += 3) x[i] *= 100;
    const auto halves = to_bf16(x);
    const auto wide = from_bf16(halves);
    for (const bool by_row : {true, false}) {
      for (const int32_t dtype : {FS_F32, FS_BF16}) {
        const auto& expected = dtype == FS_F32 ? x : wide;
        const void* input = dtype == FS_F32 ? static_cast<const void*>(x.data()) : halves.data();
        std::vector<int8_t> q(rows * cols, 99);
        std::vector<float> scale(by_row ? rows : cols, -1), y(rows * cols);
        std::vector<uint16_t> y_half(rows * cols);
        (by_row ? KERNEL(quantize_rows) : KERNEL(quantize_columns))(input, q.data(), scale.data(), rows, cols, dtype);
        const auto back = by_row ? KERNEL(dequantize_rows) : KERNEL(dequantize_columns);
        back(q.data(), scale.data(), y.data(), rows, cols, FS_F32);
        back(q.data(), scale.data(), y_half.data(), rows, cols, FS_BF16);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const float absmax = by_row ? absmax_of(expected, r * cols, 1, cols) : absmax_of(expected, c, cols, rows);
            const float step = scale[by_row ? r : c];
            CHECK(step == absmax / 127);
            CHECK_CLOSE(y[r * cols + c], expected[r * cols + c], 0.5001f * step);
            CHECK(y[r * cols + c] == static_cast<float>(q[r * cols + c]) * step);
            CHECK(y_half[r * cols + c] == to_bf16(y[r * cols + c]));
          }
        }
      }
    }
  }
}

TEST(quantize, values_that_are_not_finite_spoil_their_row_or_column) {
  const int64_t rows = 5, cols = 37;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    auto x = random_floats(rows * cols);
    x[2 * cols + 36] = bad;
    for (const bool by_row : {true, false}) {
      std::vector<int8_t> q(rows * cols, 99);
      std::vector<float> scale(by_row ? rows : cols);
      (by_row ? KERNEL(quantize_rows) : KERNEL(quantize_columns))(x.data(), q.data(), scale.data(), rows, cols, FS_F32);
      const int64_t spoilt = by_row ? 2 : 36;
      for (size_t i = 0; i < scale.size(); ++i) CHECK(isnan(scale[i]) == (static_cast<int64_t>(i) == spoilt));
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          if ((by_row ? r : c) == spoilt) CHECK(q[r * cols + c] == 0);
    }
  }
}
