// Gated linear units: SwiGLU and GEGLU, forward and backward. Gate and up may be the halves of one tensor.
#include "kernels/activations.h"
#include "simd/around_cache.h"
#include "simd/pairs.h"
#include "kernels/rows.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kGluGrain = 16384;

template <class Body>
FS_INLINE void with_gate(int32_t activation, const Body& body) {
  if (activation == FS_GELU)
    body(Gelu{});
  else if (activation == FS_GELU_TANH)
    body(GeluTanh{});
  else
    body(Silu{});
}

template <class A, class T>
FS_INLINE void forward_row(const T* gate, const T* up, T* y, int64_t n, bool around_cache) {
  for_tiles(y, 0, n, around_cache, [=](T* target, int64_t start, int64_t count) {
    for_pairs(count, [=](int64_t i, auto lanes) {
      const Pair g = load_pair(gate + start + i, lanes), u = load_pair(up + start + i, lanes);
      store_pair(target + i, {A::value(g.a) * u.a, A::value(g.b) * u.b}, lanes);
    });
  });
}

template <class A, class T>
FS_INLINE void backward_row(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n, bool around_cache) {
  for_tiles(dgate, 0, n, around_cache, [=](T* dgate_target, int64_t start, int64_t count) {
    for_tiles(dup + start, 0, count, around_cache, [=](T* dup_target, int64_t, int64_t) {
      for_pairs(count, [=](int64_t i, auto lanes) {
        const Pair d = load_pair(dy + start + i, lanes), g = load_pair(gate + start + i, lanes);
        const Pair u = load_pair(up + start + i, lanes);
        const ValueAndSlope a = A::both(g.a), b = A::both(g.b);
        store_pair(dgate_target + i, {d.a * u.a * a.slope, d.b * u.b * b.slope}, lanes);
        store_pair(dup_target + i, {d.a * a.value, d.b * b.value}, lanes);
      });
    });
  });
}

}  // namespace

FS_DEFINE(glu_forward)(const void* gate, int64_t gate_stride, const void* up, int64_t up_stride, void* y, int64_t rows,
                       int64_t cols, int32_t activation, int32_t dtype) {
  const int64_t total = rows * cols;
  if (gate_stride == cols && up_stride == cols) rows = 1, cols = total;
  const Blocks blocks(rows, cols, kGluGrain);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const bool around_cache = goes_around_cache(total * static_cast<int64_t>(sizeof(T)), gate, y);
    with_gate(activation, [&](auto act) {
      blocks.run([&](int64_t row_begin, int64_t row_end, int64_t begin, int64_t end, int) {
        for (int64_t r = row_begin; r < row_end; ++r)
          forward_row<decltype(act)>(row<T>(gate, r, gate_stride) + begin, row<T>(up, r, up_stride) + begin,
                                     row<T>(y, r, cols) + begin, end - begin, around_cache);
      });
    });
  });
}

FS_DEFINE(glu_backward)(const void* dy, const void* gate, int64_t gate_stride, const void* up, int64_t up_stride,
                        void* dgate, int64_t dgate_stride, void* dup, int64_t dup_stride, int64_t rows, int64_t cols,
                        int32_t activation, int32_t dtype) {
  const int64_t total = rows * cols;
  if (gate_stride == cols && up_stride == cols && dgate_stride == cols && dup_stride == cols) rows = 1, cols = total;
  const Blocks blocks(rows, cols, kGluGrain);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const bool in_place = dgate == gate || dup == up || dup == dy;
    const bool around_cache = !in_place && goes_around_cache(2 * total * static_cast<int64_t>(sizeof(T)), dy, dgate);
    with_gate(activation, [&](auto act) {
      blocks.run([&](int64_t row_begin, int64_t row_end, int64_t begin, int64_t end, int) {
        for (int64_t r = row_begin; r < row_end; ++r)
          backward_row<decltype(act)>(row<T>(dy, r, cols) + begin, row<T>(gate, r, gate_stride) + begin,
                                      row<T>(up, r, up_stride) + begin, row<T>(dgate, r, dgate_stride) + begin,
                                      row<T>(dup, r, dup_stride) + begin, end - begin, around_cache);
      });
    });
  });
}
