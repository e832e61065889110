#include "test.h"

namespace {

fs_tensor entry(std::vector<float>& x) { return {x.data(), static_cast<int64_t>(x.size()), FS_F32}; }
fs_tensor entry(std::vector<uint16_t>& x) { return {x.data(), static_cast<int64_t>(x.size()), FS_BF16}; }

struct Lists {
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<uint16_t>> halves;
  std::vector<fs_tensor> entries;

  explicit Lists(unsigned seed) {
    for (int64_t n : kSizes) {
      floats.push_back(random_floats(n, seed++));
      halves.push_back(to_bf16(random_floats(n, seed++)));
    }
    for (size_t i = 0; i < floats.size(); ++i) {
      entries.push_back(entry(floats[i]));
      entries.push_back(entry(halves[i]));
    }
  }
  int64_t count() const { return static_cast<int64_t>(entries.size()); }
};

}  // namespace

TEST(grads, norm_of_a_mixed_list_equals_double_arithmetic) {
  const Lists lists(1);
  double expected = 0, norm = -1;
  for (const auto& x : lists.floats)
    for (double value : x) expected += value * value;
  for (const auto& x : lists.halves)
    for (uint16_t value : x) expected += static_cast<double>(from_bf16(value)) * from_bf16(value);
  KERNEL(grad_norm)(lists.entries.data(), lists.count(), &norm);
  CHECK_CLOSE(norm, sqrt(expected), 1e-8 * sqrt(expected));  // bf16 blocks are summed in fp32
}

TEST(grads, norm_is_finite_exactly_if_every_element_is) {
  for (int64_t n : kSizes) {
    for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
      if (n == 0) continue;
      std::vector<float> x(n, 3e38f);
      const fs_tensor list[] = {entry(x), {nullptr, 0, FS_F32}};
      double norm = 0;
      KERNEL(grad_norm)(list, 2, &norm);
      CHECK(isfinite(norm));
      x[at] = NAN;
      KERNEL(grad_norm)(list, 2, &norm);
      CHECK(isnan(norm));
      x[at] = -INFINITY;
      KERNEL(grad_norm)(list, 2, &norm);
      CHECK(isinf(norm));
    }
  }
}

TEST(grads, nothing_has_norm_zero) {
  double norm = -1;
  KERNEL(grad_norm)(nullptr, 0, &norm);
  CHECK(norm == 0);
  KERNEL(grad_accumulate)(nullptr, nullptr, 0, 1);
  KERNEL(grad_scale)(nullptr, 0, 1);
}

TEST(grads, accumulate_adds_scaled_sources_to_fp32) {
  Lists sources(1);
  std::vector<std::vector<float>> targets;
  std::vector<fs_tensor> entries;
  for (const fs_tensor& source : sources.entries) targets.push_back(random_floats(source.numel, 7));
  for (auto& target : targets) entries.push_back(entry(target));
  KERNEL(grad_accumulate)(entries.data(), sources.entries.data(), sources.count(), -0.3f);
  for (size_t t = 0; t < targets.size(); ++t) {
    const auto source = t % 2 ? from_bf16(sources.halves[t / 2]) : sources.floats[t / 2];
    const auto before = random_floats(static_cast<int64_t>(source.size()), 7);
    for (size_t i = 0; i < source.size(); ++i) CHECK_CLOSE(targets[t][i], before[i] - 0.3f * source[i], 1e-6);
  }
}

TEST(grads, scale_multiplies_in_place) {
  Lists lists(1);
  const Lists before(1);
  KERNEL(grad_scale)(lists.entries.data(), lists.count(), 1.7f);
  for (size_t t = 0; t < lists.floats.size(); ++t) {
    for (size_t i = 0; i < lists.floats[t].size(); ++i) {
      CHECK(lists.floats[t][i] == before.floats[t][i] * 1.7f);
      CHECK(lists.halves[t][i] == to_bf16(from_bf16(before.halves[t][i]) * 1.7f));
    }
  }
}
