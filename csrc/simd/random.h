// Random bits as a function of (seed, step, index): nothing is stored, and the order of evaluation and the number of
// threads do not matter. A 32-bit mixer (two multiplications, three shifts, the "lowbias" family of hash functions)
// keyed twice, so that different keys give different permutations and not shifted copies of one. About eight
// instructions a vector; Philox would be ten rounds. Good enough to round and to drop, not for cryptography.
#pragma once
#include "simd/vectors.h"

namespace {

struct RandomKey {
  uint32_t outer, inner;
};

// splitmix64: one step of it, to spread any seed, step and stream over all bits.
FS_INLINE uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The key for 2^32 indices of one stream (a tensor, a use) at one step. Longer arrays take a key per 2^32 block:
// pass index >> 32 as block.
FS_INLINE RandomKey random_key(uint64_t seed, uint64_t step, uint64_t stream, uint64_t block = 0) {
  const uint64_t key = mix64(mix64(mix64(mix64(seed) + step) + stream) + block);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

// 32 random bits for each of the indices.
template <class U>
FS_INLINE U random_bits(RandomKey key, U index) {
  U x = index ^ key.outer;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= key.inner;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// The indices first, first + 1, ... of one vector, modulo 2^32.
FS_INLINE vuint indices_from(int64_t first) { return (vuint)lane_numbers() + static_cast<uint32_t>(first); }

// bf16, rounded up with the probability of the discarded fraction: `noise` is 16 random bits in the lower half of
// each lane. Infinity and NaN pass unchanged (a NaN stays one), and nothing finite becomes infinite by noise alone.
FS_INLINE vuint stochastic_bf16_bits(vfloat x, vuint noise) {
  const vuint u = bits_of(x);
  const vuint rounded = u + (noise & 0xffffu);
  const vint top = (vint)(u & 0x7fffffffu) > 0x7f7f0000;  // beyond it a carry leaves the finite numbers; rare
  if (!any(top)) return rounded >> 16;
  const vuint kept = (x != x) ? u | 0x400000u : u;
  return (top ? kept : rounded) >> 16;
}

}  // namespace
