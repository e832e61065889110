// Adam and AdamW over a list of tensors, in the order of operations of torch.optim.
#include "optimizer.h"

namespace {

struct Coefficients {
  float grad_scale, l2, keep, beta1_rest, beta2, beta2_rest, root_correction, eps, step_size;
};

Coefficients coefficients_of(const fs_adam_group& group, int64_t step, float grad_scale) {
  const double correction1 = 1 - pow(group.beta1, static_cast<double>(step));
  const double correction2 = 1 - pow(group.beta2, static_cast<double>(step));
  return {
      .grad_scale = group.maximize ? -grad_scale : grad_scale,
      .l2 = group.decoupled ? 0.0f : static_cast<float>(group.weight_decay),
      .keep = group.decoupled ? static_cast<float>(1 - group.lr * group.weight_decay) : 1.0f,
      .beta1_rest = static_cast<float>(1 - group.beta1),
      .beta2 = static_cast<float>(group.beta2),
      .beta2_rest = static_cast<float>(1 - group.beta2),
      .root_correction = static_cast<float>(1 / ::sqrt(correction2)),
      .eps = static_cast<float>(group.eps),
      .step_size = static_cast<float>(group.lr / correction1),
  };
}

// `roots`: v and v_max of the tile are square roots.
template <bool amsgrad, bool roots>
__attribute__((noinline)) void update(const Tile& tile, const Coefficients& c) {
  float *weight = tile.weight, *m_tile = tile.m, *v_tile = tile.v, *v_max_tile = tile.v_max;
  const float* grad = tile.grad;
  for (int64_t i = 0; i < kTile; i += kWidth) {
    vfloat w = load(weight + i, All{});
    const vfloat g = load(grad + i, All{}) * c.grad_scale + c.l2 * w;
    vfloat m = load(m_tile + i, All{});
    m += c.beta1_rest * (g - m);
    store(m_tile + i, m, All{});
    vfloat v = load(v_tile + i, All{});
    if constexpr (roots) v *= v;
    v = c.beta2 * v + c.beta2_rest * g * g;
    vfloat root = sqrt(v);
    store(v_tile + i, roots ? root : v, All{});
    if constexpr (amsgrad) {
      vfloat largest = load(v_max_tile + i, All{});  // max_of: a NaN in its second argument wins
      largest = roots ? max_of(largest, root) : max_of(largest, v);
      store(v_max_tile + i, largest, All{});
      root = roots ? largest : sqrt(largest);
    }
    const vfloat denominator = root * c.root_correction + c.eps;
    store(weight + i, w * c.keep - c.step_size * (m / denominator), All{});
  }
}

}  // namespace

FS_DEFINE(adam_step)(fs_param* params, int64_t num_params, const fs_adam_group* groups, float grad_scale,
                     float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  step_list(params, num_params, {seed, lookahead_alpha}, [=](const fs_param& p) {
    const fs_adam_group& group = groups[p.group];
    const Coefficients c = coefficients_of(group, p.step, grad_scale);
    const bool amsgrad = group.amsgrad;
    return [=](const Tile& tile) {
      if (amsgrad)
        tile.roots ? update<true, true>(tile, c) : update<true, false>(tile, c);
      else
        tile.roots ? update<false, true>(tile, c) : update<false, false>(tile, c);
    };
  });
}
