#include "param.h"

namespace {

std::vector<float> weights_of(const Tensor& t) {
  std::vector<float> weights;
  for (int64_t i = 0; i < t.p.numel; ++i) weights.push_back(t.weight(i));
  return weights;
}

}  // namespace

// Two steps with the same gradient; the second sees the momentum as it was stored.
TEST(sgd, equals_double_arithmetic_in_every_format) {
  const fs_sgd_group groups[] = {{0.1, 0, 0, 0.01, 0, 1}, {0.1, 0.9, 0.2, 0.01, 0, 0}, {0.1, 0.9, 0, 0, 1, 0}};
  for (const fs_sgd_group& group : groups)
    for (int weight = 0; weight < 3; ++weight)
      for (int state = 0; state < 3; ++state)
        for (int grad = 0; grad < 2; ++grad)
          for (int64_t n : {0, 1, 7, 255, 256, 257, 1025, 9001}) {
            Tensor t(n, weight, state, grad, false, false);
            if (group.momentum == 0) t.p.m = nullptr;
            t.p.v = nullptr;
            const auto start = weights_of(t);
            KERNEL(sgd_step)(&t.p, 1, &group, 0.5f, 0, 42, 0);
            const auto middle = weights_of(t);
            t.p.step = 2;
            KERNEL(sgd_step)(&t.p, 1, &group, 0.5f, 0, 42, 0);
            for (int64_t i = 0; i < n; ++i) {
              const double scaled = (group.maximize ? -0.5 : 0.5) * t.g32[i];
              const double g1 = scaled + group.weight_decay * start[i], g2 = scaled + group.weight_decay * middle[i];
              const double m2 = group.momentum * g1 + (1 - group.dampening) * g2;
              const double d1 = group.nesterov ? g1 + group.momentum * g1 : g1;
              const double d2 = group.momentum == 0 ? g2 : group.nesterov ? g2 + group.momentum * m2 : m2;
              const double rounding = weight == FS_WEIGHT_BF16 ? 1.0 / 128 : 1e-6;
              const double of_state = state == FS_STATE_F32 ? 0 : state == FS_STATE_BF16 ? 1.0 / 128 : 1.0 / 6;
              const double of_weight = rounding * (1 + fabs(start[i]));
              CHECK_CLOSE(middle[i], start[i] - 0.1 * d1, of_weight);
              CHECK_CLOSE(t.weight(i), middle[i] - 0.1 * d2, of_weight + 0.2 * of_state * (fabs(g1) + 1e-3));
            }
          }
}

TEST(sgd, lookahead_skip_and_nothing) {
  const fs_sgd_group group = {0.1, 0.9, 0, 0, 0, 0};
  KERNEL(sgd_step)(nullptr, 0, &group, 1, 0, 1, 0);
  for (int weight = 0; weight < 3; ++weight) {
    Tensor t(777, weight, FS_STATE_8BIT, FS_BF16, false, true);
    Tensor plain(777, weight, FS_STATE_8BIT, FS_BF16, false, false);
    const auto start = weights_of(t);
    KERNEL(sgd_step)(&t.p, 1, &group, 1, 0.5f, 42, 1);
    CHECK(weights_of(t) == start);
    KERNEL(sgd_step)(&plain.p, 1, &group, 1, 0, 42, 0);
    KERNEL(sgd_step)(&t.p, 1, &group, 1, 0.5f, 42, 0);
    const double rounding = weight == FS_WEIGHT_BF16 ? 1.0 / 64 : 1e-6;
    for (int64_t i = 0; i < 777; ++i)
      CHECK_CLOSE(t.slow[i], 0.5 * (start[i] + plain.weight(i)), rounding * (1 + fabs(start[i])));
  }
}
