// Element-wise results larger than the cache, written around it.
#pragma once
#include "kernel.h"

namespace {

// Results beyond this leave the cache before anyone reads them: see benchmarks/thresholds.md.
constexpr int64_t kAroundCacheBytes = 16 << 20;
constexpr int64_t kTileBytes = 4096;

// Whether to write `bytes` of output around the cache. In place the line is there already, and without such stores
// (copy_around_cache) the detour over a tile would be for nothing.
FS_INLINE bool goes_around_cache([[maybe_unused]] int64_t bytes, [[maybe_unused]] const void* from,
                                 [[maybe_unused]] const void* to) {
#if defined(__AVX2__)
  return bytes > kAroundCacheBytes && from != to;
#else
  return false;
#endif
}

// body(target, start, n) for pieces of [begin, end): it writes n results, those of the elements from `start`, to
// target. Around the cache the pieces are tiles in L1 that are copied to y; else there is one piece, y itself.
template <class T, class Body>
FS_INLINE void for_tiles(T* y, int64_t begin, int64_t end, bool around_cache, const Body& body) {
  constexpr int64_t kTile = kTileBytes / static_cast<int64_t>(sizeof(T));
  alignas(64) T tile[kTile];
  for (int64_t start = begin; start < end;) {
    const int64_t n = around_cache ? min_of(kTile, end - start) : end - start;
    body(around_cache ? tile : y + start, start, n);
    if (around_cache) copy_around_cache(y + start, tile, n * static_cast<int64_t>(sizeof(T)));
    start += n;
  }
}

}  // namespace
