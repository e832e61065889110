// out = softmax(scale q k^T + mask) v: blocks of queries against blocks of keys with a running softmax.
#pragma once
#include "attention/scores.h"
#include "simd/functions.h"

namespace {

// What one thread needs to work on a key head.
template <class T>
class Forward : BlockProducts<typename TilesOf<T>::type> {
  using Products = BlockProducts<typename TilesOf<T>::type>;
  using typename Products::Element;
  using typename Products::Packed;
  using Products::kCols;
  using Products::kPadded;
  using Products::kStride;
  static constexpr int kVectors = kCols / kWidth;

 public:
  using Scope = typename TilesOf<T>::type::Scope;

  Forward(const Attention& a, Arena& arena)
      : a_(a), ahead_(a.keys <= kMostAhead), key_size_(Products::rows_size(a.dim)),
        value_size_(Products::cols_size(a.value_dim, kBlockTokens)), out_stride_(Products::padded(a.value_dim) + 16) {
    const int64_t blocks = ahead_ ? a.key_blocks() : 1;
    keys_ = arena.take<Packed>(blocks * key_size_);
    values_ = arena.take<Packed>(blocks * value_size_);
    queries_ = arena.take<Packed>(Products::cols_size(kBlockTokens, a.dim));
    packed_ = arena.take<Packed>(Products::rows_size(kBlockTokens));
    scores_ = arena.take<float>(kBlockTokens * kStride);
    // Where products are in bf16 the probabilities are rounded; else they stay where the scores were.
    probabilities_ = sizeof(Element) == 2 ? arena.take<Element>(kBlockTokens * kStride) : reinterpret_cast<Element*>(scores_);
    mask_ = arena.take<float>(a.mask.data ? kBlockTokens * kStride : 0);
    mask_by_keys_ = arena.take<float>(a.mask.data ? kBlockTokens * kStride : 0);
    out_ = arena.take<float>(kBlockTokens * out_stride_);
    max_ = arena.take<float>(kPadded);
    sum_ = arena.take<float>(kPadded);
    rescale_ = arena.take<float>(kPadded);
  }

  // Every parts-th block of the queries of all heads that share a key head, from block `part` on.
  void run(int64_t batch, int64_t kv_head, int64_t part, int64_t parts, const void* q, const void* k, const void* v,
           void* out, float* lse) const {
    const T *keys = at<T>(k, a_.k, batch, kv_head, 0), *values = at<T>(v, a_.v, batch, kv_head, 0);
    for (int64_t j = 0; ahead_ && j < a_.key_blocks(); ++j) pack(keys, values, j);
    for (int64_t i = 0; i < a_.group(); ++i)
      for (int64_t block = part; block < a_.query_blocks(); block += parts)
        queries(batch, kv_head * a_.group() + i, block * kBlockTokens, q, keys, values, out, lse);
  }

 private:
  static constexpr int64_t kMostAhead = 8192;  // keys that are packed before any is used

  void pack(const T* keys, const T* values, int64_t j) const {
    const int64_t first = j * kBlockTokens, count = min_of(kBlockTokens, a_.keys - first), slot = ahead_ ? j : 0;
    Products::pack_rows(Lines<T>{keys + first * a_.k.row, a_.k.row, 1}, count, a_.dim, keys_ + slot * key_size_);
    Products::pack_cols(Lines<T>{values + first * a_.v.row, 1, a_.v.row}, a_.value_dim, count,
                        values_ + slot * value_size_);
  }

  void queries(int64_t batch, int64_t head, int64_t first_query, const void* q, const T* keys, const T* values, void* out,
               float* lse) const {
    const int64_t count = min_of(kBlockTokens, a_.queries - first_query);
    Products::pack_cols(Lines<T>{at<T>(q, a_.q, batch, head, first_query), a_.q.row, 1}, count, a_.dim, queries_);
    memset(out_, 0, sizeof(float) * static_cast<size_t>(kBlockTokens * out_stride_));
    for (int64_t i = 0; i < kPadded; ++i) {
      max_[i] = -__builtin_inff();
      sum_[i] = 0;
    }
    const int64_t end = a_.causal ? min_of(a_.keys, first_query + count) : a_.keys;
    for (int64_t key = 0; key < end; key += kBlockTokens) {
      const Block block = a_.block(first_query, key);
      const BlockMask mask = mask_of(a_, batch, head, block, mask_, mask_by_keys_, kStride);
      if (mask.seen == Seen::kNone) continue;
      if (!ahead_) pack(keys, values, key / kBlockTokens);
      add_block(block, mask, batch * a_.heads + head, ahead_ ? key / kBlockTokens : 0);
    }
    T* const to = at<T>(out, a_.out, batch, head, first_query);
    for (int64_t query = 0; query < count; ++query)  // a query that sees no key gives zeros
      store_rows(out_ + query * out_stride_, 0, to + query * a_.out.row, 0, 1, a_.value_dim,
                 sum_[query] == 0 ? 0 : 1 / sum_[query]);
    if (!lse) return;
    lse += (batch * a_.heads + head) * a_.queries + first_query;
    for_vectors(count, [&](int64_t i, auto lanes) {
      const vfloat sum = load(sum_ + i, All{});
      const vfloat value = load(max_ + i, All{}) + log(sum);
      store(lse + i, sum == 0.0f ? broadcast(__builtin_inff()) : value, lanes);  // so that backward finds zeros too
    });
  }

  // out = rescale * out + probabilities v, for one block of keys.
  void add_block(const Block& block, const BlockMask& mask, int64_t head, int64_t slot) const {
    const bool cut = a_.cuts(block);
    const int64_t dim = a_.dim, num_keys = block.num_keys, num_queries = block.num_queries;
    Products::multiply(keys_ + slot * key_size_, num_keys, queries_, num_queries, dim, scores_, kStride, false,
                       [&](Range keys, Range queries) {
                         return Span{0, cut && block.keys_until(queries.last - 1) <= keys.first ? 0 : dim};
                       });
    const RandomKey random = a_.dropout.on ? a_.dropout.key(head) : RandomKey{};
    for (int64_t col = 0; col < Products::padded(num_queries); col += kCols) {
      const int64_t visible = cut ? max_of(0, block.keys_until(col + kCols - 1)) : num_keys;
      const bool as_they_are = mask.seen == Seen::kAll && (!cut || block.keys_until(col) >= visible);
      if (!as_they_are) alter(block, mask, cut, col, visible);
      exponentials(col, visible, as_they_are ? a_.scale : 1);
      for (int64_t key = visible; key < num_keys; ++key)
        for (int64_t c = col; c < col + kCols; c += kWidth)
          store(probabilities_ + key * kStride + c, vfloat{}, All{});
      if (a_.dropout.on) drop(block, random, col, visible);
    }
    for (int64_t query = 0; query < num_queries; ++query) {
      if (rescale_[query] == 1) continue;
      float* const row = out_ + query * out_stride_;
      for (int64_t c = 0; c < Products::padded(a_.value_dim); c += kWidth)
        store(row + c, load(row + c, All{}) * rescale_[query], All{});
    }
    Products::pack_rows(Lines<Element>{probabilities_, 1, kStride}, num_queries, num_keys, packed_);
    Products::multiply(packed_, num_queries, values_ + slot * value_size_, a_.value_dim, num_keys, out_, out_stride_, true,
                       [&](Range queries, Range) {
                         return Span{0, cut ? block.keys_until(queries.last - 1) : num_keys};
                       });
  }

  // Scores of kCols queries scaled, with the mask, and -infinity for keys behind the query.
  void alter(const Block& block, const BlockMask& mask, bool cut, int64_t col, int64_t visible) const {
    for (int64_t key = 0; key < visible; ++key)
      for (int64_t c = col; c < col + kCols; c += kWidth) {
        float* const p = scores_ + key * kStride + c;
        vfloat x = load(p, All{}) * a_.scale;
        if (mask.seen == Seen::kSome) x += mask.at(key, c);
        if (cut) x = sees(block, key, c) ? x : vfloat{} - __builtin_inff();
        store(p, x, All{});
      }
  }

  // Scores of kCols queries to probabilities, up to the sum that is still to come; updates maximum and sum.
  void exponentials(int64_t col, int64_t num_keys, float scale) const {
    vfloat top[kVectors], shift[kVectors], total[kVectors];
    for (int v = 0; v < kVectors; ++v) top[v] = load(max_ + col + v * kWidth, All{});
    for (int64_t key = 0; key < num_keys; ++key)
      for (int v = 0; v < kVectors; ++v)
        top[v] = max_of(load(scores_ + key * kStride + col + v * kWidth, All{}) * scale, top[v]);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t c = col + v * kWidth;
      shift[v] = top[v] == -__builtin_inff() ? vfloat{} : top[v];  // nothing seen yet: -inf - -inf would be NaN
      const vfloat rescale = exp_nonpositive(load(max_ + c, All{}) - shift[v]);
      store(rescale_ + c, rescale, All{});
      store(max_ + c, top[v], All{});
      total[v] = load(sum_ + c, All{}) * rescale;
    }
    for (int64_t key = 0; key < num_keys; ++key)
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = key * kStride + col + v * kWidth;
        const vfloat e = exp_nonpositive(load(scores_ + at, All{}) * scale - shift[v]);
        store(probabilities_ + at, e, All{});
        // What is summed is what v will be multiplied by: errors of rounding then move weight between keys, no more.
        total[v] += sizeof(Element) == 2 ? load(probabilities_ + at, All{}) : e;
      }
    for (int v = 0; v < kVectors; ++v) store(sum_ + col + v * kWidth, total[v], All{});
  }

  void drop(const Block& block, RandomKey random, int64_t col, int64_t visible) const {
    for (int64_t key = 0; key < visible; ++key)
      for (int64_t c = col; c < col + kCols; c += kWidth) {
        Element* const p = probabilities_ + key * kStride + c;
        store(p, load(p, All{}) * kept(a_, random, block, key, c), All{});
      }
  }

  const Attention& a_;
  bool ahead_;
  int64_t key_size_, value_size_, out_stride_;
  Packed *keys_, *values_, *queries_, *packed_;
  float *scores_, *mask_, *mask_by_keys_, *out_, *max_, *sum_, *rescale_;
  Element* probabilities_;
};

}  // namespace
