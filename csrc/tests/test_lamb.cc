#include "param.h"

namespace {

const fs_lamb_group kGroup = {0.1, 0.9, 0.999, 1e-6, 0.01, 0, 0};

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sqrt(sum);
}

}  // namespace

// With fp32 states element by element; with the others the length of the step: rounding of states leaves it alone.
TEST(lamb, first_step_equals_double_arithmetic) {
  for (int weight = 0; weight < 3; ++weight)
    for (int state = 0; state < 3; ++state)
      for (int grad = 0; grad < 2; ++grad)
        for (int64_t n : {0, 1, 7, 255, 256, 257, 1025, 9001}) {
          Tensor t(n, weight, state, grad, false, false);
          std::vector<double> before, update, step;
          for (int64_t i = 0; i < n; ++i) {
            const double g = 0.5 * t.g32[i];
            before.push_back(t.weight(i));
            update.push_back(g / (fabs(g) + 1e-6) + 0.01 * before[i]);
          }
          KERNEL(lamb_step)(&t.p, 1, &kGroup, 0.5f, 0, 42, 0);
          const double ratio = norm_of(before) / norm_of(update);
          for (int64_t i = 0; i < n; ++i) {
            step.push_back(t.weight(i) - before[i]);
            if (state != FS_STATE_F32) continue;
            const double rounding = weight == FS_WEIGHT_BF16 ? 1.0 / 128 : 1e-6;
            CHECK_CLOSE(step[i], -0.1 * ratio * update[i], rounding * (1 + fabs(before[i])));
          }
          if (weight != FS_WEIGHT_BF16) CHECK_CLOSE(norm_of(step), 0.1 * norm_of(before), 1e-5 * (1 + norm_of(before)));
        }
}

TEST(lamb, a_list_equals_its_tensors_one_by_one) {
  std::vector<fs_param> list;
  std::vector<std::vector<float>> alone;
  const int64_t sizes[] = {70001, 10, 0, 4096, 8193, 1, 513, 5000, 777};
  std::vector<Tensor*> tensors;
  for (int i = 0; i < 9; ++i) {
    Tensor single(sizes[i], i / 3, i % 3, i % 2, false, true, i + 1);
    KERNEL(lamb_step)(&single.p, 1, &kGroup, 1, 0.5f, 42, 0);
    alone.emplace_back();
    for (int64_t k = 0; k < sizes[i]; ++k) alone.back().push_back(single.weight(k));
    tensors.push_back(new Tensor(sizes[i], i / 3, i % 3, i % 2, false, true, i + 1));
    list.push_back(tensors.back()->p);
  }
  KERNEL(lamb_step)(list.data(), 9, &kGroup, 1, 0.5f, 42, 0);
  bool same = true;
  for (int i = 0; i < 9; ++i) {
    for (int64_t k = 0; k < sizes[i]; ++k) same &= alone[i][k] == tensors[i]->weight(k);
    delete tensors[i];
  }
  CHECK(same);
}

TEST(lamb, skip_and_nothing) {
  KERNEL(lamb_step)(nullptr, 0, &kGroup, 1, 0, 1, 0);
  Tensor t(777, FS_WEIGHT_F32, FS_STATE_F32, FS_F32, false, false);
  const auto before = t.w32;
  KERNEL(lamb_step)(&t.p, 1, &kGroup, 1, 0, 42, 1);
  CHECK(t.w32 == before);
}
