// SGD with momentum over a list of tensors, in the order of operations of torch.optim.
#include "optimizer.h"

namespace {

struct Coefficients {
  float grad_scale, weight_decay, momentum, fresh, lr;
};

Coefficients coefficients_of(const fs_sgd_group& group, float grad_scale) {
  return {
      .grad_scale = group.maximize ? -grad_scale : grad_scale,
      .weight_decay = static_cast<float>(group.weight_decay),
      .momentum = static_cast<float>(group.momentum),
      .fresh = static_cast<float>(1 - group.dampening),
      .lr = static_cast<float>(group.lr),
  };
}

// `first`: torch starts the momentum with the whole first gradient.
template <bool momentum, bool nesterov, bool first>
__attribute__((noinline)) void update(const Tile& whole, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Tile tile = whole;  // a copy: stores might change `whole`
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vfloat w = load(tile.weight + i, All{});
    vfloat g = rounded(load(tile.grad + i, All{}) * c.grad_scale) + c.weight_decay * w;  // rounded where torch rounds
    if constexpr (momentum) {
      vfloat m = g;
      if constexpr (!first) m = rounded(c.momentum * load(tile.m + i, All{})) + c.fresh * g;
      store(tile.m + i, m, All{});
      g = nesterov ? g + c.momentum * m : m;
    }
    store(tile.weight + i, w - c.lr * g, All{});
  }
}

using Update = void (*)(const Tile&, const Coefficients&);

Update pick(const fs_sgd_group& group, int64_t step) {
  if (group.momentum == 0) return update<false, false, false>;
  if (group.nesterov) return step == 1 ? update<true, true, true> : update<true, true, false>;
  return step == 1 ? update<true, false, true> : update<true, false, false>;
}

}  // namespace

FS_DEFINE(sgd_step)(fs_param* params, int64_t num_params, const fs_sgd_group* groups, float grad_scale,
                    float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  step_list(params, num_params, {seed, lookahead_alpha}, [=](const fs_param& p) {
    const fs_sgd_group& group = groups[p.group];
    const Coefficients c = coefficients_of(group, grad_scale);
    const Update step = pick(group, p.step);
    return [=](const Tile& tile) { step(tile, c); };
  });
}
