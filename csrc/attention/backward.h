// Gradients of attention, block by block, with the probabilities made anew from the logarithm of their sums:
//     P = e^(scale q k^T - lse)   dV = P^T dout   dP = dout v^T   dS = P (dP - delta)   dK = dS^T q   dQ = dS k
#pragma once
#include "attention/scores.h"
#include "simd/functions.h"

namespace {

struct Gradients {
  Strides dout_strides, dq_strides, dk_strides, dv_strides;
  const void* dout;
  void *dq, *dk, *dv;  // each or NULL
  const float *lse, *delta;
};

// What one thread needs to work on a key head.
template <class T>
class Backward : BlockProducts<typename TilesOf<T>::type> {
  using Products = BlockProducts<typename TilesOf<T>::type>;
  using typename Products::Element;
  using typename Products::Packed;
  using Products::kCols;
  using Products::kStride;

 public:
  using Scope = typename TilesOf<T>::type::Scope;

  Backward(const Attention& a, const Gradients& g, Arena& arena)
      : a_(a), g_(g), ahead_(a.queries <= kMostAhead), dk_stride_(Products::padded(a.dim)),
        dv_stride_(Products::padded(a.value_dim)), query_size_(Products::cols_size(kBlockTokens, a.dim)),
        dout_size_(Products::cols_size(kBlockTokens, a.value_dim)), q_size_(Products::cols_size(a.dim, kBlockTokens)),
        dout_rows_size_(Products::cols_size(a.value_dim, kBlockTokens)) {
    const int64_t blocks = ahead_ ? a.query_blocks() : 1;
    queries_ = arena.take<Packed>(blocks * query_size_);
    douts_ = arena.take<Packed>(blocks * dout_size_);
    q_ = arena.take<Packed>(blocks * q_size_);
    dout_ = arena.take<Packed>(blocks * dout_rows_size_);
    keys_ = arena.take<Packed>(Products::rows_size(a.dim));
    values_ = arena.take<Packed>(Products::rows_size(a.value_dim));
    k_ = arena.take<Packed>(Products::cols_size(a.dim, kBlockTokens));
    packed_ = arena.take<Packed>(Products::rows_size(kBlockTokens));
    scores_ = arena.take<float>(kBlockTokens * kStride);
    dscores_ = arena.take<float>(kBlockTokens * kStride);
    p_ = sizeof(Element) == 2 ? arena.take<Element>(kBlockTokens * kStride) : reinterpret_cast<Element*>(scores_);
    ds_ = sizeof(Element) == 2 ? arena.take<Element>(kBlockTokens * kStride) : reinterpret_cast<Element*>(dscores_);
    mask_ = arena.take<float>(a.mask.data ? kBlockTokens * kStride : 0);
    mask_by_keys_ = arena.take<float>(a.mask.data ? kBlockTokens * kStride : 0);
    dk_ = arena.take<float>(a.key_blocks() * kBlockTokens * dk_stride_);
    dv_ = arena.take<float>(a.key_blocks() * kBlockTokens * dv_stride_);
  }

  // Floats of the sums for dq of one query head.
  static int64_t dq_size(const Attention& a) { return a.query_blocks() * kBlockTokens * Products::padded(a.dim); }
  static int64_t dq_stride(const Attention& a) { return Products::padded(a.dim); }

  // dk and dv of every parts-th block of a key head, from block `part` on. dq: sums of what they give to the query heads of
  // the group, dq_size each.
  void run(int64_t batch, int64_t kv_head, int64_t part, int64_t parts, const void* q, const void* k, const void* v,
           float* dq) const {
    for (int64_t block = part; block < a_.key_blocks(); block += parts) {
      memset(dk_ + block * kBlockTokens * dk_stride_, 0, sizeof(float) * static_cast<size_t>(kBlockTokens * dk_stride_));
      memset(dv_ + block * kBlockTokens * dv_stride_, 0, sizeof(float) * static_cast<size_t>(kBlockTokens * dv_stride_));
    }
    if (dq) memset(dq, 0, sizeof(float) * static_cast<size_t>(a_.group() * dq_size(a_)));
    for (int64_t i = 0; i < a_.group(); ++i) {
      const int64_t head = kv_head * a_.group() + i;
      const Rows rows_of = {at<T>(q, a_.q, batch, head, 0), at<T>(g_.dout, g_.dout_strides, batch, head, 0)};
      for (int64_t j = 0; ahead_ && j < a_.query_blocks(); ++j) pack_queries(rows_of, j);
      for (int64_t block = part; block < a_.key_blocks(); block += parts) {
        pack_keys(at<T>(k, a_.k, batch, kv_head, block * kBlockTokens), at<T>(v, a_.v, batch, kv_head, block * kBlockTokens),
                  min_of(kBlockTokens, a_.keys - block * kBlockTokens));
        for (int64_t j = a_.causal ? block : 0; j < a_.query_blocks(); ++j)
          add_block(a_.block(j * kBlockTokens, block * kBlockTokens), batch, head, rows_of, j, dq ? dq + i * dq_size(a_) : nullptr);
      }
    }
    for (int64_t block = part; block < a_.key_blocks(); block += parts) {
      const int64_t first = block * kBlockTokens, count = min_of(kBlockTokens, a_.keys - first);
      if (g_.dk)
        store_rows(dk_ + first * dk_stride_, dk_stride_, at<T>(g_.dk, g_.dk_strides, batch, kv_head, first),
                   g_.dk_strides.row, count, a_.dim, a_.scale);
      if (g_.dv)
        store_rows(dv_ + first * dv_stride_, dv_stride_, at<T>(g_.dv, g_.dv_strides, batch, kv_head, first),
                   g_.dv_strides.row, count, a_.value_dim, 1.0f);
    }
  }

 private:
  static constexpr int64_t kMostAhead = 8192;  // queries that are packed before any is used

  struct Rows {
    const T *q, *dout;
  };

  // Queries and their gradients as columns, for the scores, and as rows over which dk and dv are summed.
  void pack_queries(const Rows& rows, int64_t j) const {
    const int64_t first = j * kBlockTokens, count = min_of(kBlockTokens, a_.queries - first), slot = ahead_ ? j : 0;
    const int64_t q_row = a_.q.row, dout_row = g_.dout_strides.row;
    const T *q = rows.q + first * q_row, *dout = rows.dout + first * dout_row;
    Products::pack_cols(Lines<T>{q, q_row, 1}, count, a_.dim, queries_ + slot * query_size_);
    Products::pack_cols(Lines<T>{dout, dout_row, 1}, count, a_.value_dim, douts_ + slot * dout_size_);
    if (g_.dk) Products::pack_cols(Lines<T>{q, 1, q_row}, a_.dim, count, q_ + slot * q_size_);
    if (g_.dv) Products::pack_cols(Lines<T>{dout, 1, dout_row}, a_.value_dim, count, dout_ + slot * dout_rows_size_);
  }
  void pack_keys(const T* k, const T* v, int64_t count) const {
    Products::pack_rows(Lines<T>{k, a_.k.row, 1}, count, a_.dim, keys_);
    Products::pack_rows(Lines<T>{v, a_.v.row, 1}, count, a_.value_dim, values_);
    if (g_.dq) Products::pack_cols(Lines<T>{k, 1, a_.k.row}, a_.dim, count, k_);
  }

  // Adds what a block of queries and one of keys give to dk and dv, and to dq.
  void add_block(const Block& block, int64_t batch, int64_t head, const Rows& rows, int64_t j, float* dq) const {
    const BlockMask mask = mask_of(a_, batch, head, block, mask_, mask_by_keys_, kStride);
    if (mask.seen == Seen::kNone) return;
    if (!ahead_) pack_queries(rows, j);
    const int64_t slot = ahead_ ? j : 0, keys = block.num_keys, queries = block.num_queries;
    const bool cut = a_.cuts(block);
    const auto seen_by = [&](Range of_keys, Range of_queries, int64_t depth) {
      return Span{0, cut && block.keys_until(of_queries.last - 1) <= of_keys.first ? 0 : depth};
    };
    Products::multiply(keys_, keys, queries_ + slot * query_size_, queries, a_.dim, scores_, kStride, false,
                       [&](Range k, Range q) { return seen_by(k, q, a_.dim); });
    Products::multiply(values_, keys, douts_ + slot * dout_size_, queries, a_.value_dim, dscores_, kStride, false,
                       [&](Range k, Range q) { return seen_by(k, q, a_.value_dim); });
    with_flag(mask.seen == Seen::kSome, [&](auto masked) {
      with_flag(a_.dropout.on, [&](auto drops) {
        with_flag(cut, [&](auto cuts) {
          probabilities<masked.value, drops.value, cuts.value>(block, mask, batch * a_.heads + head);
        });
      });
    });
    const auto from_key = [&](Range of_keys, Range) {
      return Span{cut ? max_of(0, block.first_key + of_keys.first - block.first_query) : 0, queries};
    };
    if (g_.dv) {
      Products::pack_rows(Lines<Element>{p_, kStride, 1}, keys, queries, packed_);
      Products::multiply(packed_, keys, dout_ + slot * dout_rows_size_, a_.value_dim, queries,
                         dv_ + block.first_key * dv_stride_, dv_stride_, true, from_key);
    }
    if (g_.dk) {
      Products::pack_rows(Lines<Element>{ds_, kStride, 1}, keys, queries, packed_);
      Products::multiply(packed_, keys, q_ + slot * q_size_, a_.dim, queries, dk_ + block.first_key * dk_stride_,
                         dk_stride_, true, from_key);
    }
    if (dq) {
      Products::pack_rows(Lines<Element>{ds_, 1, kStride}, queries, keys, packed_);
      Products::multiply(packed_, queries, k_, a_.dim, keys, dq + block.first_query * dk_stride_, dk_stride_, true,
                         [&](Range of_queries, Range) {
                           return Span{0, cut ? block.keys_until(of_queries.last - 1) : keys};
                         });
    }
  }

  // Scores and dP to P and dS.
  template <bool kMasked, bool kDrops, bool kCuts>
  void probabilities(const Block& block, const BlockMask& mask, int64_t head) const {
    const int64_t first = head * a_.queries + block.first_query;
    const RandomKey random = kDrops ? a_.dropout.key(head) : RandomKey{};
    for_vectors(block.num_queries, [&](int64_t query, auto lanes) {
      const vfloat lse = load(g_.lse + first + query, lanes), delta = load(g_.delta + first + query, lanes);
      for (int64_t key = 0; key < block.num_keys; ++key) {
        const int64_t at = key * kStride + query;
        vfloat x = load(scores_ + at, All{}) * a_.scale - lse, dp = load(dscores_ + at, All{});
        if constexpr (kMasked) x += mask.at(key, query);
        vfloat e = exp_nonpositive(x);
        if constexpr (kDrops) dp *= kept(a_, random, block, key, query);
        vfloat ds = e * (dp - delta);
        if constexpr (kCuts) {
          const vint seen = sees(block, key, query);
          e = seen ? e : vfloat{};
          ds = seen ? ds : vfloat{};
        }
        if constexpr (kDrops) e *= kept(a_, random, block, key, query);
        store(p_ + at, e, All{});
        store(ds_ + at, ds, All{});
      }
    });
  }

  const Attention& a_;
  const Gradients& g_;
  bool ahead_;
  int64_t dk_stride_, dv_stride_, query_size_, dout_size_, q_size_, dout_rows_size_;
  Packed *queries_, *douts_, *q_, *dout_, *keys_, *values_, *k_, *packed_;
  float *scores_, *dscores_, *mask_, *mask_by_keys_, *dk_, *dv_;
  Element *p_, *ds_;
};

}  // namespace
