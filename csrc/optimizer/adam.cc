// Adam and AdamW over a list of tensors, in the order of operations of torch.optim.
//
// Square root and division take 12 cycles a vector on Zen 4 and leave the other units idle: a loop that decodes,
// updates and encodes in registers hides nearly all of the formats behind them. So the common steps have one loop for
// each combination of formats; AMSGrad and the steps where Lookahead is due go through the blocks of step.h.
#include "optimizer/packed_block.h"
#include "simd/quotient.h"

namespace {

struct Coefficients {
  float grad_scale, l2, keep, beta1_rest, beta2, beta2_rest, root_correction, eps, step_size;
  float narrow_eps, narrow_step;
  bool divides;
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
      .narrow_eps = static_cast<float>(group.eps * ::sqrt(correction2)),
      .narrow_step = static_cast<float>(group.lr / correction1 * ::sqrt(correction2)),
      .divides = divides_quickly(),
  };
}

// ---- the formula -----------------------------------------------------------------------------------------------

// Rounded where torch rounds: otherwise the two drift apart by an ulp every few steps.
FS_INLINE vfloat gradient_of(vfloat grad, const Coefficients& c) { return rounded(grad * c.grad_scale); }
FS_INLINE vfloat add_decay(vfloat g, vfloat w, const Coefficients& c) { return g + c.l2 * w; }
FS_INLINE vfloat next_m(vfloat m, vfloat g, const Coefficients& c) { return m + c.beta1_rest * (g - m); }
FS_INLINE vfloat next_v(vfloat v, vfloat g, const Coefficients& c) {
  return rounded(c.beta2 * v) + c.beta2_rest * g * g;
}
FS_INLINE vfloat next_weight(vfloat w, vfloat m, vfloat root, const Coefficients& c) {
  return rounded(w * c.keep) - c.step_size * (m / (root * c.root_correction + c.eps));
}

// For states that are rounded anyway the same in fewer multiplications, which are what Zen 4 has least room for: the
// correction of the root is in eps and in the step. With fp32 states split weights follow fp32 ones to the bit.
// An infinite v stays infinite, so that the weight stands still.
FS_INLINE vfloat next_v_narrow(vfloat v, vfloat g, const Coefficients& c) { return c.beta2 * v + c.beta2_rest * (g * g); }
FS_INLINE vfloat next_weight_narrow(vfloat w, vfloat m, vfloat root, const Coefficients& c) {
  const vfloat denominator = root + c.narrow_eps;
  return w * c.keep - c.narrow_step * (c.divides ? m / denominator : quotient(m, denominator));
}

FS_INLINE EvenOdd next_m(EvenOdd m, EvenOdd g, const Coefficients& c) {
  return {next_m(m.even, g.even, c), next_m(m.odd, g.odd, c)};
}
template <class States>
FS_INLINE EvenOdd next_v(EvenOdd v, EvenOdd g, const Coefficients& c) {
  if constexpr (__is_same(States, F32States)) return {next_v(v.even, g.even, c), next_v(v.odd, g.odd, c)};
  return {next_v_narrow(v.even, g.even, c), next_v_narrow(v.odd, g.odd, c)};
}
template <class States>
FS_INLINE EvenOdd next_weight(EvenOdd w, EvenOdd m, EvenOdd root, const Coefficients& c) {
  if constexpr (__is_same(States, F32States))
    return {next_weight(w.even, m.even, root.even, c), next_weight(w.odd, m.odd, root.odd, c)};
  return {next_weight_narrow(w.even, m.even, root.even, c), next_weight_narrow(w.odd, m.odd, root.odd, c)};
}

// ---- in registers, one loop for each combination of formats ------------------------------------------------------

template <class Weight, class States, class G, bool l2>
__attribute__((noinline)) void step_block(const Place& place, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Weight weight(place);
  States states(place);
  const G* grad = reinterpret_cast<const G*>(place.at.array[kGrad]);
  // A NaN of fp32 may have any lower half, and the narrow formats want it canonical; it can only come in here.
  constexpr bool kClean = (__is_same(G, float) || Weight::kAnyNan) && !(Weight::kAnyNan && States::kAnyNan);
  const auto gradient = [&](int64_t i) {
    const EvenOdd raw = load_even_odd(grad + i);
    EvenOdd g = {gradient_of(raw.even, c), gradient_of(raw.odd, c)};
    if constexpr (l2) {
      const EvenOdd w = weight.load(i);
      g = {add_decay(g.even, w.even, c), add_decay(g.odd, w.odd, c)};
    }
    return kClean ? EvenOdd{canonical(g.even), canonical(g.odd)} : g;
  };
  // Short loops over floats in L1 instead of one long one: the schedulers hold too few instructions to look past a
  // square root and a division that everything waits for.
  alignas(64) float new_m[kBlock], new_root[kBlock];
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd g = gradient(i), m = next_m(states.load_m(i), g, c), v = next_v<States>(states.load_v(i), g, c);
    states.store(i, m, v);
    stash(new_m + i, m);
    stash(new_root + i, sqrt(v));
  }
  if constexpr (States::kBlocks) states.choose_scales();  // some 80 cycles, one after the other, beside the next loop
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd m = stashed(new_m + i), root = stashed(new_root + i);
    weight.store(i, next_weight<States>(weight.load(i), m, root, c));
  }
  if constexpr (States::kBlocks) states.encode(new_m, new_root);
}

using BlockStep = void (*)(const Place&, const Coefficients&);

template <class Weight, class States, bool l2>
BlockStep pick_grad(const fs_param& p) {
  return p.grad_dtype == FS_F32 ? step_block<Weight, States, float, l2> : step_block<Weight, States, bf16, l2>;
}
template <class Weight, bool l2>
BlockStep pick_states(const fs_param& p) {
  if (p.state_format == FS_STATE_F32) return pick_grad<Weight, F32States, l2>(p);
  return p.state_format == FS_STATE_BF16 ? pick_grad<Weight, Bf16States, l2>(p) : pick_grad<Weight, ByteStates, l2>(p);
}
template <bool l2>
BlockStep pick(const fs_param& p) {
  if (p.weight_format == FS_WEIGHT_F32) return pick_states<F32Weight, l2>(p);
  return p.weight_format == FS_WEIGHT_SPLIT ? pick_states<SplitWeight, l2>(p) : pick_states<Bf16Weight, l2>(p);
}

// ---- through blocks of floats: AMSGrad, Lookahead -----------------------------------------------------------

// `roots`: v and v_max of the block are square roots.
template <bool amsgrad, bool roots>
__attribute__((noinline)) void update(const FloatBlock& whole, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const FloatBlock block = whole;  // a copy: stores through char might change `whole`
  for (int64_t i = 0; i < kBlock; i += kWidth) {
    const vfloat w = load(block.weight + i, All{}), old = load(block.v + i, All{});
    vfloat g = gradient_of(load(block.grad + i, All{}), c);
    if (c.l2 != 0) g = add_decay(g, w, c);
    const vfloat m = next_m(load(block.m + i, All{}), g, c), v = next_v(roots ? old * old : old, g, c);
    vfloat root = sqrt(v);
    store(block.m + i, m, All{});
    store(block.v + i, roots ? root : v, All{});
    if constexpr (amsgrad) {
      const vfloat largest = max_of(load(block.v_max + i, All{}), roots ? root : v);  // a NaN of the second wins
      store(block.v_max + i, largest, All{});
      root = roots ? largest : sqrt(largest);
    }
    store(block.weight + i, next_weight(w, m, root, c), All{});
  }
}

FS_INLINE void update(const FloatBlock& block, const Coefficients& c, bool amsgrad) {
  if (amsgrad)
    block.roots ? update<true, true>(block, c) : update<true, false>(block, c);
  else
    block.roots ? update<false, true>(block, c) : update<false, false>(block, c);
}

}  // namespace

FS_DEFINE(adam_step)(fs_param* params, int64_t num_params, const fs_adam_group* groups, float grad_scale,
                     float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  for_param_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t) {
    const fs_adam_group& group = groups[p.group];
    const Coefficients c = coefficients_of(group, p.step, grad_scale);
    const Keys keys(p, seed, begin);
    const bool plain = p.weight_format == FS_WEIGHT_F32 && p.state_format == FS_STATE_F32;
    if (plain || group.amsgrad || (p.slow && lookahead_alpha > 0)) {
      step_blocks(p, begin, end, keys, lookahead_alpha,
                  [&](const FloatBlock& block) { update(block, c, group.amsgrad); });
    } else {
      const BlockStep step = c.l2 == 0 ? pick<false>(p) : pick<true>(p);
      for_param_blocks(p, begin, end, [&](const Address& at, int64_t first) { step({at, keys, first}, c); });
    }
  });
}
