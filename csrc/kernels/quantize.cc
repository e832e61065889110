// Symmetric int8: q = round(x * 127 / absmax) with one scale, absmax / 127, for each row or each column.
#include "kernel.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kQuantizeGrain = 16384;

// Of |x| as patterns, where every infinity and NaN is above every number: the integer maximum sees them all.
FS_INLINE vint magnitude(vfloat x) { return (vint)(bits_of(x) & 0x7fffffffu); }
FS_INLINE vint max_of(vint a, vint b) { return a > b ? a : b; }

struct Factors {
  vfloat scale, inverse;
};
// Zeros for columns whose scale would be denormal, NaN and 0 for those with a value that is not finite.
FS_INLINE Factors factors_of(vint largest) {
  const vfloat absmax = float_of(largest);
  const vint normal = largest >= static_cast<int32_t>(bits_of(127 * 0x1p-126f));
  const vint finite = largest < 0x7f800000;
  const vfloat scale = normal ? absmax / 127.0f : vfloat{};
  return {finite ? scale : broadcast(__builtin_nanf("")), (normal & finite) ? 127.0f / absmax : vfloat{}};
}

template <class Lanes>
FS_INLINE void store_quantized(int8_t* q, vfloat x, vfloat inverse, Lanes lanes) {
  store_lanes(reinterpret_cast<uint8_t*>(q), narrow_to_bytes((vuint)round_to_int(x * inverse) & 0xffu), lanes);
}

template <class Lanes>
FS_INLINE vfloat load_quantized(const int8_t* q, Lanes lanes) {
  typedef int8_t vsigned __attribute__((vector_size(kWidth)));
  const vsigned bytes = load_lanes<vsigned>(q, lanes);
#if defined(__AVX512F__)
  return to_float((vint)_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
  return to_float((vint)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)bytes)));
#else
  return __builtin_convertvector(bytes, vfloat);
#endif
}

// scale_at(r, i, lanes): the scales of the vector at column i of row r.
template <class ScaleAt>
FS_INLINE void dequantize(const int8_t* q, void* y, int64_t rows, int64_t cols, int32_t dtype,
                          const ScaleAt& scale_at) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain_rows(kQuantizeGrain, cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        T* to = row<T>(y, r, cols);
        const int8_t* from = q + r * cols;
        for_vectors(cols, [&](int64_t i, auto lanes) {
          store(to + i, load_quantized(from + i, lanes) * scale_at(r, i, lanes), lanes);
        });
      }
    });
  });
}

}  // namespace

FS_DEFINE(quantize_rows)(const void* x, int8_t* q, float* scale, int64_t rows, int64_t cols, int32_t dtype) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain_rows(kQuantizeGrain, cols), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = row<T>(x, r, cols);
        int8_t* to = q + r * cols;
        vint largest = {};
        for_vectors(cols, [&](int64_t i, auto lanes) { largest = max_of(largest, magnitude(load(from + i, lanes))); });
        int32_t lane = 0;
        for (int l = 0; l < kWidth; ++l) lane = lane > largest[l] ? lane : largest[l];
        const Factors factors = factors_of(broadcast(lane));
        scale[r] = factors.scale[0];
        if (factors.inverse[0] == 0) {
          for (int64_t i = 0; i < cols; ++i) to[i] = 0;
          continue;
        }
        for_vectors(cols, [&](int64_t i, auto lanes) {
          store_quantized(to + i, load(from + i, lanes), factors.inverse, lanes);
        });
      }
    });
  });
}

// Two passes over the whole matrix. In panels of columns the second would read from the cache, but rows cut into short
// pieces come from memory at half the speed (1 to 4 MiB panels, 8192 x 4096 fp32), which is worse than reading twice.
FS_DEFINE(quantize_columns)(const void* x, int8_t* q, float* scale, int64_t rows, int64_t cols, int32_t dtype) {
  const int64_t grain = grain_rows(kQuantizeGrain, cols);
  const int64_t threads = max_of(1, fs_internal_num_threads(rows, grain));
  if (cols == 0) return;
  int32_t* scratch = static_cast<int32_t*>(fs_internal_scratch((threads + 1) * cols * 4));
  memset(scratch, 0, static_cast<size_t>(threads * cols * 4));
  float* inverse = reinterpret_cast<float*>(scratch + threads * cols);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    parallel_for(rows, grain, [=](int64_t begin, int64_t end, int thread) {
      int32_t* largest = scratch + thread * cols;
      for (int64_t r = begin; r < end; ++r) {
        const T* from = row<T>(x, r, cols);
        for_vectors(cols, [=](int64_t i, auto lanes) {
          const vint before = load_lanes<vint>(largest + i, lanes);
          store_lanes(largest + i, max_of(before, magnitude(load(from + i, lanes))), lanes);
        });
      }
    });
    for_vectors(cols, [=](int64_t i, auto lanes) {
      vint largest = {};
      for (int64_t t = 0; t < threads; ++t) largest = max_of(largest, load_lanes<vint>(scratch + t * cols + i, lanes));
      const Factors factors = factors_of(largest);
      store(scale + i, factors.scale, lanes);
      store(inverse + i, factors.inverse, lanes);
    });
    parallel_for(rows, grain, [=](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = row<T>(x, r, cols);
        int8_t* to = q + r * cols;
        for_vectors(cols, [=](int64_t i, auto lanes) {
          const vfloat factor = load(inverse + i, lanes), value = load(from + i, lanes);
          store_quantized(to + i, factor == 0.0f ? vfloat{} : value, factor, lanes);  // 0 * infinity is NaN
        });
      }
    });
  });
}

FS_DEFINE(dequantize_rows)(const int8_t* q, const float* scale, void* y, int64_t rows, int64_t cols, int32_t dtype) {
  dequantize(q, y, rows, cols, dtype, [=](int64_t r, int64_t, auto) { return broadcast(scale[r]); });
}

FS_DEFINE(dequantize_columns)(const int8_t* q, const float* scale, void* y, int64_t rows, int64_t cols, int32_t dtype) {
  dequantize(q, y, rows, cols, dtype, [=](int64_t, int64_t i, auto lanes) { return load(scale + i, lanes); });
}
