// Between the formats that tensors are stored in. Everything here streams memory.
#include "around_cache.h"
#include "formats.h"
#include "random.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kConvertGrain = 32768;

template <class Lanes>
FS_INLINE void store_as(float* p, vfloat x, Lanes lanes) {
  store(p, x, lanes);
}
template <class Lanes>
FS_INLINE void store_as(bf16* p, vfloat x, Lanes lanes) {
  store_lanes(p, float_to_bf16_exact(x), lanes);
}
template <class Lanes>
FS_INLINE void store_as(fp16* p, vfloat x, Lanes lanes) {
  store_lanes(reinterpret_cast<uint16_t*>(p), float_to_fp16(x), lanes);
}

template <class From, class To>
FS_INLINE void convert_all(const void* x, void* y, int64_t n) {
  const From* from = static_cast<const From*>(x);
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(To)), x, y);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    for_tiles(static_cast<To*>(y), begin, end, around_cache, [&](To* to, int64_t start, int64_t count) {
      for_vectors(count, [&](int64_t i, auto lanes) { store_as(to + i, load(from + start + i, lanes), lanes); });
    });
  });
}

// Random bits have a key for each block of 2^32 elements: pieces of [begin, end) that lie in one block.
template <class Body>
FS_INLINE void for_blocks(int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const int64_t block = begin >> 32, last = min_of(end, (block + 1) << 32);
    body(block, begin, last);
    begin = last;
  }
}

}  // namespace

FS_DEFINE(convert)(const void* x, void* y, int64_t n, int32_t from, int32_t to) {
  switch (from * 4 + to) {
    case FS_F32 * 4 + FS_BF16: return convert_all<float, bf16>(x, y, n);
    case FS_F32 * 4 + FS_F16: return convert_all<float, fp16>(x, y, n);
    case FS_BF16 * 4 + FS_F32: return convert_all<bf16, float>(x, y, n);
    case FS_BF16 * 4 + FS_F16: return convert_all<bf16, fp16>(x, y, n);
    case FS_F16 * 4 + FS_F32: return convert_all<fp16, float>(x, y, n);
    case FS_F16 * 4 + FS_BF16: return convert_all<fp16, bf16>(x, y, n);
  }
}

FS_DEFINE(convert_stochastic)(const float* x, void* y, int64_t n, uint64_t seed, uint64_t step, uint64_t stream) {
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(bf16)), x, y);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    for_blocks(begin, end, [&](int64_t block, int64_t first, int64_t last) {
      const RandomKey key = random_key(seed, step, stream, static_cast<uint64_t>(block));
      for_tiles(static_cast<bf16*>(y), first, last, around_cache, [&](bf16* to, int64_t start, int64_t count) {
        for_vectors(count, [&](int64_t i, auto lanes) {
          const vuint noise = random_bits(key, indices_from(start + i));
          store_lanes(to + i, narrow(stochastic_bf16_bits(load(x + start + i, lanes), noise)), lanes);
        });
      });
    });
  });
}

FS_DEFINE(split)(const float* x, void* hi, int16_t* lo, int64_t n) {
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(float)), x, hi);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    for_tiles(static_cast<bf16*>(hi), begin, end, around_cache, [&](bf16* upper, int64_t start, int64_t count) {
      for_tiles(lo, start, start + count, around_cache, [&](int16_t* lower, int64_t, int64_t) {
        for_vectors(count, [&](int64_t i, auto lanes) {
          store_split(upper + i, lower + i, load(x + start + i, lanes), lanes);
        });
      });
    });
  });
}

FS_DEFINE(merge)(const void* hi, const int16_t* lo, float* y, int64_t n) {
  const bf16* upper = static_cast<const bf16*>(hi);
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(float)), hi, y);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    for_tiles(y, begin, end, around_cache, [&](float* to, int64_t start, int64_t count) {
      for_vectors(count, [&](int64_t i, auto lanes) {
        store(to + i, load_split(upper + start + i, lo + start + i, lanes), lanes);
      });
    });
  });
}
