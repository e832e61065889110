// LAMB (You et al. 2019) over a list of tensors: Adam's update, scaled for each tensor to the size of its weights.
//
// The scale needs the norms of the whole tensor, so there are two passes over the list. The first updates the states
// and sums the squares of weights and updates by chunk, which makes them the same for any number of threads. The second
// computes the update again from the stored states: keeping it instead would cost as much memory traffic as it saves.
#include "optimizer.h"

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

template <bool roots>
__attribute__((noinline)) void update_states(const Tile& whole, const Coefficients& coefficients) {
  const Coefficients c = coefficients;
  const Tile tile = whole;  // a copy: stores might change `whole`
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vfloat g = rounded(load(tile.grad + i, All{}) * c.grad_scale);
    const vfloat m = load(tile.m + i, All{}), old = load(tile.v + i, All{});
    const vfloat v = rounded(c.beta2 * (roots ? old * old : old)) + c.beta2_rest * g * g;
    store(tile.m + i, m + c.beta1_rest * (g - m), All{});
    store(tile.v + i, roots ? sqrt(v) : v, All{});
  }
}

template <bool roots>
FS_INLINE vfloat update_at(const Tile& tile, int64_t i, vfloat w, const Coefficients& c) {
  const vfloat v = load(tile.v + i, All{}), root = roots ? v : sqrt(v);
  return (load(tile.m + i, All{}) * c.m_correction) / (root * c.root_correction + c.eps) + c.weight_decay * w;
}

struct Squares {
  SumOfSquares weight, update;
};

// Of the first n elements: with eps = 0 those that fill up a tile would be NaN.
template <bool roots>
__attribute__((noinline)) void add_squares(const Tile& tile, const Coefficients& coefficients, int64_t n,
                                           Squares& sums) {
  const Coefficients c = coefficients;
  Squares local = sums;
  for_vectors(n, [&](int64_t i, auto lanes) {
    const vfloat w = load(tile.weight + i, All{});
    local.weight.add(w);
    local.update.add(keep(update_at<roots>(tile, i, w, c), lanes));
  });
  sums = local;
}

template <bool roots>
__attribute__((noinline)) void apply(const Tile& whole, const Coefficients& coefficients, float step_size) {
  const Coefficients c = coefficients;
  const Tile tile = whole;
  for (int64_t i = 0; i < kTile; i += kWidth) {
    const vfloat w = load(tile.weight + i, All{});
    store(tile.weight + i, w - step_size * update_at<roots>(tile, i, w, c), All{});
  }
}

struct ChunkSquares {
  double weight, update;
};

// One chunk of the first pass.
ChunkSquares advance(const fs_param& p, int64_t begin, int64_t end, const Coefficients& c, const Keys& keys) {
  Buffer buffer;
  Squares sums;
  for_tiles(p, begin, end, [&](const Address& at, int64_t first) {
    const Tile tile = load_tile(p, at, buffer);
    tile.roots ? update_states<true>(tile, c) : update_states<false>(tile, c);
    store_states(p, at, tile, buffer, keys, first);
    Tile stored = tile;
    stored.m = load_state<decode_8bit_m>(p.state_format, at.array[kM], at.m_scale, buffer.m);
    stored.v = load_state<decode_8bit_root>(p.state_format, at.array[kV], at.v_scale, buffer.v);
    const int64_t n = min_of(kTile, end - first);
    tile.roots ? add_squares<true>(stored, c, n, sums) : add_squares<false>(stored, c, n, sums);
  });
  return {sums.weight.total(), sums.update.total()};
}

}  // namespace

FS_DEFINE(lamb_step)(fs_param* params, int64_t num_params, const fs_lamb_group* groups, float grad_scale,
                     float lookahead_alpha, uint64_t seed, int32_t skip) {
  if (skip) return;
  int64_t chunks = 0;
  for (int64_t k = 0; k < num_params; ++k) chunks += num_chunks(params[k]);
  const int64_t bytes = chunks * static_cast<int64_t>(sizeof(ChunkSquares)) + num_params * 4;
  ChunkSquares* squares = static_cast<ChunkSquares*>(fs_internal_scratch(bytes));
  float* step_sizes = reinterpret_cast<float*>(squares + chunks);

  for_chunks(params, num_params, [=](const fs_param& p, int64_t begin, int64_t end, int64_t chunk) {
    const Coefficients c = coefficients_of(groups[p.group], p.step, grad_scale);
    squares[chunk] = advance(p, begin, end, c, Keys(p, seed, begin));
  });

  for (int64_t k = 0, chunk = 0; k < num_params; ++k) {
    double weight = 0, update = 0;
    for (const int64_t last = chunk + num_chunks(params[k]); chunk < last; ++chunk) {
      weight += squares[chunk].weight;
      update += squares[chunk].update;
    }
    const double ratio = weight == 0 || update == 0 ? 1 : ::sqrt(weight / update);
    step_sizes[k] = static_cast<float>(groups[params[k].group].lr * ratio);
  }

  for_chunks(params, num_params, [=](const fs_param& with_grad, int64_t begin, int64_t end, int64_t) {
    const Coefficients c = coefficients_of(groups[with_grad.group], with_grad.step, grad_scale);
    const float step_size = step_sizes[&with_grad - params];
    fs_param p = with_grad;
    p.grad = nullptr;  // not needed any more: do not decode it
    p.grad_dtype = FS_F32;
    const Keys keys(p, seed, begin);
    Buffer buffer;
    for_tiles(p, begin, end, [&](const Address& at, int64_t first) {
      const Tile tile = load_tile(p, at, buffer);
      tile.roots ? apply<true>(tile, c, step_size) : apply<false>(tile, c, step_size);
      store_weight(p, at, tile, buffer, keys, first, lookahead_alpha);
    });
  });
}
