#include "test.h"

namespace {

// Element (i, j) at i * row + j * col, in a buffer of exactly the size that needs.
struct Matrix {
  int64_t rows, cols, row, col;
  std::vector<float> values;
  std::vector<uint16_t> narrow;

  Matrix(int64_t rows, int64_t cols, int64_t row, int64_t col, unsigned seed)
      : rows(rows), cols(cols), row(row), col(col),
        values(random_floats(rows && cols ? (rows - 1) * row + (cols - 1) * col + 1 : 0, seed)),
        narrow(to_bf16(values)) {
    values = from_bf16(narrow);
  }
  const void* data(int32_t dtype) const {
    return dtype == FS_F32 ? static_cast<const void*>(values.data()) : narrow.data();
  }
  double at(int64_t i, int64_t j) const { return values[i * row + j * col]; }
};

enum Layout { kByRows, kByColumns, kWithGaps };

Matrix matrix(Layout layout, int64_t rows, int64_t cols, unsigned seed) {
  if (layout == kByRows) return Matrix(rows, cols, cols, 1, seed);
  if (layout == kByColumns) return Matrix(rows, cols, 1, rows, seed);
  return Matrix(rows, cols, 2 * cols + 3, 2, seed);
}

double activation_of(int32_t activation, double x) {
  switch (activation) {
    case FS_RELU: return x > 0 ? x : 0;
    case FS_GELU: return x * 0.5 * erfc(-x / sqrt(2.0));
    case FS_GELU_TANH: return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case FS_SILU: return x / (1 + exp(-x));
    default: return x;
  }
}

// Rows 3 wider than the product, so that what stands between them must survive.
struct Case {
  Matrix a, b;
  std::vector<float> bias, before;
  int64_t m, n, k, stride;

  Case(int64_t m, int64_t n, int64_t k, Layout a_layout, Layout b_layout)
      : a(matrix(a_layout, m, k, 1)), b(matrix(b_layout, k, n, 2)), bias(random_floats(n, 3)),
        before(random_floats((m - 1) * (n + 3) + n, 4)), m(m), n(n), k(k), stride(n + 3) {}

  double product(int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t p = 0; p < k; ++p) sum += a.at(i, p) * b.at(p, j);
    return sum;
  }
  // Larger than fp32 needs: instructions for bf16 round sums of two or four products once more.
  double tolerance() const { return 3e-6 * sqrt(static_cast<double>(k) + 1) + 1e-5; }
};

}  // namespace

TEST(gemm, any_shape_and_layout_equals_double_arithmetic) {
  constexpr int64_t kShapes[][3] = {{1, 1, 1}, {1, 1, 0},    {3, 2, 5},    {5, 17, 7},   {6, 16, 257}, {7, 15, 64},
                                    {13, 33, 9}, {15, 129, 33}, {29, 31, 515}, {64, 24, 300}, {97, 40, 8}};
  for (const auto& [m, n, k] : kShapes)
    for (Layout a_layout : {kByRows, kByColumns, kWithGaps})
      for (Layout b_layout : {kByRows, kByColumns, kWithGaps}) {
        const Case t(m, n, k, a_layout, b_layout);
        for (int32_t dtype : {FS_F32, FS_BF16}) {
          auto c = t.before;
          KERNEL(gemm)(t.a.data(dtype), t.b.data(dtype), nullptr, c.data(), nullptr, nullptr, m, n, k, t.a.row, t.a.col,
                       t.b.row, t.b.col, t.stride, 0, FS_NONE, dtype, dtype, FS_F32, FS_F32);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < t.stride && i * t.stride + j < static_cast<int64_t>(c.size()); ++j)
              CHECK_CLOSE(c[i * t.stride + j], j < n ? t.product(i, j) : t.before[i * t.stride + j],
                          j < n ? t.tolerance() : 0);
        }
      }
}

TEST(gemm, bias_activation_and_what_came_before_them) {
  for (int64_t k : {40, 300}) {
    const Case t(19, 37, k, kByRows, kByColumns);
    const auto narrow_bias = to_bf16(t.bias);
    for (int32_t activation : {FS_NONE, FS_RELU, FS_GELU, FS_GELU_TANH, FS_SILU})
      for (int32_t bias_dtype : {FS_F32, FS_BF16}) {
        auto c = t.before, pre = t.before;
        const void* bias = bias_dtype == FS_F32 ? static_cast<const void*>(t.bias.data()) : narrow_bias.data();
        KERNEL(gemm)(t.a.data(FS_F32), t.b.data(FS_BF16), bias, c.data(), pre.data(), nullptr, t.m, t.n, k, t.a.row, t.a.col,
                     t.b.row, t.b.col, t.stride, 0, activation, FS_F32, FS_BF16, FS_F32, bias_dtype);
        for (int64_t i = 0; i < t.m; ++i)
          for (int64_t j = 0; j < t.n; ++j) {
            const double z = t.product(i, j) + (bias_dtype == FS_F32 ? t.bias[j] : from_bf16(narrow_bias[j]));
            CHECK_CLOSE(pre[i * t.stride + j], z, t.tolerance());
            CHECK_CLOSE(c[i * t.stride + j], activation_of(activation, z), 2 * t.tolerance());
          }
      }
  }
}

TEST(gemm, accumulates_in_fp32_and_bf16) {
  for (int64_t k : {5, 700}) {
    const Case t(11, 45, k, kByColumns, kByRows);
    auto c = t.before;
    auto narrow = to_bf16(t.before);
    const auto narrow_before = narrow;
    KERNEL(gemm)(t.a.data(FS_F32), t.b.data(FS_F32), nullptr, c.data(), nullptr, nullptr, t.m, t.n, k, t.a.row, t.a.col,
                 t.b.row, t.b.col, t.stride, 1, FS_NONE, FS_F32, FS_F32, FS_F32, FS_F32);
    KERNEL(gemm)(t.a.data(FS_BF16), t.b.data(FS_F32), nullptr, narrow.data(), nullptr, nullptr, t.m, t.n, k, t.a.row, t.a.col,
                 t.b.row, t.b.col, t.stride, 1, FS_NONE, FS_BF16, FS_F32, FS_BF16, FS_F32);
    for (int64_t i = 0; i < t.m; ++i)
      for (int64_t j = 0; j < t.n; ++j) {
        const int64_t at = i * t.stride + j;
        const double product = t.product(i, j), rounded = from_bf16(narrow_before[at]) + product;
        CHECK_CLOSE(c[at], t.before[at] + product, t.tolerance());
        CHECK_CLOSE(from_bf16(narrow[at]), rounded, fabs(rounded) / 256 + t.tolerance());
      }
  }
}

TEST(gemm, deep_products_with_few_columns) {
  const Case t(150, 21, 8200, kByRows, kByColumns);
  auto c = t.before;
  auto narrow = to_bf16(t.before);
  KERNEL(gemm)(t.a.data(FS_F32), t.b.data(FS_F32), nullptr, c.data(), nullptr, nullptr, t.m, t.n, t.k, t.a.row, t.a.col, t.b.row,
               t.b.col, t.stride, 0, FS_NONE, FS_F32, FS_F32, FS_F32, FS_F32);
  KERNEL(gemm)(t.a.data(FS_BF16), t.b.data(FS_BF16), nullptr, narrow.data(), nullptr, nullptr, t.m, t.n, t.k, t.a.row, t.a.col,
               t.b.row, t.b.col, t.stride, 0, FS_NONE, FS_BF16, FS_BF16, FS_BF16, FS_F32);
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t j = 0; j < t.n; ++j) {
      const double expected = t.product(i, j);
      CHECK_CLOSE(c[i * t.stride + j], expected, 1e-3);
      CHECK_CLOSE(from_bf16(narrow[i * t.stride + j]), expected, fabs(expected) / 256 + 1e-3);
    }
}

TEST(gemm, sums_are_kept_between_rounds_of_the_depth) {
  // So deep that not even 256 lines of the smaller matrix fit: the head of a language model, g W, is of this kind.
  // Two cases, one for each operand that stays: they are large, and slow under sanitizers.
  struct {
    int64_t m, n, k;
    int32_t dtype, accumulate;
  } constexpr kCases[] = {{256, 257, 4200, FS_F32, 0}, {257, 256, 8300, FS_BF16, 1}};
  for (const auto& [m, n, k, dtype, accumulate] : kCases) {
    const Case t(m, n, k, kByRows, kByRows);
    auto c = t.before;
    auto narrow = to_bf16(t.before);
    double squares = 0, expected_squares = 0;
    void* const to = dtype == FS_F32 ? static_cast<void*>(c.data()) : narrow.data();
    KERNEL(gemm)(t.a.data(dtype), t.b.data(dtype), accumulate ? nullptr : t.bias.data(), to, nullptr, &squares, m, n, k,
                 t.a.row, t.a.col, t.b.row, t.b.col, t.stride, accumulate, FS_NONE, dtype, dtype, dtype, FS_F32);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = i * t.stride + j;
        const double found = dtype == FS_F32 ? c[at] : from_bf16(narrow[at]);
        expected_squares += found * found;
        if ((i + 3 * j) % 97) continue;  // enough of them
        const double before = dtype == FS_F32 ? t.before[at] : from_bf16(to_bf16(t.before[at]));
        const double expected = t.product(i, j) + (accumulate ? before : t.bias[j]);
        CHECK_CLOSE(found, expected, 1e-3 + (dtype == FS_F32 ? 0 : fabs(expected) / 256));
      }
    CHECK_CLOSE(squares, expected_squares, 1e-6 * expected_squares);
  }
}

TEST(gemm, more_rows_than_are_packed_at_once) {
  const Case t(4099, 5, 6, kByColumns, kByRows);
  auto c = t.before;
  KERNEL(gemm)(t.a.data(FS_F32), t.b.data(FS_F32), nullptr, c.data(), nullptr, nullptr, t.m, t.n, t.k, t.a.row, t.a.col, t.b.row,
               t.b.col, t.stride, 0, FS_NONE, FS_F32, FS_F32, FS_F32, FS_F32);
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t j = 0; j < t.n; ++j) CHECK_CLOSE(c[i * t.stride + j], t.product(i, j), t.tolerance());
}

TEST(gemm, small_matrices_times_many_rows_that_lie_as_they_are) {
  constexpr int64_t kShapes[][3] = {{193, 40, 1}, {211, 16, 64}, {200, 535, 33}, {197, 21, 700}, {193, 280, 300},
                                    {192, 9, 1024}, {195, 9, 1025}};
  for (const auto& [m, n, k] : kShapes)
    for (Layout b_layout : {kByRows, kByColumns, kWithGaps})
      for (int32_t activation : {FS_NONE, FS_SILU}) {
        Case t(m, n, k, kByRows, b_layout);
        if (n < 100) t.a = Matrix(m, k, k + 5, 1, 1);  // rows of a wider matrix
        const bool plain = activation == FS_NONE;
        auto c = t.before, pre = t.before;
        KERNEL(gemm)(t.a.data(FS_F32), t.b.data(FS_BF16), plain ? nullptr : t.bias.data(), c.data(),
                     plain ? nullptr : pre.data(), nullptr, m, n, k, t.a.row, 1, t.b.row, t.b.col, t.stride, 0, activation, FS_F32,
                     FS_BF16, FS_F32, FS_F32);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < t.stride && i * t.stride + j < static_cast<int64_t>(c.size()); ++j) {
            const int64_t at = i * t.stride + j;
            const double z = j < n ? t.product(i, j) + (plain ? 0 : t.bias[j]) : t.before[at];
            CHECK_CLOSE(c[at], j < n ? activation_of(activation, z) : z, j < n ? 2 * t.tolerance() : 0);
            if (!plain) CHECK_CLOSE(pre[at], z, j < n ? t.tolerance() : 0);
          }
      }
}

TEST(gemm, deep_products_with_a_small_result) {
  constexpr int64_t kShapes[][3] = {{64, 16, 1024}, {67, 21, 1025}, {131, 40, 2049}, {70, 523, 1100}};
  for (const auto& [m, n, k] : kShapes)
    for (Layout a_layout : {kByColumns, kWithGaps})
      for (int32_t dtype : {FS_F32, FS_BF16})
        for (int32_t accumulate : {0, 1}) {
          const Case t(m, n, k, a_layout, kByRows);
          auto c = t.before;
          KERNEL(gemm)(t.a.data(dtype), t.b.data(dtype), nullptr, c.data(), nullptr, nullptr, m, n, k, t.a.row, t.a.col, t.b.row,
                       t.b.col, t.stride, accumulate, FS_NONE, dtype, dtype, FS_F32, FS_F32);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < t.stride && i * t.stride + j < static_cast<int64_t>(c.size()); ++j) {
              const int64_t at = i * t.stride + j;
              CHECK_CLOSE(c[at], (j < n ? t.product(i, j) : 0) + (j < n && !accumulate ? 0 : t.before[at]),
                          j < n ? 2 * t.tolerance() : 0);
            }
        }
}

TEST(gemm, either_operand_may_stay_while_the_other_passes_in_chunks) {
  constexpr int64_t kShapes[][3] = {{30, 300, 20}, {300, 30, 20}, {523, 70, 1100}, {70, 523, 1100}};
  for (const auto& [m, n, k] : kShapes)
    for (Layout layout : {kByRows, kByColumns})
      for (int32_t c_dtype : {FS_F32, FS_BF16}) {
        const Case t(m, n, k, layout, layout);
        auto c = t.before;
        auto narrow = to_bf16(t.before);
        void* const to = c_dtype == FS_F32 ? static_cast<void*>(c.data()) : narrow.data();
        KERNEL(gemm)(t.a.data(FS_BF16), t.b.data(FS_BF16), t.bias.data(), to, nullptr, nullptr, m, n, k, t.a.row, t.a.col,
                     t.b.row, t.b.col, t.stride, 0, FS_RELU, FS_BF16, FS_BF16, c_dtype, FS_F32);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const double z = t.product(i, j) + t.bias[j], expected = z > 0 ? z : 0;
            const float found = c_dtype == FS_F32 ? c[i * t.stride + j] : from_bf16(narrow[i * t.stride + j]);
            CHECK_CLOSE(found, expected, 2 * t.tolerance() + (c_dtype == FS_F32 ? 0 : expected / 256));
          }
      }
}

TEST(gemm, squares_are_those_of_what_was_written) {
  constexpr int64_t kShapes[][3] = {{1, 1, 1}, {37, 45, 9}, {300, 30, 700}, {30, 300, 7}, {64, 64, 64}};
  for (const auto& [m, n, k] : kShapes)
    for (int32_t c_dtype : {FS_F32, FS_BF16})
      for (int32_t accumulate : {0, 1}) {
        const Case t(m, n, k, kByColumns, kByRows);
        auto c = t.before;
        auto narrow = to_bf16(t.before);
        void* const to = c_dtype == FS_F32 ? static_cast<void*>(c.data()) : narrow.data();
        double squares = -1, expected = 0;
        KERNEL(gemm)(t.a.data(FS_BF16), t.b.data(FS_BF16), nullptr, to, nullptr, &squares, m, n, k, t.a.row, t.a.col,
                     t.b.row, t.b.col, t.stride, accumulate, FS_NONE, FS_BF16, FS_BF16, c_dtype, FS_F32);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            const double x = c_dtype == FS_F32 ? c[i * t.stride + j] : from_bf16(narrow[i * t.stride + j]);
            expected += x * x;
          }
        CHECK_CLOSE(squares, expected, (c_dtype == FS_F32 ? 1e-12 : 1e-6) * expected);
      }
}

TEST(gemm, what_is_not_finite_stays_where_it_belongs) {
  Case t(35, 40, 67, kByRows, kByRows);
  t.a.values[3 * t.a.row + 66] = INFINITY;  // the last of an odd depth
  t.b.values[5 * t.b.row + 39] = NAN;       // the last column
  t.a.narrow = to_bf16(t.a.values);
  t.b.narrow = to_bf16(t.b.values);
  t.b.narrow[5 * t.b.row + 39] = 0x7fc0;
  for (int32_t dtype : {FS_F32, FS_BF16}) {
    auto c = t.before;
    KERNEL(gemm)(t.a.data(dtype), t.b.data(dtype), nullptr, c.data(), nullptr, nullptr, t.m, t.n, t.k, t.a.row, t.a.col,
                 t.b.row, t.b.col, t.stride, 0, FS_NONE, dtype, dtype, FS_F32, FS_F32);
    for (int64_t i = 0; i < t.m; ++i)
      for (int64_t j = 0; j < t.n; ++j) {
        const float found = c[i * t.stride + j];
        CHECK(j == 39 ? isnan(found) : i == 3 ? isinf(found) : isfinite(found));
      }
  }
}

TEST(gemm, empty_matrices_are_not_touched) {
  const auto bias = random_floats(4);
  KERNEL(gemm)(nullptr, nullptr, bias.data(), nullptr, nullptr, nullptr, 0, 4, 3, 3, 1, 4, 1, 4, 0, FS_RELU, FS_F32, FS_F32,
               FS_F32, FS_F32);
  KERNEL(gemm)(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 4, 0, 3, 3, 1, 0, 1, 0, 0, FS_NONE, FS_F32, FS_F32, FS_F32,
               FS_F32);
  std::vector<float> c(8, 7.0f);
  KERNEL(gemm)(nullptr, nullptr, bias.data(), c.data(), nullptr, nullptr, 2, 4, 0, 0, 1, 4, 1, 4, 0, FS_NONE, FS_F32, FS_F32,
               FS_F32, FS_F32);
  for (int i = 0; i < 8; ++i) CHECK(c[i] == bias[i % 4]);
}
