// Which keys a query sees and how much: the causal limit, a mask tensor, dropout. For one block of queries and keys.
#pragma once
#include "attention_tile.h"
#include "random.h"

namespace {

// Queries and keys of one head, [first, first + count) each.
struct Block {
  int64_t first_query, num_queries, first_key, num_keys;

  // Causal: the keys of this block, counted from its first, that query `query` of it sees; may be negative.
  FS_INLINE int64_t keys_until(int64_t query) const {
    return min_of(num_keys, first_query + query - first_key + 1);
  }
};

// A mask tensor, broadcast by strides of zero.
struct Mask {
  const void* data;  // or NULL
  int32_t dtype;     // FS_F32 or FS_BF16: added to the scores; -1: bytes, zero hides
  int64_t batch_stride, head_stride, query_stride, key_stride;

  FS_INLINE int64_t rows(const Block& block) const { return query_stride ? block.num_queries : 1; }
};

enum class Seen { kAll, kSome, kNone };

FS_INLINE vfloat mask_values(const float* p, All) { return load(p, All{}); }
FS_INLINE vfloat mask_values(const bf16* p, All) { return load(p, All{}); }
FS_INLINE vfloat mask_values(const uint8_t* p, All) {
  const vint seen = __builtin_convertvector(load_lanes<vbyte>(p, All{}), vint) != 0;
  return seen ? vfloat{} : vfloat{} - __builtin_inff();
}
FS_INLINE float mask_value(float x) { return x; }
FS_INLINE float mask_value(bf16 x) { return bf16_to_float(x); }
FS_INLINE float mask_value(uint8_t x) { return x ? 0 : -__builtin_inff(); }

// tile[query][key] = what the mask adds to the score; one row if the mask is the same for all queries.
template <class T>
FS_INLINE Seen load_mask(const Mask& mask, const T* x, const Block& block, float* tile, int64_t stride) {
  bool hides_all = true, adds_nothing = true;
  for (int64_t q = 0; q < mask.rows(block); ++q) {
    const T* from = x + (block.first_query + q) * mask.query_stride + block.first_key * mask.key_stride;
    float* to = tile + q * stride;
    vint other = {}, present = {};
    int64_t k = 0;
    if (mask.key_stride == 1)
      for (; k + kWidth <= block.num_keys; k += kWidth) {
        const vfloat value = mask_values(from + k, All{});
        store(to + k, value, All{});
        other |= value != 0.0f;
        present |= value != -__builtin_inff();
      }
    hides_all &= !any(present);
    adds_nothing &= !any(other);
    for (; k < block.num_keys; ++k) {
      to[k] = mask_value(from[k * mask.key_stride]);
      hides_all &= to[k] == -__builtin_inff();
      adds_nothing &= to[k] == 0;
    }
  }
  return hides_all ? Seen::kNone : adds_nothing ? Seen::kAll : Seen::kSome;
}

inline Seen load_mask(const Mask& mask, int64_t batch, int64_t head, const Block& block, float* tile, int64_t stride) {
  if (!mask.data) return Seen::kAll;
  const int64_t at = batch * mask.batch_stride + head * mask.head_stride;
  if (mask.dtype == FS_F32) return load_mask(mask, static_cast<const float*>(mask.data) + at, block, tile, stride);
  if (mask.dtype == FS_BF16) return load_mask(mask, static_cast<const bf16*>(mask.data) + at, block, tile, stride);
  return load_mask(mask, static_cast<const uint8_t*>(mask.data) + at, block, tile, stride);
}

// Probabilities are dropped by the random bits of (seed, head of all batches, query * keys + key modulo 2^32).
struct Dropout {
  uint64_t seed;
  bool on;
  int32_t limit;
  float factor;

  Dropout(uint64_t seed, int64_t threshold, float factor) : seed(seed), on(threshold > 0), factor(factor) {
    constexpr int64_t kAll = int64_t{1} << 32;
    if (threshold >= kAll) this->factor = 0;  // every one is dropped, and the limit below would wrap around
    limit = static_cast<int32_t>(min_of(threshold, kAll - 1) - (kAll >> 1));
  }
  FS_INLINE RandomKey key(int64_t head) const { return random_key(seed, 0, static_cast<uint64_t>(head)); }
  FS_INLINE vfloat factors(RandomKey key, vuint index) const {
    return (vint)random_bits(key, index) >= limit ? vfloat{} + factor : vfloat{};
  }
};

}  // namespace
