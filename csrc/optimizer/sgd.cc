// SGD with momentum over a list of tensors, in the order of operations of torch.optim. Narrow states stay in
// registers; fp32 states and the rare steps go through the blocks of step.h, which is no slower for them.
#include "optimizer/packed_block.h"

namespace {

struct Coefficients {
  float grad_scale, weight_decay, momentum, fresh, lr;
  bool nesterov;
};

Coefficients coefficients_of(const fs_sgd_group& group, float grad_scale) {
  return {
      .grad_scale = group.maximize ? -grad_scale : grad_scale,
      .weight_decay = static_cast<float>(group.weight_decay),
      .momentum = static_cast<float>(group.momentum),
      .fresh = static_cast<float>(1 - group.dampening),
      .lr = static_cast<float>(group.lr),
      .nesterov = group.nesterov != 0,
  };
}

// ---- the formula -------------------------------------------------------------------------------------------------

// Rounded where torch rounds.
FS_INLINE vfloat gradient_of(vfloat grad, vfloat w, const Coefficients& c) {
  return rounded(grad * c.grad_scale) + c.weight_decay * w;
}
FS_INLINE vfloat next_m(vfloat m, vfloat g, const Coefficients& c) { return rounded(c.momentum * m) + c.fresh * g; }
FS_INLINE vfloat next_weight(vfloat w, vfloat m, vfloat g, const Coefficients& c) {
  return w - c.lr * (c.nesterov ? g + c.momentum * m : m);
}

// ---- in registers, one loop for each combination of formats -------------------------------------------------------

struct Bf16Momentum {
  static constexpr bool kBlocks = false;
  bf16* m;
  BlockRandom random;
  explicit Bf16Momentum(const Place& place)
      : m(reinterpret_cast<bf16*>(place.at.array[kM])), random(place.keys.state, place.first) {}
  FS_INLINE EvenOdd load(int64_t i) const { return load_even_odd(m + i); }
  FS_INLINE void store(int64_t i, EvenOdd new_m) const {
    store_rounded(m + i, new_m, random.draw_halves(i).of_m());
  }
};
struct ByteMomentum {
  static constexpr bool kBlocks = true;
  uint8_t* m;
  float *scale, old_scale;
  BlockRandom random;
  vuint seen = {};

  explicit ByteMomentum(const Place& place)
      : m(reinterpret_cast<uint8_t*>(place.at.array[kM])), scale(place.at.m_scale), old_scale(*scale),
        random(place.keys.state, place.first) {}
  FS_INLINE EvenOdd load(int64_t i) const { return load_m_codes(m + i, old_scale); }
  FS_INLINE void store(int64_t, EvenOdd new_m) {
    seen = larger(seen, larger(bits_of(new_m.even) & 0x7fffffffu, bits_of(new_m.odd) & 0x7fffffffu));
  }
  FS_INLINE void encode(const float* values) const {
    const Scale block = scale_for(largest_lane(seen));
    *scale = block.value;
    for (int64_t i = 0; i < kBlock; i += 2 * kWidth)
      store_m_codes(m + i, stashed(values + i), block, random.draw(i));
    if (block.inverse == 0) memset(m, 0, kBlock);
  }
};

template <class Weight, class Momentum, class G>
__attribute__((noinline)) void step_block(const Place& place, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Weight weight(place);
  Momentum momentum(place);
  const G* grad = reinterpret_cast<const G*>(place.at.array[kGrad]);
  // A NaN of fp32 may have any lower half, and the narrow formats want it canonical; it can only come in here.
  constexpr bool kClean = __is_same(G, float) || Weight::kAnyNan;
  alignas(64) float new_m[Momentum::kBlocks ? kBlock : 1];  // until the scale is known
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd w = weight.load(i), raw = load_even_odd(grad + i);
    EvenOdd g = {gradient_of(raw.even, w.even, c), gradient_of(raw.odd, w.odd, c)};
    if constexpr (kClean) g = {canonical(g.even), canonical(g.odd)};
    const EvenOdd old = momentum.load(i), m = {next_m(old.even, g.even, c), next_m(old.odd, g.odd, c)};
    momentum.store(i, m);
    if constexpr (Momentum::kBlocks) stash(new_m + i, m);
    weight.store(i, {next_weight(w.even, m.even, g.even, c), next_weight(w.odd, m.odd, g.odd, c)});
  }
  if constexpr (Momentum::kBlocks) momentum.encode(new_m);
}

using BlockStep = void (*)(const Place&, const Coefficients&);

template <class Weight, class Momentum>
BlockStep pick_grad(const fs_param& p) {
  return p.grad_dtype == FS_F32 ? step_block<Weight, Momentum, float> : step_block<Weight, Momentum, bf16>;
}
template <class Weight>
BlockStep pick_momentum(const fs_param& p) {
  return p.state_format == FS_STATE_BF16 ? pick_grad<Weight, Bf16Momentum>(p) : pick_grad<Weight, ByteMomentum>(p);
}
BlockStep pick(const fs_param& p) {
  if (p.weight_format == FS_WEIGHT_F32) return pick_momentum<F32Weight>(p);
  return p.weight_format == FS_WEIGHT_SPLIT ? pick_momentum<SplitWeight>(p) : pick_momentum<Bf16Weight>(p);
}

// ---- through blocks of floats: fp32 states, no momentum, Lookahead, the first step ---------------------------------

// `first`: torch starts the momentum with the whole first gradient.
template <bool momentum, bool first>
__attribute__((noinline)) void update(const FloatBlock& whole, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const FloatBlock block = whole;  // a copy: stores might change `whole`
  for (int64_t i = 0; i < kBlock; i += kWidth) {
    const vfloat w = load(block.weight + i, All{}), g = gradient_of(load(block.grad + i, All{}), w, c);
    if constexpr (momentum) {
      const vfloat m = first ? g : next_m(load(block.m + i, All{}), g, c);
      store(block.m + i, m, All{});
      store(block.weight + i, next_weight(w, m, g, c), All{});
    } else {
      store(block.weight + i, w - c.lr * g, All{});
    }
  }
}

}  // namespace

FS_DEFINE(sgd_step)(fs_param* params, int64_t num_params, const fs_sgd_group* groups, float grad_scale,
                    float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  for_param_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t) {
    const fs_sgd_group& group = groups[p.group];
    const Coefficients c = coefficients_of(group, grad_scale);
    const Keys keys(p, seed, begin);
    const bool momentum = group.momentum != 0, first = p.step == 1;
    if (p.state_format == FS_STATE_F32 || !momentum || first || (p.slow && lookahead_alpha > 0)) {
      const auto step = !momentum ? update<false, false> : first ? update<true, true> : update<true, false>;
      step_blocks(p, begin, end, keys, lookahead_alpha, [&](const FloatBlock& block) { step(block, c); });
    } else {
      const BlockStep step = pick(p);
      for_param_blocks(p, begin, end,
                       [&](const Address& at, int64_t first_of_block) { step({at, keys, first_of_block}, c); });
    }
  });
}
