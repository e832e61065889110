// SGD with momentum over a list of tensors, in the order of operations of torch.optim. Narrow states stay in
// registers; fp32 states and the rare steps go through the tiles of step.h, which is no slower for them.
#include "optimizer/packed_tile.h"

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
  RandomKey key;
  int64_t first;
  explicit Bf16Momentum(const Place& place)
      : m(reinterpret_cast<bf16*>(place.at.array[kM])), key(place.keys.state), first(place.first) {}
  FS_INLINE Pair load(int64_t i) const { return load_pair(m + i); }
  FS_INLINE void store(int64_t i, Pair new_m) const {
    store_rounded(m + i, new_m, noise_of_m<16>(random_pair(key, first + i)));
  }
};
struct ByteMomentum {
  static constexpr bool kBlocks = true;
  uint8_t* m;
  float *scale, old_scale;
  RandomKey key;
  int64_t first;
  vuint seen = {};

  explicit ByteMomentum(const Place& place)
      : m(reinterpret_cast<uint8_t*>(place.at.array[kM])), scale(place.at.m_scale), old_scale(*scale),
        key(place.keys.state), first(place.first) {}
  FS_INLINE Pair load(int64_t i) const { return load_m_codes(m + i, old_scale); }
  FS_INLINE void store(int64_t, Pair new_m) {
    seen = larger(seen, larger(bits_of(new_m.even) & 0x7fffffffu, bits_of(new_m.odd) & 0x7fffffffu));
  }
  FS_INLINE void encode(const float* tile) const {
    const Scale block = scale_for(largest_lane(seen));
    *scale = block.value;
    for (int64_t i = 0; i < kTile; i += 2 * kWidth)
      store_m_codes(m + i, kept_pair(tile + i), block, random_pair(key, first + i));
    if (block.inverse == 0) memset(m, 0, kTile);
  }
};

template <class Weight, class Momentum, class G>
__attribute__((noinline)) void step_tile(const Place& place, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Weight weight(place);
  Momentum momentum(place);
  const G* grad = reinterpret_cast<const G*>(place.at.array[kGrad]);
  // A NaN of fp32 may have any lower half, and the narrow formats want it canonical; it can only come in here.
  constexpr bool kClean = __is_same(G, float) || Weight::kAnyNan;
  alignas(64) float m_tile[Momentum::kBlocks ? kTile : 1];  // until the scale is known
  for (int64_t i = 0; i < kTile; i += 2 * kWidth) {
    const Pair w = weight.load(i), raw = load_pair(grad + i);
    Pair g = {gradient_of(raw.even, w.even, c), gradient_of(raw.odd, w.odd, c)};
    if constexpr (kClean) g = {canonical(g.even), canonical(g.odd)};
    const Pair old = momentum.load(i), m = {next_m(old.even, g.even, c), next_m(old.odd, g.odd, c)};
    momentum.store(i, m);
    if constexpr (Momentum::kBlocks) keep_pair(m_tile + i, m);
    weight.store(i, {next_weight(w.even, m.even, g.even, c), next_weight(w.odd, m.odd, g.odd, c)});
  }
  if constexpr (Momentum::kBlocks) momentum.encode(m_tile);
}

using TileStep = void (*)(const Place&, const Coefficients&);

template <class Weight, class Momentum>
TileStep pick_grad(const fs_param& p) {
  return p.grad_dtype == FS_F32 ? step_tile<Weight, Momentum, float> : step_tile<Weight, Momentum, bf16>;
}
template <class Weight>
TileStep pick_momentum(const fs_param& p) {
  return p.state_format == FS_STATE_BF16 ? pick_grad<Weight, Bf16Momentum>(p) : pick_grad<Weight, ByteMomentum>(p);
}
TileStep pick(const fs_param& p) {
  if (p.weight_format == FS_WEIGHT_F32) return pick_momentum<F32Weight>(p);
  return p.weight_format == FS_WEIGHT_SPLIT ? pick_momentum<SplitWeight>(p) : pick_momentum<Bf16Weight>(p);
}

// ---- through tiles of floats: fp32 states, no momentum, Lookahead, the first step -----------------------------------

// `first`: torch starts the momentum with the whole first gradient.
template <bool momentum, bool first>
__attribute__((noinline)) void update(const Tile& whole, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Tile tile = whole;  // a copy: stores might change `whole`
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vfloat w = load(tile.weight + i, All{}), g = gradient_of(load(tile.grad + i, All{}), w, c);
    if constexpr (momentum) {
      const vfloat m = first ? g : next_m(load(tile.m + i, All{}), g, c);
      store(tile.m + i, m, All{});
      store(tile.weight + i, next_weight(w, m, g, c), All{});
    } else {
      store(tile.weight + i, w - c.lr * g, All{});
    }
  }
}

}  // namespace

FS_DEFINE(sgd_step)(fs_param* params, int64_t num_params, const fs_sgd_group* groups, float grad_scale,
                    float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  for_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t) {
    const fs_sgd_group& group = groups[p.group];
    const Coefficients c = coefficients_of(group, grad_scale);
    const Keys keys(p, seed, begin);
    const bool momentum = group.momentum != 0, first = p.step == 1;
    if (p.state_format == FS_STATE_F32 || !momentum || first || (p.slow && lookahead_alpha > 0)) {
      const auto step = !momentum ? update<false, false> : first ? update<true, true> : update<true, false>;
      step_tiles(p, begin, end, keys, lookahead_alpha, [&](const Tile& tile) { step(tile, c); });
    } else {
      const TileStep step = pick(p);
      for_tiles(p, begin, end, [&](const Address& at, int64_t first_of_tile) { step({at, keys, first_of_tile}, c); });
    }
  });
}
