// Dropout. The mask is a function of (seed, step, index), so backward makes it anew and nothing is stored.
#include "simd/around_cache.h"
#include "simd/pairs.h"
#include "simd/random.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kDropoutGrain = 16384;

template <class T>
FS_INLINE void drop(const T* x, T* y, int64_t n, RandomKey key, uint32_t first, int32_t limit, float scale,
                    bool around_cache) {
  // The lanes of a pair: even and odd elements of bf16, two vectors of fp32.
  vuint a = (vuint)lane_numbers() * (sizeof(T) == 2 ? 2 : 1) + first, b = a + (sizeof(T) == 2 ? 1 : kWidth);
  for_pairs_to(y, n, around_cache, [&](int64_t i, auto lanes) {
    const vfloat zero = {}, kept = broadcast(scale);
    const Pair v = load_pair(x + i, lanes);
    const vfloat factor_a = (vint)random_bits(key, a) >= limit ? kept : zero;
    const vfloat factor_b = (vint)random_bits(key, b) >= limit ? kept : zero;
    store_pair(y + i, {v.a * factor_a, v.b * factor_b}, lanes);
    a += static_cast<uint32_t>(lanes.count);
    b += static_cast<uint32_t>(lanes.count);
  });
}

}  // namespace

FS_DEFINE(dropout)(const void* x, void* y, int64_t numel, uint64_t seed, uint64_t step, int64_t first,
                   int64_t threshold, float scale, int32_t dtype) {
  constexpr int64_t kAll = int64_t{1} << 32;
  if (threshold >= kAll) scale = 0;  // every element is dropped, and the limit below would wrap around
  const int32_t limit = static_cast<int32_t>(min_of(threshold, kAll - 1) - (kAll >> 1));
  const int64_t grain = fs_internal_grain(kDropoutGrain);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const bool around_cache = goes_around_cache(numel * static_cast<int64_t>(sizeof(T)), x, y);
    parallel_for(numel, grain, [=](int64_t begin, int64_t end, int) {
      while (begin < end) {  // one key for 2^32 indices
        const int64_t index = first + begin, n = min_of(end - begin, kAll - index % kAll);
        const RandomKey key = random_key(seed, step, 0, static_cast<uint64_t>(index / kAll));
        drop(row<T>(x, 1, begin), row<T>(y, 1, begin), n, key, static_cast<uint32_t>(index), limit, scale,
             around_cache);
        begin += n;
      }
    });
  });
}
