// What the optimizers share: a list of tensors cut into chunks over the threads, and blocks of 256 floats that an
// update works on whatever the storage formats are. An update on plain fp32 arrays is all that such a step needs:
//
//     for_param_chunks(params, num_params, [&](const fs_param& p, int64_t begin, int64_t end, int64_t) {
//       step_blocks(p, begin, end, keys, lookahead_alpha, [&](const FloatBlock& block) { ... });  // kBlock each
//     });
//
// fp32 arrays are worked on in place, the others are decoded into L1 and encoded again. packed_block.h saves that round
// trip for the common steps, at one instantiation for every combination of formats.
#pragma once
#include "optimizer/block_formats.h"

namespace {

// ops/_optimizer.py mirrors these.
static_assert(sizeof(fs_param) == 120 && sizeof(fs_adam_group) == 56);
static_assert(sizeof(fs_sgd_group) == 40 && sizeof(fs_lamb_group) == 48);

constexpr int64_t kParamChunk = 16 * kBlock;  // divides 2^32, so that one random key serves a chunk
// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kOptimizerGrain = 16384;

// ---- the list ------------------------------------------------------------------------------------------------------

FS_INLINE int64_t num_param_chunks(const fs_param& p) { return (p.numel + kParamChunk - 1) / kParamChunk; }

// body(params[k], begin, end, chunk) for every chunk [begin, end) of every tensor, numbered through the list.
// Contiguous runs of chunks go to the threads.
template <class Body>
inline void for_param_chunks(const fs_param* params, int64_t num_params, const Body& body) {
  int64_t chunks = 0, elements = 0;
  for (int64_t k = 0; k < num_params; ++k) {
    chunks += num_param_chunks(params[k]);
    elements += params[k].numel;
  }
  if (elements == 0) return;
  const int64_t grain = max_of(1, fs_internal_grain(kOptimizerGrain) * chunks / elements);  // chunks may be small
  parallel_for(chunks, grain, [&](int64_t first, int64_t last, int) {
    int64_t k = 0, chunk = 0;  // chunk: number of the first one of params[k]
    while (chunk + num_param_chunks(params[k]) <= first) chunk += num_param_chunks(params[k++]);
    for (int64_t c = first; c < last; ++c) {
      while (c >= chunk + num_param_chunks(params[k])) chunk += num_param_chunks(params[k++]);
      const int64_t begin = (c - chunk) * kParamChunk;
      body(params[k], begin, min_of(begin + kParamChunk, params[k].numel), c);
    }
  });
}

// ---- a block in memory ----------------------------------------------------------------------------------------------

enum Array { kWeight, kWeightLo, kGrad, kM, kV, kVMax, kSlow, kNumArrays };

FS_INLINE void element_sizes(const fs_param& p, int64_t (&sizes)[kNumArrays]) {
  const int64_t state = p.state_format == FS_STATE_F32 ? 4 : p.state_format == FS_STATE_BF16 ? 2 : 1;
  sizes[kWeight] = p.weight_format == FS_WEIGHT_F32 ? 4 : 2;
  sizes[kWeightLo] = 2;
  sizes[kGrad] = p.grad_dtype == FS_F32 ? 4 : 2;
  sizes[kM] = sizes[kV] = sizes[kVMax] = state;
  sizes[kSlow] = 4;
}

// The addresses of one block of a tensor, NULL for what it does not have.
struct Address {
  char* array[kNumArrays];
  float *m_scale, *v_scale, *v_max_scale;
};

FS_INLINE Address address_of(const fs_param& p, const int64_t (&sizes)[kNumArrays], int64_t first) {
  void* const starts[kNumArrays] = {p.weight, p.weight_lo, const_cast<void*>(p.grad), p.m, p.v, p.v_max, p.slow};
  Address at;
  for (int a = 0; a < kNumArrays; ++a)
    at.array[a] = starts[a] ? static_cast<char*>(starts[a]) + first * sizes[a] : nullptr;
  const int64_t block = first / kBlock;
  at.m_scale = p.m_scale ? p.m_scale + block : nullptr;
  at.v_scale = p.v_scale ? p.v_scale + block : nullptr;
  at.v_max_scale = p.v_max_scale ? p.v_max_scale + block : nullptr;
  return at;
}

// A copy of a tensor's last, partial block, filled up with zeros, that can be worked on like a whole one.
struct Padded {
  alignas(64) char bytes[kNumArrays][kBlock * 4];
  Address at;

  Padded(const Address& from, const int64_t (&sizes)[kNumArrays], int64_t count) : at(from) {
    for (int a = 0; a < kNumArrays; ++a) {
      if (!from.array[a]) continue;
      memcpy(bytes[a], from.array[a], static_cast<size_t>(count * sizes[a]));
      memset(bytes[a] + count * sizes[a], 0, static_cast<size_t>((kBlock - count) * sizes[a]));
      at.array[a] = bytes[a];
    }
  }
  void copy_back(const Address& to, const int64_t (&sizes)[kNumArrays], int64_t count) const {
    for (int a = 0; a < kNumArrays; ++a)
      if (to.array[a] && a != kGrad) memcpy(to.array[a], bytes[a], static_cast<size_t>(count * sizes[a]));
  }
};

// body(at, first) for every block of [begin, end), a chunk of p; `at` always has kBlock elements.
template <class Body>
FS_INLINE void for_param_blocks(const fs_param& p, int64_t begin, int64_t end, const Body& body) {
  int64_t sizes[kNumArrays];
  element_sizes(p, sizes);
  int64_t first = begin;
  for (; first + kBlock <= end; first += kBlock) body(address_of(p, sizes, first), first);
  if (first == end) return;
  const Address at = address_of(p, sizes, first);
  Padded padded(at, sizes, end - first);
  body(padded.at, first);
  padded.copy_back(at, sizes, end - first);
}

// ---- a block of floats ----------------------------------------------------------------------------------------------

// kBlock elements; NULL for what the tensor does not have. With 8-bit states v and v_max are square roots, both ways.
struct FloatBlock {
  const float* grad;
  float *weight, *m, *v, *v_max;
  bool roots;
};

struct Buffer {
  alignas(64) float weight[kBlock], grad[kBlock], m[kBlock], v[kBlock], v_max[kBlock];
  alignas(64) uint32_t noise[kBlock / 2];
};

template <void (*decode_8bit)(const uint8_t*, float, float*)>
FS_INLINE float* load_state(int32_t format, char* from, const float* scale, float* buffer) {
  if (!from || format == FS_STATE_F32) return reinterpret_cast<float*>(from);
  if (format == FS_STATE_BF16)
    decode_bf16(reinterpret_cast<const bf16*>(from), buffer);
  else
    decode_8bit(reinterpret_cast<const uint8_t*>(from), *scale, buffer);
  return buffer;
}

FS_INLINE FloatBlock load_block(const fs_param& p, const Address& at, Buffer& buffer) {
  FloatBlock block;
  block.roots = p.state_format == FS_STATE_8BIT;
  block.weight = p.weight_format == FS_WEIGHT_F32 ? reinterpret_cast<float*>(at.array[kWeight]) : buffer.weight;
  const bf16* weight = reinterpret_cast<const bf16*>(at.array[kWeight]);
  if (p.weight_format == FS_WEIGHT_SPLIT)
    decode_split(weight, reinterpret_cast<const int16_t*>(at.array[kWeightLo]), buffer.weight);
  else if (p.weight_format == FS_WEIGHT_BF16)
    decode_bf16(weight, buffer.weight);
  block.grad = p.grad_dtype == FS_F32 ? reinterpret_cast<const float*>(at.array[kGrad]) : buffer.grad;
  if (p.grad_dtype != FS_F32) decode_bf16(reinterpret_cast<const bf16*>(at.array[kGrad]), buffer.grad);
  block.m = load_state<decode_8bit_m>(p.state_format, at.array[kM], at.m_scale, buffer.m);
  block.v = load_state<decode_8bit_root>(p.state_format, at.array[kV], at.v_scale, buffer.v);
  block.v_max = load_state<decode_8bit_root>(p.state_format, at.array[kVMax], at.v_max_scale, buffer.v_max);
  return block;
}

// The random keys of one chunk.
struct Keys {
  RandomKey state, weight;
  Keys(const fs_param& p, uint64_t seed, int64_t first)
      : state(random_key(seed, static_cast<uint64_t>(p.step), p.stream, static_cast<uint64_t>(first) >> 32)),
        weight(random_key(seed, static_cast<uint64_t>(p.step), p.stream + (1ull << 63), static_cast<uint64_t>(first) >> 32)) {}
};

// m and v draw one random number together; v_max rounds as v, so that it equals v where it is v.
FS_INLINE void store_states(const fs_param& p, const Address& at, const FloatBlock& block, Buffer& buffer,
                            const Keys& keys, int64_t first) {
  if (p.state_format == FS_STATE_F32 || !block.m) return;
  draw_noise(keys.state, first, buffer.noise);
  if (p.state_format == FS_STATE_BF16) {
    encode_bf16<false>(block.m, reinterpret_cast<bf16*>(at.array[kM]), buffer.noise);
    if (block.v) encode_bf16<true>(block.v, reinterpret_cast<bf16*>(at.array[kV]), buffer.noise);
    if (block.v_max) encode_bf16<true>(block.v_max, reinterpret_cast<bf16*>(at.array[kVMax]), buffer.noise);
  } else {
    const auto bytes = [&](Array a) { return reinterpret_cast<uint8_t*>(at.array[a]); };
    encode_8bit_m(block.m, bytes(kM), at.m_scale, buffer.noise);
    if (block.v) encode_8bit_root(block.v, bytes(kV), at.v_scale, buffer.noise);
    if (block.v_max) encode_8bit_root(block.v_max, bytes(kVMax), at.v_max_scale, buffer.noise);
  }
}

// Lookahead when it is due (alpha > 0 and there are slow weights), then the weight in its format.
FS_INLINE void store_weight(const fs_param& p, const Address& at, const FloatBlock& block, Buffer& buffer,
                            const Keys& keys, int64_t first, float lookahead_alpha) {
  if (float* slow = reinterpret_cast<float*>(at.array[kSlow]); slow && lookahead_alpha > 0)
    for (int64_t i = 0; i < kBlock; i += kWidth) {
      const vfloat before = load(slow + i, All{});
      const vfloat after = before + lookahead_alpha * (load(block.weight + i, All{}) - before);
      store(slow + i, after, All{});
      store(block.weight + i, after, All{});
    }
  bf16* weight = reinterpret_cast<bf16*>(at.array[kWeight]);
  if (p.weight_format == FS_WEIGHT_SPLIT) {
    encode_split(block.weight, weight, reinterpret_cast<int16_t*>(at.array[kWeightLo]));
  } else if (p.weight_format == FS_WEIGHT_BF16) {
    draw_noise(keys.weight, first, buffer.noise);
    encode_bf16<false>(block.weight, weight, buffer.noise);
  }
}

// x as it would be in memory: keeps the compiler from fusing the product before it with the addition after it.
FS_INLINE vfloat rounded(vfloat x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// ---- a whole step --------------------------------------------------------------------------------------------------

// The blocks of one chunk: decoded, given to update(block), which changes weight, m, v and v_max in place, and encoded.
template <class Update>
FS_INLINE void step_blocks(const fs_param& p, int64_t begin, int64_t end, const Keys& keys, float lookahead_alpha,
                          const Update& update) {
  Buffer buffer;
  for_param_blocks(p, begin, end, [&](const Address& at, int64_t first) {
    const FloatBlock block = load_block(p, at, buffer);
    update(block);
    store_states(p, at, block, buffer, keys, first);
    store_weight(p, at, block, buffer, keys, first, lookahead_alpha);
  });
}

}  // namespace
