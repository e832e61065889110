// Tiles of scores, scores[key][query]: what is added to them, and what is hidden or dropped.
//
// By keys, because maxima and sums over keys are then those of vectors of queries, without a reduction across lanes.
#pragma once
#include "attention/products.h"

namespace {

// tile[c][r] = x[r][c]: cols rows, each continued with zeros to whole vectors.
FS_INLINE void transpose_tile(const float* x, int64_t x_stride, int64_t rows, int64_t cols, float* tile, int64_t stride) {
  for (int64_t r = 0; r < rows; r += kWidth) {
    const int64_t present = min_of(kWidth, rows - r);
    for_vectors(cols, [&](int64_t c, auto lanes) {
      vuint block[kWidth];
      for (int i = 0; i < kWidth; ++i)
        block[i] = i < present ? bits_of(load(x + (r + i) * x_stride + c, lanes)) : vuint{};
      transpose(block);
      for (int i = 0; i < kWidth; ++i)
        if (i < lanes.count) store(tile + (c + i) * stride + r, float_of(block[i]), All{});
    });
  }
}

// The mask of a block as it is added to scores: by keys, or one value a key for all queries.
struct BlockMask {
  Seen seen;
  const float* values;  // by keys, or one a key
  int64_t stride;       // 1: one a key

  FS_INLINE vfloat at(int64_t key, int64_t query) const {
    return stride == 1 ? broadcast(values[key]) : load(values + key * stride + query, All{});
  }
};
// Room for two tiles of kBlockTokens rows, `stride` apart.
inline BlockMask mask_of(const Attention& a, int64_t batch, int64_t head, const Block& block, float* room, float* by_keys,
                         int64_t stride) {
  const Seen seen = load_mask(a.mask, batch, head, block, room, stride);
  if (seen != Seen::kSome) return {seen, nullptr, 1};
  if (a.mask.rows(block) == 1) return {seen, room, 1};
  transpose_tile(room, stride, block.num_queries, block.num_keys, by_keys, stride);
  return {seen, by_keys, stride};
}

// Which of the queries from `query` on, one a lane, see a key of the block.
FS_INLINE vint sees(const Block& block, int64_t key, int64_t query) {
  const vint lanes = lane_numbers() + static_cast<int32_t>(query);
  return lanes >= static_cast<int32_t>(block.first_key + key - block.first_query);
}

// Factors of dropout for one key and the queries from `query` on.
FS_INLINE vfloat kept(const Attention& a, RandomKey random, const Block& block, int64_t key, int64_t query) {
  const vuint step = (vuint)lane_numbers() * static_cast<uint32_t>(a.keys);
  const int64_t first = (block.first_query + query) * a.keys + block.first_key + key;
  return a.dropout.factors(random, step + static_cast<uint32_t>(first));
}

template <class T>
FS_INLINE void store_rows(const float* from, int64_t stride, T* to, int64_t to_stride, int64_t rows, int64_t cols,
                          float factor) {
  for (int64_t r = 0; r < rows; ++r)
    for_vectors(cols, [=](int64_t i, auto lanes) {
      store(to + r * to_stride + i, load(from + r * stride + i, lanes) * factor, lanes);
    });
}

}  // namespace
