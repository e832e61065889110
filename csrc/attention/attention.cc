// Attention without the matrix of scores: blocks of queries against blocks of keys, forward with a running softmax,
// backward with the probabilities made anew from the logarithm of their sums.
#include "attention/attention.h"
#include "attention/tile.h"
#include "simd/functions.h"

namespace {

// Multiplications that are worth a thread: they take 6 us on Zen 4, as 16384 elements of other kernels do; see
// benchmarks/thresholds.md.
constexpr int64_t kAttentionGrain = 1 << 18;

// ---- forward -----------------------------------------------------------------------------------------------
// Scores are kept by keys, scores[key][query]: q is transposed once for all keys, k and v stay as they are, and
// maxima and sums over keys are those of vectors of queries, without a reduction across lanes.

struct ForwardTiles {
  int64_t out_stride;
  float *q, *k, *v, *scores, *mask, *mask_by_keys, *out, *max, *sum, *rescale;

  ForwardTiles(const Attention& a, Arena& arena) : out_stride(tile_stride(padded(a.value_dim))) {
    q = arena.take(a.dim * kBlockStride);
    k = arena.take(kKeys * tile_stride(padded(a.dim)));
    v = arena.take(kKeys * out_stride);
    scores = arena.take(kKeys * kBlockStride);
    mask = arena.take(a.mask.data ? kQueries * kBlockStride : 0);
    mask_by_keys = arena.take(a.mask.data ? kKeys * kBlockStride : 0);
    out = arena.take(kQueries * out_stride);
    max = arena.take(kQueries);
    sum = arena.take(kQueries);
    rescale = arena.take(kQueries);
  }
};

// scores += mask, the mask having one row for all queries or one for each.
inline void add_mask(const Attention& a, const Block& block, const ForwardTiles& t) {
  const int64_t cols = padded(block.num_queries);
  const bool shared = a.mask.rows(block) == 1;
  if (!shared)
    load_transposed(t.mask, kBlockStride, block.num_queries, block.num_keys, 1, t.mask_by_keys, kBlockStride);
  for (int64_t key = 0; key < block.num_keys; ++key) {
    float* row = t.scores + key * kBlockStride;
    const float* mask = t.mask_by_keys + key * kBlockStride;
    for (int64_t c = 0; c < cols; c += kWidth)
      store(row + c, load(row + c, All{}) + (shared ? broadcast(t.mask[key]) : load(mask + c, All{})), All{});
  }
}

// -infinity for the keys behind each query of the kTileCols from `col` on, whose last one sees `visible` keys.
FS_INLINE void hide_future(const Block& block, float* scores, int64_t col, int64_t visible) {
  for (int64_t key = max_of(0, block.keys_until(col)); key < visible; ++key)
    for (int64_t c = col; c < col + kTileCols; c += kWidth) {
      const vint query = lane_numbers() + static_cast<int32_t>(c);
      const vint seen = query >= static_cast<int32_t>(block.first_key + key - block.first_query);
      float* p = scores + key * kBlockStride + c;
      store(p, seen ? load(p, All{}) : vfloat{} - __builtin_inff(), All{});
    }
}

// Scores of kTileCols queries to probabilities, up to the sum that is still to come; updates maximum and sum.
FS_INLINE void exponentials(const ForwardTiles& t, int64_t col, int64_t num_keys) {
  vfloat top[kTileVectors], shift[kTileVectors], total[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) top[v] = load(t.max + col + v * kWidth, All{});
  for (int64_t key = 0; key < num_keys; ++key)
    for (int v = 0; v < kTileVectors; ++v)
      top[v] = max_of(load(t.scores + key * kBlockStride + col + v * kWidth, All{}), top[v]);
  for (int v = 0; v < kTileVectors; ++v) {
    const int64_t c = col + v * kWidth;
    shift[v] = top[v] == -__builtin_inff() ? vfloat{} : top[v];  // nothing seen yet: -inf - -inf would be NaN
    const vfloat rescale = exp_nonpositive(load(t.max + c, All{}) - shift[v]);
    store(t.rescale + c, rescale, All{});
    store(t.max + c, top[v], All{});
    total[v] = load(t.sum + c, All{}) * rescale;
  }
  for (int64_t key = 0; key < num_keys; ++key)
    for (int v = 0; v < kTileVectors; ++v) {
      float* p = t.scores + key * kBlockStride + col + v * kWidth;
      const vfloat e = exp_nonpositive(load(p, All{}) - shift[v]);
      store(p, e, All{});
      total[v] += e;
    }
  for (int v = 0; v < kTileVectors; ++v) store(t.sum + col + v * kWidth, total[v], All{});
}

inline void drop_by_keys(const Attention& a, const Block& block, int64_t head, float* scores) {
  const RandomKey random = a.dropout.key(head);
  const int64_t cols = padded(block.num_queries);
  const vuint step = (vuint)lane_numbers() * static_cast<uint32_t>(a.keys);
  for (int64_t key = 0; key < block.num_keys; ++key)
    for (int64_t c = 0; c < cols; c += kWidth) {
      float* p = scores + key * kBlockStride + c;
      const vuint index = step + static_cast<uint32_t>((block.first_query + c) * a.keys + block.first_key + key);
      store(p, load(p, All{}) * a.dropout.factors(random, index), All{});
    }
}

// out = rescale * out + probabilities v, for one block of keys.
template <class T>
FS_INLINE void forward_block(const Attention& a, const Block& block, int64_t batch, int64_t head, const T* k,
                             const T* v, const ForwardTiles& t) {
  const Seen seen = load_mask(a.mask, batch, head, block, t.mask, kBlockStride);
  if (seen == Seen::kNone) return;
  const bool cut = a.cuts(block);
  const int64_t cols = padded(block.num_queries), dim = a.dim;
  const Right keys = rows_of(k, a.k.row, block.num_keys, a.dim, t.k);
  multiply(block.num_keys, cols, Left<true>{keys.at, keys.stride}, Right{t.q, kBlockStride},
           Target{t.scores, kBlockStride, false}, [&](int64_t key, int64_t query) {
             return Span{0, cut && block.keys_until(query + kTileCols - 1) <= key ? 0 : dim};
           });
  if (seen == Seen::kSome) add_mask(a, block, t);
  for (int64_t col = 0; col < cols; col += kTileCols) {
    const int64_t visible = cut ? max_of(0, block.keys_until(col + kTileCols - 1)) : block.num_keys;
    if (cut) hide_future(block, t.scores, col, visible);
    exponentials(t, col, visible);
    for (int64_t key = visible; key < block.num_keys; ++key)
      memset(t.scores + key * kBlockStride + col, 0, sizeof(float) * kTileCols);
  }
  if (a.dropout.on) drop_by_keys(a, block, batch * a.heads + head, t.scores);
  const int64_t out_cols = padded(a.value_dim);
  for (int64_t query = 0; query < block.num_queries; ++query) {
    const float factor = t.rescale[query];
    if (factor == 1) continue;
    float* out = t.out + query * t.out_stride;
    for (int64_t c = 0; c < out_cols; c += kWidth) store(out + c, load(out + c, All{}) * factor, All{});
  }
  multiply(block.num_queries, out_cols, Left<false>{t.scores, kBlockStride},
           rows_of(v, a.v.row, block.num_keys, a.value_dim, t.v), Target{t.out, t.out_stride, true},
           [&](int64_t query, int64_t) {
             return Span{0, cut ? block.keys_until(query + kTileRows - 1) : block.num_keys};
           });
}

template <class T>
FS_INLINE void forward_queries(const Attention& a, int64_t batch, int64_t head, int64_t first_query, const void* q,
                               const void* k, const void* v, void* out, float* lse, const ForwardTiles& t) {
  const int64_t count = min_of(kQueries, a.queries - first_query), kv_head = head / a.group();
  load_transposed(at<T>(q, a.q, batch, head, first_query), a.q.row, count, a.dim, a.scale, t.q, kBlockStride);
  memset(t.out, 0, sizeof(float) * static_cast<size_t>(kQueries * t.out_stride));
  for (int64_t i = 0; i < kQueries; ++i) {
    t.max[i] = -__builtin_inff();
    t.sum[i] = 0;
  }
  const int64_t end = a.causal ? min_of(a.keys, first_query + count) : a.keys;
  for (int64_t key = 0; key < end; key += kKeys)
    forward_block(a, a.block(first_query, key), batch, head, at<T>(k, a.k, batch, kv_head, key),
                  at<T>(v, a.v, batch, kv_head, key), t);
  for (int64_t query = 0; query < count; ++query) {
    const float* from = t.out + query * t.out_stride;
    T* to = at<T>(out, a.out, batch, head, first_query + query);
    const float factor = t.sum[query] == 0 ? 0 : 1 / t.sum[query];  // a query that sees no key gives zeros
    for_vectors(a.value_dim, [=](int64_t i, auto lanes) { store(to + i, load(from + i, lanes) * factor, lanes); });
  }
  if (!lse) return;
  lse += (batch * a.heads + head) * a.queries + first_query;
  for_vectors(count, [&](int64_t i, auto lanes) {
    const vfloat sum = load(t.sum + i, All{});
    const vfloat value = load(t.max + i, All{}) + log(sum);
    store(lse + i, sum == 0.0f ? broadcast(__builtin_inff()) : value, lanes);  // so that backward finds zeros too
  });
}

}  // namespace

FS_DEFINE(attention_forward)(const void* q, const void* k, const void* v, const void* mask, void* out, float* lse,
                             const int64_t* sizes, const int64_t* strides, float scale, int32_t causal, uint64_t seed,
                             int64_t threshold, float kept, int32_t dtype, int32_t mask_dtype) {
  const Attention a(sizes, strides, mask, mask_dtype, Dropout(seed, threshold, kept), scale, causal != 0);
  const int64_t blocks = a.query_blocks(), items = a.batch * a.heads * blocks;
  const int64_t grain = grain_rows(kAttentionGrain, kQueries * a.keys * (a.dim + a.value_dim));
  Arena sizing{nullptr};
  ForwardTiles(a, sizing);
  float* scratch = static_cast<float*>(
      fs_internal_scratch(max_of(1, fs_internal_num_threads(items, grain)) * sizing.used * int64_t{sizeof(float)}));
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    deal(items, grain, [&](int64_t item, int thread) {
      Arena arena{scratch + thread * sizing.used};
      const int64_t head = item / blocks, first_query = item % blocks * kQueries;
      forward_queries<T>(a, head / a.heads, head % a.heads, first_query, q, k, v, out, lse, ForwardTiles(a, arena));
    });
  });
}

// ---- backward ----------------------------------------------------------------------------------------------
// Here keys are the outer loop and scores are kept by queries, scores[query][key]: k and v are transposed once for all
// queries, and q and dout stay as they are.
//     P = e^(scale q k^T - lse)   dV = P^T dout   dP = dout v^T   dS = P (dP - delta)   dK = dS^T q   dQ = dS k

namespace {

struct BackwardTiles {
  int64_t dk_stride, dv_stride;
  float *q, *dout, *k, *k_by_dim, *v_by_dim, *mask, *p, *ds, *dk, *dv;

  BackwardTiles(const Attention& a, Arena& arena)
      : dk_stride(tile_stride(padded(a.dim))), dv_stride(tile_stride(padded(a.value_dim))) {
    q = arena.take(kQueries * dk_stride);
    dout = arena.take(kQueries * dv_stride);
    k = arena.take(kKeys * dk_stride);
    k_by_dim = arena.take(a.dim * kBlockStride);
    v_by_dim = arena.take(a.value_dim * kBlockStride);
    mask = arena.take(a.mask.data ? kQueries * kBlockStride : 0);
    p = arena.take(kQueries * kBlockStride);
    ds = arena.take(kQueries * kBlockStride);
    dk = arena.take(kKeys * dk_stride);
    dv = arena.take(kKeys * dv_stride);
  }
};

struct Gradients {
  Strides dout_strides, dq_strides, dk_strides, dv_strides;
  const void* dout;
  void *dq, *dk, *dv;  // each or NULL
  const float *lse, *delta;
};

// One row of scores and dP to P and dS. `index`: of its first element among the random bits.
template <bool kMasked, bool kDrops>
FS_INLINE void probabilities(const Attention& a, float* p, float* ds, const float* mask, int64_t visible,
                             int64_t num_keys, float lse, float delta, RandomKey random, int64_t index) {
  const int64_t end = padded(num_keys);
  const auto step = [&](int64_t i, vint seen) {
    vfloat x = load(p + i, All{}) * a.scale - lse;
    if constexpr (kMasked) x += load(mask + i, All{});
    const vfloat e = seen ? exp_nonpositive(x) : vfloat{};
    vfloat dp = load(ds + i, All{}), dropped = e;
    if constexpr (kDrops) {
      const vfloat factor = a.dropout.factors(random, indices_from(index + i));
      dp *= factor;
      dropped *= factor;
    }
    store(p + i, dropped, All{});
    store(ds + i, seen ? e * (dp - delta) : vfloat{}, All{});
  };
  int64_t i = 0;
  for (; i + kWidth <= visible; i += kWidth) step(i, vint{} == vint{});
  if (i < visible) {
    step(i, lane_numbers() < static_cast<int32_t>(visible - i));
    i += kWidth;
  }
  for (; i < end; i += kWidth) {
    store(p + i, vfloat{}, All{});
    store(ds + i, vfloat{}, All{});
  }
}

// Adds what one block of queries gives to dk and dv, of the tiles, and to dq.
template <class T>
FS_INLINE void backward_block(const Attention& a, const Gradients& g, const Block& block, int64_t batch, int64_t head,
                              const void* all_q, Right keys, float* dq, const BackwardTiles& t) {
  const Seen seen = load_mask(a.mask, batch, head, block, t.mask, kBlockStride);
  if (seen == Seen::kNone) return;
  const bool cut = a.cuts(block);
  const int64_t cols = padded(block.num_keys), queries = block.num_queries, dim = a.dim, value_dim = a.value_dim;
  const Right q = rows_of(at<T>(all_q, a.q, batch, head, block.first_query), a.q.row, queries, dim, t.q);
  const Right dout = rows_of(at<T>(g.dout, g.dout_strides, batch, head, block.first_query), g.dout_strides.row,
                             queries, value_dim, t.dout);
  const auto hidden = [&](int64_t query, int64_t key) { return cut && block.keys_until(query + kTileRows - 1) <= key; };
  multiply(queries, cols, Left<true>{q.at, q.stride}, Right{t.k_by_dim, kBlockStride}, Target{t.p, kBlockStride, false},
           [&](int64_t query, int64_t key) { return Span{0, hidden(query, key) ? 0 : dim}; });
  multiply(queries, cols, Left<true>{dout.at, dout.stride}, Right{t.v_by_dim, kBlockStride},
           Target{t.ds, kBlockStride, false},
           [&](int64_t query, int64_t key) { return Span{0, hidden(query, key) ? 0 : value_dim}; });
  const int64_t head_of_all = batch * a.heads + head, first_row = head_of_all * a.queries + block.first_query;
  const RandomKey random = a.dropout.on ? a.dropout.key(head_of_all) : RandomKey{};
  const int64_t mask_stride = a.mask.rows(block) == 1 ? 0 : kBlockStride;
  with_flag(seen == Seen::kSome, [&](auto masked) {
    with_flag(a.dropout.on, [&](auto drops) {
      for (int64_t query = 0; query < queries; ++query)
        probabilities<masked.value, drops.value>(
            a, t.p + query * kBlockStride, t.ds + query * kBlockStride, t.mask + query * mask_stride,
            cut ? block.keys_until(query) : block.num_keys, block.num_keys, g.lse[first_row + query],
            g.delta[first_row + query], random, (block.first_query + query) * a.keys + block.first_key);
    });
  });
  const auto from_key = [&](int64_t key, int64_t) {
    return Span{cut ? max_of(0, block.first_key + key - block.first_query) : 0, queries};
  };
  if (g.dv)
    multiply(block.num_keys, padded(value_dim), Left<false>{t.p, kBlockStride}, dout, Target{t.dv, t.dv_stride, true},
             from_key);
  if (g.dk)
    multiply(block.num_keys, padded(dim), Left<false>{t.ds, kBlockStride}, q, Target{t.dk, t.dk_stride, true},
             from_key);
  if (g.dq)
    multiply(queries, padded(dim), Left<true>{t.ds, kBlockStride}, keys, Target{dq, padded(dim), true},
             [&](int64_t query, int64_t) {
               return Span{0, cut ? block.keys_until(query + kTileRows - 1) : block.num_keys};
             });
}

template <class T>
FS_INLINE void store_rows(const float* from, int64_t stride, T* to, int64_t to_stride, int64_t rows, int64_t cols,
                          float factor) {
  for (int64_t r = 0; r < rows; ++r)
    for_vectors(cols, [=](int64_t i, auto lanes) {
      store(to + r * to_stride + i, load(from + r * stride + i, lanes) * factor, lanes);
    });
}

// dk and dv of one block of keys; adds to dq, [query heads of the group, queries, padded(dim)].
template <class T>
FS_INLINE void backward_keys(const Attention& a, const Gradients& g, int64_t batch, int64_t kv_head, int64_t first_key,
                             const void* q, const void* k, const void* v, float* dq, const BackwardTiles& t) {
  const int64_t count = min_of(kKeys, a.keys - first_key);
  const T* k_rows = at<T>(k, a.k, batch, kv_head, first_key);
  const Right keys = rows_of(k_rows, a.k.row, count, a.dim, t.k);
  load_transposed(k_rows, a.k.row, count, a.dim, 1, t.k_by_dim, kBlockStride);
  load_transposed(at<T>(v, a.v, batch, kv_head, first_key), a.v.row, count, a.value_dim, 1, t.v_by_dim, kBlockStride);
  memset(t.dk, 0, sizeof(float) * static_cast<size_t>(kKeys * t.dk_stride));
  memset(t.dv, 0, sizeof(float) * static_cast<size_t>(kKeys * t.dv_stride));
  for (int64_t i = 0; i < a.group(); ++i)
    for (int64_t query = a.causal ? first_key / kQueries * kQueries : 0; query < a.queries; query += kQueries)
      backward_block<T>(a, g, a.block(query, first_key), batch, kv_head * a.group() + i, q, keys,
                        dq + (i * a.queries + query) * padded(a.dim), t);
  if (g.dk)
    store_rows(t.dk, t.dk_stride, at<T>(g.dk, g.dk_strides, batch, kv_head, first_key), g.dk_strides.row, count, a.dim,
               a.scale);
  if (g.dv)
    store_rows(t.dv, t.dv_stride, at<T>(g.dv, g.dv_strides, batch, kv_head, first_key), g.dv_strides.row, count,
               a.value_dim, 1.0f);
}

template <class T>
FS_INLINE void sum_delta(const Attention& a, const Gradients& g, const void* out, float* delta) {
  constexpr int64_t kPerElement = 16;  // multiplications that take as long as reading an element of both
  parallel_for(a.batch * a.heads * a.queries, grain_rows(kAttentionGrain, kPerElement * a.value_dim),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t r = begin; r < end; ++r) {
                   const int64_t head = r / a.queries, query = r % a.queries;
                   const T* x = at<T>(out, a.out, head / a.heads, head % a.heads, query);
                   const T* dx = at<T>(g.dout, g.dout_strides, head / a.heads, head % a.heads, query);
                   delta[r] = sum_of(a.value_dim, [=](int64_t i, auto lanes) {
                     return load(x + i, lanes) * load(dx + i, lanes);
                   });
                 }
               });
}

FS_INLINE int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

}  // namespace

FS_DEFINE(attention_backward)(const void* dout, const void* q, const void* k, const void* v, const void* mask,
                              const void* out, const float* lse, float* delta, void* dq, void* dk, void* dv,
                              const int64_t* sizes, const int64_t* strides, float scale, int32_t causal, uint64_t seed,
                              int64_t threshold, float kept, int32_t dtype, int32_t mask_dtype) {
  const Attention a(sizes, strides, mask, mask_dtype, Dropout(seed, threshold, kept), scale, causal != 0);
  const auto next = [&](int i) { return Strides{strides[i], strides[i + 1], strides[i + 2]}; };
  const Gradients g{next(16), next(19), next(22), next(25), dout, dq, dk, dv, lse, delta};

  // A unit of work is a key head with every part-th block of its keys. Where heads are few or do not share out evenly,
  // a head is cut into parts, each with its own sums for dq.
  const int64_t kv_heads = a.batch * a.kv_heads, threads = fs_max_threads();
  const int64_t even = threads / greatest_divisor(max_of(1, kv_heads), threads);
  const int64_t parts = kv_heads >= 4 * threads ? 1 : max_of(1, min_of(even, a.key_blocks()));
  const int64_t units = kv_heads * parts, rows = a.group() * a.queries, stride = padded(a.dim);
  const int64_t grain = grain_rows(kAttentionGrain, 5 * rows * a.keys * a.dim / parts);
  const int64_t teams = max_of(1, fs_internal_num_threads(units, grain));
  const int64_t num_sums = dq ? (parts == 1 ? teams : units) : 0;
  Arena sizing{nullptr};
  BackwardTiles(a, sizing);
  float* scratch = static_cast<float*>(
      fs_internal_scratch((teams * sizing.used + num_sums * rows * stride) * int64_t{sizeof(float)}));
  float* sums = scratch + teams * sizing.used;

  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const auto store_dq = [&](const float* from, int64_t head, int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t i = r / a.queries, query = r % a.queries;
        T* to = at<T>(dq, g.dq_strides, head / a.kv_heads, head % a.kv_heads * a.group() + i, query);
        store_rows(from + r * stride, stride, to, g.dq_strides.row, 1, a.dim, scale);
      }
    };
    sum_delta<T>(a, g, out, delta);
    deal(units, grain, [&](int64_t unit, int thread) {
      Arena arena{scratch + thread * sizing.used};
      const BackwardTiles tiles(a, arena);
      const int64_t head = unit / parts;
      float* sum = sums + (parts == 1 ? thread : unit) * rows * stride;
      if (dq) memset(sum, 0, sizeof(float) * static_cast<size_t>(rows * stride));
      for (int64_t block = unit % parts; block < a.key_blocks(); block += parts)
        backward_keys<T>(a, g, head / a.kv_heads, head % a.kv_heads, block * kKeys, q, k, v, sum, tiles);
      if (dq && parts == 1) store_dq(sum, head, 0, rows);
    });
    if (dq && parts > 1)
      parallel_for(kv_heads * rows, grain_rows(kAttentionGrain, stride * parts), [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t head = r / rows;
          float* total = sums + (head * parts * rows + r % rows) * stride;
          for (int64_t part = 1; part < parts; ++part)
            for (int64_t c = 0; c < stride; c += kWidth)
              store(total + c, load(total + c, All{}) + load(total + part * rows * stride + c, All{}), All{});
          store_dq(sums + head * parts * rows * stride, head, r % rows, r % rows + 1);
        }
      });
  });
}
