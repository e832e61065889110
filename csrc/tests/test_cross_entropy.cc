#include "test.h"

namespace {

// Loss and gradient of one row in double arithmetic.
double row_in_double(const float* x, int64_t target, int64_t classes, double smoothing, double* gradient) {
  double max = -INFINITY, sum = 0, loss = 0;
  for (int64_t c = 0; c < classes; ++c) max = fmax(max, x[c]);
  for (int64_t c = 0; c < classes; ++c) sum += exp(x[c] - max);
  for (int64_t c = 0; c < classes; ++c) {
    const double q = (c == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
    loss -= q * (x[c] - max - log(sum));
    gradient[c] = exp(x[c] - max) / sum - q;
  }
  return loss;
}

}  // namespace

TEST(cross_entropy, equals_double_arithmetic) {
  for (int64_t classes : {1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 65, 257, 1000, 4097, 8215})
    for (float smoothing : {0.0f, 0.1f}) {
      const int64_t rows = 7;
      const auto x = random_floats(rows * classes);
      std::vector<int64_t> target(rows);
      for (int64_t r = 0; r < rows; ++r) target[r] = r == 3 ? -1 : (r * 997 + classes - 1) % classes;
      std::vector<float> losses(rows), dlogits(rows * classes);
      std::vector<double> expected(classes);
      double total, sum = 0;
      int64_t valid[2];
      KERNEL(cross_entropy)(x.data(), target.data(), dlogits.data(), losses.data(), &total, valid, rows, classes, -1,
                            smoothing, 1, FS_F32);
      CHECK(valid[0] == rows - 1 && valid[1] == -1);
      for (int64_t r = 0; r < rows; ++r) {
        if (r == 3) {
          CHECK(losses[r] == 0);
          for (int64_t c = 0; c < classes; ++c) CHECK(dlogits[r * classes + c] == 0);
          continue;
        }
        const double loss = row_in_double(&x[r * classes], target[r], classes, smoothing, expected.data());
        sum += loss;
        CHECK_CLOSE(losses[r], loss, 1e-6 * fmax(loss, 1));
        for (int64_t c = 0; c < classes; ++c) CHECK_CLOSE(dlogits[r * classes + c], expected[c] / 6, 1e-6);
      }
      CHECK_CLOSE(total, sum / 6, 1e-6 * fmax(sum, 1));
      auto inplace = x;
      KERNEL(cross_entropy)(inplace.data(), target.data(), inplace.data(), losses.data(), &total, valid, rows, classes,
                            -1, smoothing, 1, FS_F32);
      CHECK(inplace == dlogits);
      const auto with_gradient = losses;
      KERNEL(cross_entropy)(x.data(), target.data(), nullptr, losses.data(), &total, valid, rows, classes, -1,
                            smoothing, 1, FS_F32);
      CHECK(losses == with_gradient);
    }
}

TEST(cross_entropy, bf16_rounds_what_fp32_gives) {
  for (int64_t classes : {1, 2, 9, 17, 37, 1025, 70001}) {
    const int64_t rows = 3;
    auto x = to_bf16(random_floats(rows * classes));
    const auto wide = from_bf16(x);
    const std::vector<int64_t> target = {0, classes / 2, classes - 1};
    std::vector<float> losses(rows), losses_wide(rows), dlogits(rows * classes);
    double total, total_wide;
    int64_t valid[2];
    KERNEL(cross_entropy)(wide.data(), target.data(), dlogits.data(), losses_wide.data(), &total_wide, valid, rows,
                          classes, -100, 0.1f, 0, FS_F32);
    KERNEL(cross_entropy)(x.data(), target.data(), nullptr, losses.data(), &total, valid, rows, classes, -100, 0.1f,
                          0, FS_BF16);
    CHECK(losses == losses_wide && total == total_wide);
    KERNEL(cross_entropy)(x.data(), target.data(), x.data(), losses.data(), &total, valid, rows, classes, -100, 0.1f,
                          0, FS_BF16);
    CHECK(losses == losses_wide);
    CHECK(x == to_bf16(dlogits));
  }
}

TEST(cross_entropy, a_target_out_of_range_is_reported_and_nothing_is_written) {
  const auto x = random_floats(4 * 5);
  std::vector<float> losses(4, 7), dlogits(4 * 5, 7);
  double total = 7;
  int64_t valid[2];
  for (int64_t bad : {int64_t{5}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const std::vector<int64_t> target = {1, -100, bad, bad};
    KERNEL(cross_entropy)(x.data(), target.data(), dlogits.data(), losses.data(), &total, valid, 4, 5, -100, 0, 1,
                          FS_F32);
    CHECK(valid[1] == 2);
    CHECK(total == 7 && losses == std::vector<float>(4, 7) && dlogits == std::vector<float>(4 * 5, 7));
  }
}

TEST(cross_entropy, no_rows_and_all_ignored) {
  double total;
  int64_t valid[2];
  KERNEL(cross_entropy)(nullptr, nullptr, nullptr, nullptr, &total, valid, 0, 8, -100, 0, 0, FS_F32);
  CHECK(total == 0 && valid[0] == 0 && valid[1] == -1);
  std::vector<float> x(8, NAN), losses(1);
  const std::vector<int64_t> target = {-100};
  KERNEL(cross_entropy)(x.data(), target.data(), x.data(), losses.data(), &total, valid, 1, 8, -100, 0, 1, FS_F32);
  CHECK(isnan(total));
  CHECK(losses[0] == 0 && x == std::vector<float>(8, 0));
}

TEST(cross_entropy, scale_multiplies_rows_by_their_factor) {
  for (int64_t classes : {1, 9, 33, 1025}) {
    const int64_t rows = 5;
    const auto d = random_floats(rows * classes), factor = random_floats(rows, 2);
    std::vector<float> out(rows * classes);
    KERNEL(cross_entropy_scale)(d.data(), factor.data(), 1, out.data(), rows, classes, FS_F32);
    for (int64_t i = 0; i < rows * classes; ++i) CHECK(out[i] == d[i] * factor[i / classes]);
    auto narrow = to_bf16(d);
    const auto before = from_bf16(narrow);
    KERNEL(cross_entropy_scale)(narrow.data(), factor.data(), 0, narrow.data(), rows, classes, FS_BF16);
    for (int64_t i = 0; i < rows * classes; ++i) CHECK(narrow[i] == to_bf16(before[i] * factor[0]));
  }
}
