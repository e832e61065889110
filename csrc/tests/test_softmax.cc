#include "test.h"

#include <algorithm>

namespace {

int64_t visible(int64_t r, int64_t cols, int64_t block_rows, int64_t offset) {
  return block_rows ? std::min(cols, r % block_rows + offset + 1) : cols;
}

}  // namespace

TEST(softmax, equals_double_arithmetic) {
  for (int64_t cols : {1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 65, 257, 1000, 4097})
    for (int64_t block_rows : {0, 5}) {
      const int64_t rows = 10, offset = cols / 3;
      const float scale = 0.7f;
      const auto x = random_floats(rows * cols), dy = random_floats(rows * cols, 2);
      std::vector<float> y(rows * cols, 7), dx(rows * cols, 7);
      KERNEL(softmax_forward)(x.data(), y.data(), rows, cols, scale, block_rows, offset, FS_F32);
      KERNEL(softmax_backward)(dy.data(), y.data(), dx.data(), rows, cols, scale, block_rows, offset, FS_F32);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t n = visible(r, cols, block_rows, offset), at = r * cols;
        double sum = 0, dot = 0;
        for (int64_t c = 0; c < n; ++c) sum += exp(static_cast<double>(scale) * x[at + c]);
        for (int64_t c = 0; c < n; ++c) dot += exp(static_cast<double>(scale) * x[at + c]) / sum * dy[at + c];
        for (int64_t c = 0; c < n; ++c) {
          const double p = exp(static_cast<double>(scale) * x[at + c]) / sum;
          CHECK_CLOSE(y[at + c], p, 1e-6 * p);
          CHECK_CLOSE(dx[at + c], scale * p * (dy[at + c] - dot), 1e-6);
        }
        for (int64_t c = n; c < cols; ++c) CHECK(y[at + c] == 0 && dx[at + c] == 0);
      }
      auto inplace = x;
      KERNEL(softmax_forward)(inplace.data(), inplace.data(), rows, cols, scale, block_rows, offset, FS_F32);
      CHECK(inplace == y);
      KERNEL(softmax_backward)(dy.data(), inplace.data(), inplace.data(), rows, cols, scale, block_rows, offset,
                               FS_F32);
      CHECK(inplace == dx);
      inplace = dy;
      KERNEL(softmax_backward)(inplace.data(), y.data(), inplace.data(), rows, cols, scale, block_rows, offset,
                               FS_F32);
      CHECK(inplace == dx);
    }
}

TEST(softmax, bf16_rounds_what_fp32_gives) {
  for (int64_t cols : {1, 9, 17, 37, 1025, 70001}) {
    const int64_t rows = 3;
    auto x = to_bf16(random_floats(rows * cols)), dy = to_bf16(random_floats(rows * cols, 2));
    std::vector<float> y(rows * cols), dx(rows * cols);
    KERNEL(softmax_forward)(from_bf16(x).data(), y.data(), rows, cols, 1.5f, 3, 2, FS_F32);
    KERNEL(softmax_forward)(x.data(), x.data(), rows, cols, 1.5f, 3, 2, FS_BF16);
    CHECK(x == to_bf16(y));
    KERNEL(softmax_backward)(from_bf16(dy).data(), from_bf16(x).data(), dx.data(), rows, cols, 1.5f, 3, 2, FS_F32);
    KERNEL(softmax_backward)(dy.data(), x.data(), dy.data(), rows, cols, 1.5f, 3, 2, FS_BF16);
    CHECK(dy == to_bf16(dx));
  }
}

TEST(softmax, no_rows_and_no_columns) {
  KERNEL(softmax_forward)(nullptr, nullptr, 0, 8, 1, 0, 0, FS_F32);
  KERNEL(softmax_forward)(nullptr, nullptr, 8, 0, 1, 0, 0, FS_BF16);
  KERNEL(softmax_backward)(nullptr, nullptr, nullptr, 0, 8, 1, 0, 0, FS_BF16);
  KERNEL(softmax_backward)(nullptr, nullptr, nullptr, 8, 0, 1, 4, 0, FS_F32);
}

TEST(softmax, hidden_columns_are_not_read) {
  const int64_t rows = 4, cols = 19;
  auto x = random_floats(rows * cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r + 1; c < cols; ++c) x[r * cols + c] = NAN;
  std::vector<float> y(rows * cols), dx(rows * cols);
  KERNEL(softmax_forward)(x.data(), y.data(), rows, cols, 1, rows, 0, FS_F32);
  KERNEL(softmax_backward)(x.data(), y.data(), dx.data(), rows, cols, 1, rows, 0, FS_F32);
  CHECK(y[0] == 1);
  for (float value : y) CHECK(isfinite(value));
  for (float value : dx) CHECK(isfinite(value));
}
