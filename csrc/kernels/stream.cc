// The memory rates that every other kernel is measured against.
#include "kernel.h"
#include "simd/around_cache.h"

namespace {
constexpr int64_t kGrain = 16384;
constexpr int64_t kTile = 1024;  // floats, 4 KiB
}  // namespace

FS_DEFINE(stream_read)(const float* a, int64_t numel, float* out) {
  const int threads = static_cast<int>(max_of(1, fs_internal_num_threads(numel, kGrain)));
  float* parts = static_cast<float*>(fs_internal_scratch(threads * static_cast<int64_t>(sizeof(float))));
  memset(parts, 0, threads * sizeof(float));
  parallel_for(numel, kGrain, [=](int64_t begin, int64_t end, int thread) {
    parts[thread] = sum_of(end - begin, [=](int64_t i, auto lanes) { return load(a + begin + i, lanes); });
  });
  out[0] = 0;
  for (int t = 0; t < threads; ++t) out[0] += parts[t];
}

FS_DEFINE(stream_triad)(float* a, const float* b, const float* c, float s, int64_t numel) {
  parallel_for(numel, kGrain, [=](int64_t begin, int64_t end, int) {
    alignas(64) float tile[kTile];
    for (int64_t start = begin; start < end; start += kTile) {
      const int64_t n = min_of(kTile, end - start);
      for_vectors(n, [&](int64_t i, auto lanes) {
        store(tile + i, load(b + start + i, lanes) + s * load(c + start + i, lanes), lanes);
      });
      copy_around_cache(a + start, tile, n * 4);
    }
  });
}

FS_DEFINE(stream_scale)(float* a, float s, int64_t numel) {
  parallel_for(numel, kGrain, [=](int64_t begin, int64_t end, int) {
    for_vectors(end - begin, [=](int64_t i, auto lanes) { store(a + begin + i, s * load(a + begin + i, lanes), lanes); });
  });
}
