#include <string.h>

#include "param.h"

namespace {

const fs_adam_group kGroup = {0.01, 0.9, 0.999, 1e-8, 0.1, 1, 0, 0, 0};

}  // namespace

// From zero states the first step does not depend on how states are kept: it is -lr * sign(g), nearly.
TEST(adam, first_step_equals_double_arithmetic_in_every_format) {
  for (int amsgrad = 0; amsgrad < 2; ++amsgrad)
    for (int weight = 0; weight < 3; ++weight)
      for (int state = 0; state < 3; ++state)
        for (int grad = 0; grad < 2; ++grad)
          for (int64_t n : {0, 1, 7, 255, 256, 257, 1025, 9001}) {
            fs_adam_group group = kGroup;
            group.amsgrad = amsgrad;
            group.decoupled = grad;
            Tensor t(n, weight, state, grad, amsgrad, false);
            std::vector<float> before;
            for (int64_t i = 0; i < n; ++i) before.push_back(t.weight(i));
            KERNEL(adam_step)(&t.p, 1, &group, 0.5f, 0, 42, 0);
            for (int64_t i = 0; i < n; ++i) {
              const double g = 0.5 * t.g32[i] + (group.decoupled ? 0 : 0.1 * before[i]);
              const double expected = before[i] * (group.decoupled ? 0.999 : 1.0) - 0.01 * g / (fabs(g) + 1e-8);
              CHECK_CLOSE(t.weight(i), expected, weight == FS_WEIGHT_BF16 ? fabs(expected) / 128 + 1e-4 : 2e-6);
            }
          }
}

TEST(adam, lookahead_pulls_slow_and_fast_weights_together) {
  for (int weight = 0; weight < 3; ++weight)
    for (int state = 0; state < 3; ++state) {
      const int64_t n = 777;
      Tensor t(n, weight, state, FS_BF16, false, true), plain(n, weight, state, FS_BF16, false, false);
      const auto slow = t.slow;
      KERNEL(adam_step)(&plain.p, 1, &kGroup, 1, 0, 42, 0);
      KERNEL(adam_step)(&t.p, 1, &kGroup, 1, 0.5f, 42, 0);
      const double rounding = weight == FS_WEIGHT_BF16 ? 1.0 / 64 : 1e-6;
      for (int64_t i = 0; i < n; ++i) {
        CHECK_CLOSE(t.slow[i], slow[i] + 0.5 * (plain.weight(i) - slow[i]), rounding * (1 + fabs(slow[i])));
        CHECK_CLOSE(t.weight(i), t.slow[i], rounding * (1 + fabs(slow[i])));
      }
    }
}

TEST(adam, a_mixed_list_equals_its_tensors_one_by_one) {
  const int64_t sizes[] = {70001, 10, 0, 4096, 8193, 1, 513, 5000, 777};
  std::vector<fs_param> list;
  std::vector<Tensor*> together, alone;
  for (int k = 0; k < 9; ++k) {
    together.push_back(new Tensor(sizes[k], k / 3, k % 3, k % 2, false, false, k));
    alone.push_back(new Tensor(sizes[k], k / 3, k % 3, k % 2, false, false, k));
  }
  for (int step = 1; step <= 3; ++step) {
    list.clear();
    for (int k = 0; k < 9; ++k) {
      together[k]->p.step = alone[k]->p.step = step;
      list.push_back(together[k]->p);
      KERNEL(adam_step)(&alone[k]->p, 1, &kGroup, 1, 0, 7, 0);
    }
    KERNEL(adam_step)(list.data(), 9, &kGroup, 1, 0, 7, 0);
  }
  bool same = true;
  for (int k = 0; k < 9; ++k) {
    same = same && together[k]->w32 == alone[k]->w32 && together[k]->w16 == alone[k]->w16 && together[k]->lo == alone[k]->lo;
    same = same && together[k]->m8 == alone[k]->m8 && together[k]->v8 == alone[k]->v8 && together[k]->m16 == alone[k]->m16;
    same = same && together[k]->v16 == alone[k]->v16 && together[k]->m32 == alone[k]->m32;
    delete together[k];
    delete alone[k];
  }
  CHECK(same);
}

TEST(adam, skip_and_the_empty_list_do_nothing) {
  KERNEL(adam_step)(nullptr, 0, nullptr, 1, 0, 0, 0);
  Tensor t(300, FS_WEIGHT_F32, FS_STATE_F32, FS_F32, false, false);
  const auto before = t.w32;
  KERNEL(adam_step)(&t.p, 1, &kGroup, 1, 0, 0, 1);
  CHECK(t.w32 == before);
}

TEST(adam, an_8bit_block_with_an_infinite_gradient_becomes_nan) {
  Tensor t(600, FS_WEIGHT_SPLIT, FS_STATE_8BIT, FS_F32, false, false);
  t.g32[300] = INFINITY;
  KERNEL(adam_step)(&t.p, 1, &kGroup, 1, 0, 0, 0);
  CHECK(isnan(t.m_scale[1]) && isnan(t.v_scale[1]) && !isnan(t.m_scale[0]) && !isnan(t.v_scale[2]));
  CHECK(isnan(t.weight(300)) && !isnan(t.weight(299)));
}
