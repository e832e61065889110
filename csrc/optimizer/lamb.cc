// LAMB (You et al. 2019) over a list of tensors: Adam's update, scaled for each tensor to the size of its weights.
//
// The scale needs the norms of the whole tensor, so there are two passes over the list. The first updates the states
// and sums the squares of weights and updates by chunk, which makes them the same for any number of threads. The second
// computes the update again from the stored states: keeping it instead would cost as much memory traffic as it saves.
#include "optimizer/packed_block.h"

namespace {

struct Coefficients {
  float grad_scale, beta1_rest, beta2, beta2_rest, m_correction, root_correction, eps, weight_decay;
};

Coefficients coefficients_of(const fs_lamb_group& group, int64_t step, float grad_scale) {
  const double t = static_cast<double>(step);
  return {
      .grad_scale = group.maximize ? -grad_scale : grad_scale,
      .beta1_rest = static_cast<float>(1 - group.beta1),
      .beta2 = static_cast<float>(group.beta2),
      .beta2_rest = static_cast<float>(1 - group.beta2),
      .m_correction = static_cast<float>(1 / (1 - pow(group.beta1, t))),
      .root_correction = static_cast<float>(1 / ::sqrt(1 - pow(group.beta2, t))),
      .eps = static_cast<float>(group.eps),
      .weight_decay = static_cast<float>(group.weight_decay),
  };
}

// ---- the formula -------------------------------------------------------------------------------------------------

FS_INLINE vfloat next_m(vfloat m, vfloat g, const Coefficients& c) { return m + c.beta1_rest * (g - m); }
FS_INLINE vfloat next_v(vfloat v, vfloat g, const Coefficients& c) {
  return rounded(c.beta2 * v) + c.beta2_rest * g * g;
}
FS_INLINE vfloat update_of(vfloat w, vfloat m, vfloat root, const Coefficients& c) {
  return (m * c.m_correction) / (root * c.root_correction + c.eps) + c.weight_decay * w;
}
FS_INLINE EvenOdd update_of(EvenOdd w, EvenOdd m, EvenOdd root, const Coefficients& c) {
  return {update_of(w.even, m.even, root.even, c), update_of(w.odd, m.odd, root.odd, c)};
}

// fp32 throughout: where nothing is summed any order will do, and that of memory needs no shuffles.
struct PlainWeight : F32Weight {
  using F32Weight::F32Weight;
  FS_INLINE EvenOdd load(int64_t i) const { return stashed(p + i); }
  FS_INLINE void store(int64_t i, EvenOdd w) const { stash(p + i, w); }
};
struct PlainStates : F32States {
  using F32States::F32States;
  FS_INLINE EvenOdd load_m(int64_t i) const { return stashed(m + i); }
  FS_INLINE EvenOdd load_v(int64_t i) const { return stashed(v + i); }
  FS_INLINE EvenOdd load_root(int64_t i) const { return sqrt(load_v(i)); }
  FS_INLINE void store(int64_t i, EvenOdd new_m, EvenOdd new_v) const {
    stash(m + i, new_m);
    stash(v + i, new_v);
  }
};
// Of the gradient or the slow weights, in the order of States.
template <class States, class T>
FS_INLINE EvenOdd load_beside(const T* p) {
  if constexpr (__is_same(States, PlainStates))
    return stashed(p);
  else
    return load_even_odd(p);
}

// ---- the first pass ----------------------------------------------------------------------------------------------

template <class States, class G>
__attribute__((noinline)) void update_states(const Place& place, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  States states(place);
  const G* grad = reinterpret_cast<const G*>(place.at.array[kGrad]);
  // A NaN of fp32 may have any lower half, and the narrow formats want it canonical; it can only come in here.
  constexpr bool kClean = __is_same(G, float) && !States::kAnyNan;
  alignas(64) float new_m[kBlock], new_root[kBlock];  // for States::kBlocks, until the scales are known
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd raw = load_beside<States>(grad + i), old_m = states.load_m(i), old_v = states.load_v(i);
    EvenOdd g = {rounded(raw.even * c.grad_scale), rounded(raw.odd * c.grad_scale)};
    if constexpr (kClean) g = {canonical(g.even), canonical(g.odd)};
    const EvenOdd m = {next_m(old_m.even, g.even, c), next_m(old_m.odd, g.odd, c)};
    const EvenOdd v = {next_v(old_v.even, g.even, c), next_v(old_v.odd, g.odd, c)};
    states.store(i, m, v);
    if constexpr (States::kBlocks) {
      stash(new_m + i, m);
      stash(new_root + i, sqrt(v));
    }
  }
  if constexpr (States::kBlocks) {
    states.choose_scales();
    states.encode(new_m, new_root);
  }
}

struct Squares {
  SumOfSquares weight, update;
};

// Of the first n elements: with eps = 0 those that fill up a block would be NaN.
template <class Weight, class States>
__attribute__((noinline)) void add_squares(const Place& place, const Coefficients& coefficients, int64_t n,
                                           Squares& sums) {
  const Coefficients c = coefficients;
  const Weight weight(place);
  const States states(place);
  Squares local = sums;
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd w = weight.load(i);
    EvenOdd u = update_of(w, states.load_m(i), states.load_root(i), c);
    if (n < kBlock) {
      const vint left = static_cast<int32_t>(n - i) - 2 * lane_numbers();
      u = {left > 0 ? u.even : vfloat{}, left > 1 ? u.odd : vfloat{}};
    }
    local.weight.add(w.even);
    local.weight.add(w.odd);
    local.update.add(u.even);
    local.update.add(u.odd);
  }
  sums = local;
}

// ---- the second pass ---------------------------------------------------------------------------------------------

struct Step {
  float size, lookahead_alpha;
};

template <class Weight, class States>
__attribute__((noinline)) void apply(const Place& place, const Coefficients& coefficients, const Step& whole_step) {
  const Coefficients c = coefficients;
  const Step step = whole_step;
  const Weight weight(place);
  const States states(place);
  float* slow = step.lookahead_alpha > 0 ? reinterpret_cast<float*>(place.at.array[kSlow]) : nullptr;
  for (int64_t i = 0; i < kBlock; i += 2 * kWidth) {
    const EvenOdd w = weight.load(i), u = update_of(w, states.load_m(i), states.load_root(i), c);
    EvenOdd next = {w.even - step.size * u.even, w.odd - step.size * u.odd};
    if (slow) {
      const EvenOdd before = load_beside<States>(slow + i);
      next = {before.even + step.lookahead_alpha * (next.even - before.even),
              before.odd + step.lookahead_alpha * (next.odd - before.odd)};
      __is_same(States, PlainStates) ? stash(slow + i, next) : store_even_odd(slow + i, next);
    }
    if constexpr (!Weight::kAnyNan) next = {canonical(next.even), canonical(next.odd)};
    weight.store(i, next);
  }
}

// ---- a loop for each combination of formats ------------------------------------------------------------------------

struct Loops {
  void (*update_states)(const Place&, const Coefficients&);
  void (*add_squares)(const Place&, const Coefficients&, int64_t, Squares&);
  void (*apply)(const Place&, const Coefficients&, const Step&);
};

template <class Weight, class States>
Loops loops_with(const fs_param& p) {
  return {p.grad_dtype == FS_F32 ? update_states<States, float> : update_states<States, bf16>,
          add_squares<Weight, States>, apply<Weight, States>};
}
template <class Weight>
Loops loops_with(const fs_param& p) {
  if (p.state_format == FS_STATE_F32) return loops_with<Weight, F32States>(p);
  return p.state_format == FS_STATE_BF16 ? loops_with<Weight, Bf16States>(p) : loops_with<Weight, ByteStates>(p);
}
Loops loops_for(const fs_param& p) {
  if (p.weight_format == FS_WEIGHT_F32 && p.state_format == FS_STATE_F32)
    return {p.grad_dtype == FS_F32 ? update_states<PlainStates, float> : update_states<F32States, bf16>,
            add_squares<F32Weight, F32States>, apply<PlainWeight, PlainStates>};
  if (p.weight_format == FS_WEIGHT_F32) return loops_with<F32Weight>(p);
  return p.weight_format == FS_WEIGHT_SPLIT ? loops_with<SplitWeight>(p) : loops_with<Bf16Weight>(p);
}

struct ChunkSquares {
  double weight, update;
};

}  // namespace

FS_DEFINE(lamb_step)(fs_param* params, int64_t num_params, const fs_lamb_group* groups, float grad_scale,
                     float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  int64_t chunks = 0;
  for (int64_t k = 0; k < num_params; ++k) chunks += num_param_chunks(params[k]);
  const int64_t bytes = chunks * static_cast<int64_t>(sizeof(ChunkSquares)) + num_params * 4;
  ChunkSquares* squares = static_cast<ChunkSquares*>(fs_internal_scratch(bytes));
  float* step_sizes = reinterpret_cast<float*>(squares + chunks);

  for_param_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t chunk) {
    const Coefficients c = coefficients_of(groups[p.group], p.step, grad_scale);
    const Keys keys(p, seed, begin);
    const Loops loops = loops_for(p);
    Squares sums;
    for_param_blocks(p, begin, end, [&](const Address& at, int64_t first) {
      loops.update_states({at, keys, first}, c);
      loops.add_squares({at, keys, first}, c, min_of(kBlock, end - first), sums);
    });
    squares[chunk] = {sums.weight.total(), sums.update.total()};
  });

  for (int64_t k = 0, chunk = 0; k < num_params; ++k) {
    double weight = 0, update = 0;
    for (const int64_t last = chunk + num_param_chunks(params[k]); chunk < last; ++chunk) {
      weight += squares[chunk].weight;
      update += squares[chunk].update;
    }
    const double ratio = weight == 0 || update == 0 ? 1 : ::sqrt(weight / update);
    step_sizes[k] = static_cast<float>(groups[params[k].group].lr * ratio);
  }

  for_param_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t) {
    const Coefficients c = coefficients_of(groups[p.group], p.step, grad_scale);
    const Keys keys(p, seed, begin);
    const Step step = {step_sizes[&p - params], lookahead_alpha};
    const Loops loops = loops_for(p);
    for_param_blocks(p, begin, end, [&](const Address& at, int64_t first) { loops.apply({at, keys, first}, c, step); });
  });
}
