// Rotary position embedding, forward and backward: the backward rotation is the same one by the negative angle.
#include "simd/around_cache.h"
#include "kernel.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kRopeGrain = 16384;
constexpr int64_t kTile = 2048;  // elements computed before they are written around the cache
// Where a head's positions are adjacent, so many of them are done for one head after the other, with the angles of all in
// the level 2 cache. Shorter pieces, whose angles stay in level 1, were slower in single runs on Zen 4.
constexpr int64_t kPositionBlock = 2048;

struct Rope {
  const float *cos, *sin;
  const int64_t* positions;
  int64_t seq, heads, head_dim, half, offset;
  float sign;
  bool around_cache;
};

// Lanes of a (numbered from 0) and b (numbered from kWidth).
FS_INLINE vfloat pick(vfloat a, vfloat b, vint lanes) {
#if defined(__clang__)
  vfloat picked;
  for (int l = 0; l < kWidth; ++l) picked[l] = lanes[l] < kWidth ? a[lanes[l]] : b[lanes[l] - kWidth];
  return picked;
#else
  return __builtin_shuffle(a, b, lanes);
#endif
}

// ---- pairs of bf16 in 32-bit lanes, the even one in the lower half: neither unpacked nor packed by shuffles ----------

constexpr int64_t kPairs = 2 * kWidth;  // bf16 in one vector

FS_INLINE vuint load_pairs(const bf16* x) {
  vuint pairs;
  memcpy(&pairs, x, sizeof(pairs));
  return pairs;
}
FS_INLINE vfloat even_of(vuint pairs) { return float_of(pairs << 16); }
FS_INLINE vfloat odd_of(vuint pairs) { return float_of(pairs & 0xffff0000u); }
// A NaN stays one (rounded_words) because prepare() leaves none in the angles whose lower half is set, those of x have
// none, and the ones that arithmetic makes have none.
FS_INLINE void store_pairs(bf16* y, vfloat even, vfloat odd) { store_pair(y, Pair{even, odd}); }

// ---- the angles of one position --------------------------------------------------------------------------------------

// cos and sign * sin of a position, once for all its heads, in the order in which rotate_halves takes them: for bf16
// those of the even elements of each vector, then those of the odd ones.
template <class T, class Interleaved>
FS_INLINE void prepare(const Rope& rope, int64_t position, float* angles, Interleaved) {
  const int64_t half = rope.half;
  const float *cos = rope.cos + position * half, *sin = rope.sin + position * half;
  const auto clean = [](vfloat v) { return sizeof(T) == 4 ? v : v != v ? float_of(broadcast(0x7fc00000u)) : v; };
  for_vectors(half, [&](int64_t i, auto lanes) {
    store(angles + i, clean(load(cos + i, lanes)), lanes);
    store(angles + half + i, clean(load(sin + i, lanes) * rope.sign), lanes);
  });
  if (sizeof(T) == 4 || Interleaved::value) return;
  const vint lane = lane_numbers();
  for (int64_t i = 0; i + kPairs <= half; i += kPairs)
    for (float* group = angles + i; group <= angles + half + i; group += half) {
      const vfloat a = load(group, All{}), b = load(group + kWidth, All{});
      store(group, pick(a, b, 2 * lane), All{});
      store(group + kWidth, pick(a, b, 2 * lane + 1), All{});
    }
}

// ---- rows ------------------------------------------------------------------------------------------------------------

// Pairs (i, i + half), from i on.
template <class T>
FS_INLINE void rotate_halves_from(int64_t start, const T* x, T* y, const float* cos, const float* sin, int64_t half) {
  for_vectors(half - start, [=](int64_t at, auto lanes) {
    const int64_t i = start + at;
    const vfloat c = load(cos + i, lanes), s = load(sin + i, lanes);
    const vfloat low = load(x + i, lanes), high = load(x + half + i, lanes);
    store(y + i, low * c - high * s, lanes);
    store(y + half + i, high * c + low * s, lanes);
  });
}
FS_INLINE void rotate_halves(const float* x, float* y, const float* cos, const float* sin, int64_t half) {
  rotate_halves_from(0, x, y, cos, sin, half);
}
FS_INLINE void rotate_halves(const bf16* x, bf16* y, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kPairs <= half; i += kPairs) {
    const vfloat c0 = load(cos + i, All{}), c1 = load(cos + i + kWidth, All{});
    const vfloat s0 = load(sin + i, All{}), s1 = load(sin + i + kWidth, All{});
    const vuint low = load_pairs(x + i), high = load_pairs(x + half + i);
    const vfloat a0 = even_of(low), a1 = odd_of(low), b0 = even_of(high), b1 = odd_of(high);
    store_pairs(y + i, a0 * c0 - b0 * s0, a1 * c1 - b1 * s1);
    store_pairs(y + half + i, b0 * c0 + a0 * s0, b1 * c1 + a1 * s1);
  }
  if (i < half) rotate_halves_from(i, x, y, cos, sin, half);
}

// kWidth pairs (2i, 2i + 1).
FS_INLINE void rotate_pairs(const bf16* x, bf16* y, vfloat c, vfloat s) {
  const vuint pairs = load_pairs(x);
  const vfloat even = even_of(pairs), odd = odd_of(pairs);
  store_pairs(y, even * c - odd * s, odd * c + even * s);
}
FS_INLINE void rotate_pairs(const float* x, float* y, vfloat c, vfloat s) {
  const vfloat a = load(x, All{}), b = load(x + kWidth, All{});
  const vint lane = lane_numbers(), zipped = (lane >> 1) + (lane & 1) * kWidth;
  const vfloat even = pick(a, b, 2 * lane), odd = pick(a, b, 2 * lane + 1);
  const vfloat new_even = even * c - odd * s, new_odd = odd * c + even * s;
  store(y, pick(new_even, new_odd, zipped), All{});
  store(y + kWidth, pick(new_even, new_odd, zipped + kWidth / 2), All{});
}

FS_INLINE float get(const float* x) { return *x; }
FS_INLINE float get(const bf16* x) { return bf16_to_float(*x); }
FS_INLINE void put(float* y, float value) { *y = value; }
FS_INLINE void put(bf16* y, float value) { *y = float_to_bf16(value); }

template <class T>
FS_INLINE void rotate_interleaved(const T* x, T* y, const float* cos, const float* sin, int64_t half) {
  int64_t i = 0;
  for (; i + kWidth <= half; i += kWidth)
    rotate_pairs(x + 2 * i, y + 2 * i, load(cos + i, All{}), load(sin + i, All{}));
  for (; i < half; ++i) {
    const float even = get(x + 2 * i), odd = get(x + 2 * i + 1);
    put(y + 2 * i, even * cos[i] - odd * sin[i]);
    put(y + 2 * i + 1, odd * cos[i] + even * sin[i]);
  }
}

template <class T, class Interleaved>
FS_INLINE void rotate_row(const Rope& rope, const T* x, T* y, const float* angles, Interleaved) {
  if constexpr (Interleaved::value)
    rotate_interleaved(x, y, angles, angles + rope.half, rope.half);
  else
    rotate_halves(x, y, angles, angles + rope.half, rope.half);
  const int64_t rotated = 2 * rope.half;
  if (rotated < rope.head_dim && x != y)
    memcpy(y + rotated, x + rotated, static_cast<size_t>(rope.head_dim - rotated) * sizeof(T));
}

// `count` rows that lie strides apart, row j turned by the angles at angles + j * angle_stride.
template <class T, class Interleaved>
FS_INLINE void rotate_rows(const Rope& rope, const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t count,
                           const float* angles, int64_t angle_stride, Interleaved interleaved) {
  const int64_t dim = rope.head_dim;
  if (!rope.around_cache || y_stride != dim) {
    for (int64_t j = 0; j < count; ++j)
      rotate_row(rope, x + j * x_stride, y + j * y_stride, angles + j * angle_stride, interleaved);
    return;
  }
  alignas(64) T tile[kTile];
  for (int64_t start = 0; start < count; start += kTile / dim) {
    const int64_t n = min_of(kTile / dim, count - start);
    for (int64_t j = start; j < start + n; ++j)
      rotate_row(rope, x + j * x_stride, tile + (j - start) * dim, angles + j * angle_stride, interleaved);
    copy_around_cache(y + start * dim, tile, n * dim * static_cast<int64_t>(sizeof(T)));
  }
}

}  // namespace

FS_DEFINE(rope)(const void* x, void* y, const float* cos, const float* sin, const int64_t* positions, int64_t batch,
                int64_t seq, int64_t heads, int64_t head_dim, int64_t rotary_dim, int64_t x_batch_stride,
                int64_t x_seq_stride, int64_t x_head_stride, int64_t y_batch_stride, int64_t y_seq_stride,
                int64_t y_head_stride, int64_t offset, int32_t interleaved, int32_t backward, int32_t dtype) {
  if (head_dim <= 0 || heads <= 0) return;
  const int64_t bytes = batch * seq * heads * head_dim * (dtype == FS_F32 ? 4 : 2);
  const Rope rope = {cos, sin, positions, seq, heads, head_dim, rotary_dim / 2, offset, backward ? -1.0f : 1.0f,
                     goes_around_cache(bytes, x, y) && head_dim <= kTile};
  const bool heads_adjacent = y_head_stride <= y_seq_stride;
  const int64_t block = heads_adjacent ? 1 : min_of(seq, kPositionBlock);
  const int64_t grain = grain_rows(kRopeGrain, heads * head_dim);
  const int64_t threads = max_of(1, fs_internal_num_threads(batch * seq, grain));
  float* scratch = static_cast<float*>(fs_internal_scratch(threads * block * rotary_dim * static_cast<int64_t>(sizeof(float))));
  const auto rotate = [&](auto type, auto pairs) {
    using T = decltype(type);
    parallel_for(batch * seq, grain, [&](int64_t begin, int64_t end, int thread) {
      float* angles = scratch + thread * block * rotary_dim;
      for (int64_t at = begin, count; at < end; at += count) {
        const int64_t b = at / seq, s = at % seq;
        count = min_of(min_of(block, seq - s), end - at);
        for (int64_t j = 0; j < count; ++j)
          prepare<T>(rope, positions ? positions[at + j] : offset + s + j, angles + j * rotary_dim, pairs);
        const T* from = static_cast<const T*>(x) + b * x_batch_stride + s * x_seq_stride;
        T* to = static_cast<T*>(y) + b * y_batch_stride + s * y_seq_stride;
        if (heads_adjacent)
          rotate_rows(rope, from, x_head_stride, to, y_head_stride, heads, angles, 0, pairs);
        else
          for (int64_t h = 0; h < heads; ++h)
            rotate_rows(rope, from + h * x_head_stride, x_seq_stride, to + h * y_head_stride, y_seq_stride, count,
                        angles, rotary_dim, pairs);
      }
    });
  };
  with_type(dtype, [&](auto type) { with_flag(interleaved, [&](auto pairs) { rotate(type, pairs); }); });
}
