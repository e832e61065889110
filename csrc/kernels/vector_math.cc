// Functions of every element, forward and backward; sums, products and multiples of elements.
#include "simd/functions.h"

#include "simd/around_cache.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kVectorMathGrain = 16384;

// Each function with its derivative, as a function of what is cheapest to keep: the result y or the input x.
struct Exp {
  static FS_INLINE vfloat value(vfloat x) { return exp(x); }
  static FS_INLINE vfloat slope(vfloat y) { return y; }
};
struct Log {
  static FS_INLINE vfloat value(vfloat x) { return log(x); }
  static FS_INLINE vfloat slope(vfloat x) { return 1.0f / x; }
};
struct Sqrt {
  static FS_INLINE vfloat value(vfloat x) { return sqrt(x); }
  static FS_INLINE vfloat slope(vfloat y) { return 0.5f / y; }
};
struct Rsqrt {
  static FS_INLINE vfloat value(vfloat x) { return rsqrt(x); }
  static FS_INLINE vfloat slope(vfloat y) { return -0.5f * y * y * y; }
};
struct Tanh {
  static FS_INLINE vfloat value(vfloat x) { return tanh(x); }
  static FS_INLINE vfloat slope(vfloat y) { return (1.0f - y) * (1.0f + y); }
};
struct Sigmoid {
  static FS_INLINE vfloat value(vfloat x) { return sigmoid(x); }
  static FS_INLINE vfloat slope(vfloat y) { return y * (1.0f - y); }
};
struct Sin {
  static FS_INLINE vfloat value(vfloat x) { return sin(x); }
  static FS_INLINE vfloat slope(vfloat x) { return cos(x); }
};
struct Cos {
  static FS_INLINE vfloat value(vfloat x) { return cos(x); }
  static FS_INLINE vfloat slope(vfloat x) { return -sin(x); }
};
struct Erf {
  static FS_INLINE vfloat value(vfloat x) { return erf(x); }
  static FS_INLINE vfloat slope(vfloat x) { return 1.128379167f * exp(-(x * x)); }
};

// body(F{}) with F the struct of that function.
template <class Body>
FS_INLINE void with_function(int32_t function, const Body& body) {
  switch (function) {
    case FS_EXP: return body(Exp{});
    case FS_LOG: return body(Log{});
    case FS_SQRT: return body(Sqrt{});
    case FS_RSQRT: return body(Rsqrt{});
    case FS_TANH: return body(Tanh{});
    case FS_SIGMOID: return body(Sigmoid{});
    case FS_SIN: return body(Sin{});
    case FS_COS: return body(Cos{});
    default: return body(Erf{});
  }
}

// A NaN in the form that store_pair asks for.
FS_INLINE vfloat quiet(vfloat x) { return x != x ? float_of((bits_of(x) & 0xffff0000u) | 0x400000u) : x; }

// The results of f(i, lanes), pair by pair, for n elements. bf16 takes two loops over a tile in L1: rounding at the
// end of every chain makes it longer than what the scheduler of Zen 4 sees (exp: 18 cycles a vector of 8 in one
// loop, 13 in two).
template <class T, class F>
FS_INLINE void store_all(T* y, int64_t n, bool around_cache, const F& f) {
  if constexpr (sizeof(T) == 4) {
    for_pairs_to(y, n, around_cache, [&](int64_t i, auto lanes) { store_pair(y + i, f(i, lanes), lanes); });
  } else {
    constexpr int64_t kTile = 512;
    alignas(64) float tile[kTile];
    // The first tile ends where y is aligned, so that all others begin there.
    int64_t count = around_cache ? elements_before_aligned(y) : 0;
    for (int64_t start = 0; start < n; start += count, count = 0) {
      count = min_of(count ? count : kTile, n - start);
      for_pairs(count, [&](int64_t i, auto lanes) { store_pair(tile + i, f(start + i, lanes)); });
      for_pairs_to(y + start, count, around_cache, [&](int64_t i, auto lanes) {
        const Pair v = load_pair(tile + i);
        if (__builtin_expect(any((v.a != v.a) | (v.b != v.b)), 0))
          store_pair(y + start + i, {quiet(v.a), quiet(v.b)}, lanes);
        else
          store_pair(y + start + i, v, lanes);
      });
    }
  }
}

// y[i] = f(a[i], b[i]). These stream: unlike above, rounding hides behind the loads. What f makes of NaN in bf16 has
// the form that store_pair asks for.
template <class F>
FS_INLINE void combine(const void* a, const void* b, void* y, int64_t n, int32_t dtype, const F& f) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const T *left = static_cast<const T*>(a), *right = static_cast<const T*>(b);
    const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(T)), a, y) && b != y;
    parallel_for(n, fs_internal_grain(kVectorMathGrain), [&](int64_t begin, int64_t end, int) {
      T* to = static_cast<T*>(y) + begin;
      for_pairs_to(to, end - begin, around_cache, [=](int64_t i, auto lanes) {
        const Pair v = load_pair(left + begin + i, lanes), w = load_pair(right + begin + i, lanes);
        store_pair(to + i, {f(v.a, w.a), f(v.b, w.b)}, lanes);
      });
    });
  });
}

}  // namespace

FS_DEFINE(vector_add)(const void* a, const void* b, void* y, int64_t n, int32_t dtype) {
  combine(a, b, y, n, dtype, [](vfloat v, vfloat w) { return v + w; });
}

FS_DEFINE(vector_mul)(const void* a, const void* b, void* y, int64_t n, int32_t dtype) {
  combine(a, b, y, n, dtype, [](vfloat v, vfloat w) { return v * w; });
}

FS_DEFINE(vector_scale)(const void* x, float factor, void* y, int64_t n, int32_t dtype) {
  const float by = factor == factor ? factor : __builtin_nanf("");  // without a payload, which bf16 could not round
  combine(x, x, y, n, dtype, [=](vfloat v, vfloat) { return by * v; });
}

FS_DEFINE(vector_function_forward)(const void* x, void* y, int64_t n, int32_t function, int32_t dtype) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = static_cast<const T*>(x);
    const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(T)), x, y);
    with_function(function, [&](auto f) {
      parallel_for(n, fs_internal_grain(kVectorMathGrain), [&](int64_t begin, int64_t end, int) {
        store_all(static_cast<T*>(y) + begin, end - begin, around_cache, [=](int64_t i, auto lanes) {
          const Pair v = load_pair(from + begin + i, lanes);
          return Pair{f.value(v.a), f.value(v.b)};
        });
      });
    });
  });
}

FS_DEFINE(vector_function_backward)(const void* dy, const void* saved, void* dx, int64_t n, int32_t function,
                                    int32_t dtype) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const T *gradient = static_cast<const T*>(dy), *kept = static_cast<const T*>(saved);
    const bool around_cache = goes_around_cache(n * static_cast<int64_t>(sizeof(T)), dy, dx);
    with_function(function, [&](auto f) {
      parallel_for(n, fs_internal_grain(kVectorMathGrain), [&](int64_t begin, int64_t end, int) {
        store_all(static_cast<T*>(dx) + begin, end - begin, around_cache, [=](int64_t i, auto lanes) {
          const Pair d = load_pair(gradient + begin + i, lanes), v = load_pair(kept + begin + i, lanes);
          return Pair{d.a * f.slope(v.a), d.b * f.slope(v.b)};
        });
      });
    });
  });
}
