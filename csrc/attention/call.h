// One call of attention: its sizes and strides, its blocks of queries and keys, and which keys a query sees and how
// much: the causal limit, a mask tensor, dropout.
#pragma once
#include "kernel.h"
#include "simd/random.h"

namespace {

// Queries and keys of a block. 48 to 128 gave the same speed within the noise, 32 was 10 % slower (an earlier kernel, in
// fp32, on Zen 4 with AVX2, 64 to 1024 tokens).
constexpr int64_t kBlockTokens = 64;

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

// ---- the whole call -----------------------------------------------------------------------------------------

struct Strides {
  int64_t batch, head, row;
};

struct Attention {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  Strides q, k, v, out;
  Mask mask;
  Dropout dropout;
  float scale;
  bool causal;

  Attention(const int64_t* sizes, const int64_t* strides, const void* mask, int32_t mask_dtype, Dropout dropout,
            float scale, bool causal)
      : batch(sizes[0]), heads(sizes[1]), kv_heads(sizes[2]), queries(sizes[3]), keys(sizes[4]), dim(sizes[5]),
        value_dim(sizes[6]), q{strides[0], strides[1], strides[2]}, k{strides[3], strides[4], strides[5]},
        v{strides[6], strides[7], strides[8]}, out{strides[9], strides[10], strides[11]},
        mask{mask, mask_dtype, strides[12], strides[13], strides[14], strides[15]}, dropout(dropout), scale(scale),
        causal(causal) {}

  int64_t group() const { return heads / kv_heads; }  // query heads that share a key head
  int64_t query_blocks() const { return (queries + kBlockTokens - 1) / kBlockTokens; }
  int64_t key_blocks() const { return (keys + kBlockTokens - 1) / kBlockTokens; }
  Block block(int64_t first_query, int64_t first_key) const {
    return {first_query, min_of(kBlockTokens, queries - first_query), first_key, min_of(kBlockTokens, keys - first_key)};
  }
  // Whether some query of the block does not see all of its keys for causality.
  bool cuts(const Block& block) const { return causal && block.keys_until(0) < block.num_keys; }
};

template <class T>
FS_INLINE T* at(void* x, const Strides& strides, int64_t batch, int64_t head, int64_t row) {
  return static_cast<T*>(x) + batch * strides.batch + head * strides.head + row * strides.row;
}
template <class T>
FS_INLINE const T* at(const void* x, const Strides& strides, int64_t batch, int64_t head, int64_t row) {
  return static_cast<const T*>(x) + batch * strides.batch + head * strides.head + row * strides.row;
}

// Scratch of a thread, handed out piece by piece; a first pass without memory finds the size.
struct Arena {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    char* const piece = base + used;  // of NULL, while sizes are found
    used += (count * int64_t{sizeof(T)} + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
};

// How heads are shared out: a unit is a key head with every part-th of its blocks. Where heads are few or do not share out
// evenly, a head is cut into parts.
struct Units {
  int64_t parts, count;

  // bytes: that every unit of a head in parts holds until the end.
  Units(int64_t kv_heads, int64_t blocks, int64_t bytes = 0) {
    constexpr int64_t kMostBytes = 256 << 20;
    const int64_t threads = fs_max_threads(), even = threads / greatest_divisor(max_of(1, kv_heads), threads);
    const int64_t most = bytes ? kMostBytes / (bytes * max_of(1, kv_heads)) : blocks;
    parts = kv_heads >= 4 * threads ? 1 : max_of(1, min_of(min_of(even, blocks), most));
    count = kv_heads * parts;
  }
  static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b) {
      const int64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }
};

// body(item) for each thread in turn, back and forth: later queries see more keys, and sequences may be padded, so that
// contiguous parts would be of unequal work.
template <class Body>
inline void deal(int64_t items, int64_t grain, const Body& body) {
  const int64_t threads = max_of(1, fs_internal_num_threads(items, grain));
  parallel_for(items, grain, [&](int64_t, int64_t, int thread) {
    for (int64_t round = 0; round * threads < items; ++round) {
      const int64_t item = round * threads + (round % 2 ? threads - 1 - thread : thread);
      if (item < items) body(item, thread);
    }
  });
}

}  // namespace
