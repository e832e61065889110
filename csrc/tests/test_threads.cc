// How work is shared out. What overlaps is a wrong value here, and a report under ThreadSanitizer (make test-threads).
#include <thread>

#include "test.h"

TEST(threads, every_cut_takes_each_element_once) {
  fs_set_grain(1);
  for (int num_threads : {1, 2, 3, 5, 8, 16})
    for (int64_t n : {1, 2, 3, 15, 16, 17, 63, 257, 1025, 4099}) {
      set_num_threads(num_threads);
      std::vector<float> values(n, 8.0f);
      KERNEL(vector_scale)(values.data(), 0.5f, values.data(), n, FS_F32);
      for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(values[i], 4.0, 0);
    }
}

TEST(threads, a_sum_over_any_cut_has_each_row_once) {
  fs_set_grain(1);
  for (int num_threads : {1, 2, 3, 5, 8, 16})
    for (int64_t rows : {1, 2, 3, 15, 16, 17, 63, 257, 1025}) {
      set_num_threads(num_threads);
      const std::vector<float> ones(rows * 3, 1.0f);
      std::vector<float> sums(3);
      KERNEL(bias_act_backward)(ones.data(), nullptr, nullptr, nullptr, sums.data(), rows, 3, FS_NONE, FS_F32, FS_F32);
      for (float sum : sums) CHECK_CLOSE(sum, static_cast<double>(rows), 0);
    }
}

// As weight gradients beside input gradients do: what a kernel keeps between calls is its thread's own.
TEST(threads, several_threads_may_call_kernels_at_once) {
  constexpr int64_t kSize = 40, kTimes = 10;
  const auto a = random_floats(kSize * kSize, 1), b = random_floats(kSize * kSize, 2);
  const auto multiply = [&](std::vector<float>* c) {
    set_num_threads(3);
    for (int64_t time = 0; time < kTimes; ++time)
      KERNEL(gemm)(a.data(), b.data(), nullptr, c->data(), nullptr, nullptr, kSize, kSize, kSize, kSize, 1, kSize, 1,
                   kSize, 0, FS_NONE, FS_F32, FS_F32, FS_F32, FS_F32);
  };
  std::vector<std::vector<float>> results(3, std::vector<float>(kSize * kSize));
  std::vector<std::thread> callers;
  for (auto& result : results) callers.emplace_back(multiply, &result);
  for (auto& caller : callers) caller.join();
  for (const auto& result : results)
    for (int64_t i = 0; i < kSize * kSize; ++i) CHECK_CLOSE(result[i], results[0][i], 0);
  double expected = 0;
  for (int64_t p = 0; p < kSize; ++p) expected += static_cast<double>(a[p]) * b[p * kSize];
  CHECK_CLOSE(results[0][0], expected, 1e-4);
}
