// Between the formats that tensors are stored in. Everything here streams memory.
#include "simd/around_cache.h"
#include "simd/formats.h"
#include "simd/random.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kConvertGrain = 16384;

// ---- two vectors in the order of memory, for formats of 16 and 32 bits ---------------------------------------

template <class T>
FS_INLINE Pair load_natural(const T* p, WholePair) {
  return {load(p, All{}), load(p + kWidth, All{})};
}
template <class T>
FS_INLINE Pair load_natural(const T* p, PartOfPair lanes) {
  T values[kPair] = {};
  memcpy(values, p, static_cast<size_t>(lanes.count) * sizeof(T));
  return load_natural(values, WholePair{});
}

// `words` for kPair elements of 16 bits.
FS_INLINE void store_words(void* p, vuint words, PartOfPair lanes) {
  memcpy(p, &words, static_cast<size_t>(lanes.count) * 2);
}
template <class Lanes>
FS_INLINE void store_natural(float* p, Pair v, Lanes lanes) {
  store_pair(p, v, lanes);
}
template <class Lanes>
FS_INLINE void store_natural(bf16* p, Pair v, Lanes lanes) {
  store_words(p, float_to_bf16_exact(v.a, v.b), lanes);
}
template <class Lanes>
FS_INLINE void store_natural(fp16* p, Pair v, Lanes lanes) {
  store_words(p, float_to_fp16(v.a, v.b), lanes);
}

template <class From, class To>
FS_INLINE void convert_all(const void* x, void* y, int64_t n) {
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(To)), x, y);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    const From* from = static_cast<const From*>(x) + begin;
    To* to = static_cast<To*>(y) + begin;
    for_pairs_to(to, end - begin, around_cache,
                 [=](int64_t i, auto lanes) { store_natural(to + i, load_natural(from + i, lanes), lanes); });
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
      const float* from = x + first;
      bf16* to = static_cast<bf16*>(y) + first;
      for_pairs_to(to, last - first, around_cache, [=](int64_t i, auto lanes) {
        const Pair v = load_natural(from + i, lanes);
        const vuint a = stochastic_bf16_bits(v.a, random_bits(key, indices_from(first + i)));
        const vuint b = stochastic_bf16_bits(v.b, random_bits(key, indices_from(first + i + kWidth)));
        store_words(to + i, narrow(a, b), lanes);
      });
    });
  });
}

FS_DEFINE(split)(const float* x, void* hi, int16_t* lo, int64_t n) {
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(float)), x, hi);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    const float* from = x + begin;
    bf16* upper = static_cast<bf16*>(hi) + begin;
    int16_t* lower = lo + begin;
    // Both go around the cache or neither: they are aligned alike or not.
    const bool alike = elements_before_aligned(upper) == elements_before_aligned(lower);
    for_pairs_to(upper, end - begin, around_cache && alike, [=](int64_t i, auto lanes) {
      const Pair v = load_natural(from + i, lanes);
      const SplitPair parts = split_bits(v.a, v.b);
      store_words(upper + i, parts.hi, lanes);
      store_words(lower + i, parts.lo, lanes);
    });
  });
}

FS_DEFINE(merge)(const void* hi, const int16_t* lo, float* y, int64_t n) {
  const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(float)), hi, y);
  parallel_for(n, fs_internal_grain(kConvertGrain), [&](int64_t begin, int64_t end, int) {
    const bf16* upper = static_cast<const bf16*>(hi) + begin;
    const int16_t* lower = lo + begin;
    float* to = y + begin;
    for_pairs_to(to, end - begin, around_cache, [=](int64_t i, auto lanes) {
      if constexpr (__is_same(decltype(lanes), PartOfPair))
        for_vectors(lanes.count, [=](int64_t j, auto few) {
          store(to + i + j, load_split(upper + i + j, lower + i + j, few), few);
        });
      else
        store_pair(to + i, {load_split(upper + i, lower + i, All{}),
                            load_split(upper + i + kWidth, lower + i + kWidth, All{})}, lanes);
    });
  });
}
