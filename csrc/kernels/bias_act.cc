// Bias and activation in one pass over the rows; backward with the bias gradient in the same pass.
#include "kernels/activations.h"
#include "simd/around_cache.h"
#include "simd/pairs.h"
#include "kernels/rows.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kBiasActGrain = 16384;
// Columns done at a time, so that their bias and the sums of their gradient stay in the second-level cache.
constexpr int64_t kStrip = 8192;
// Narrow rows are taken together up to about this many elements.
constexpr int64_t kLongRow = 1024;

// The same numbers in rows long enough for vectors: of narrow rows several are taken as one, with the bias repeated;
// where there is nothing per column, all are. The last row may be shorter: `total` elements in all.
struct Folded {
  int64_t times, rows, cols, total;

  Folded(int64_t num_rows, int64_t num_cols, bool has_columns)
      : times(!has_columns ? num_rows : num_cols < kLongRow / 2 ? min_of(kLongRow / num_cols, num_rows) : 1),
        rows((num_rows + times - 1) / times), cols(times * num_cols), total(num_rows * num_cols) {}

  int64_t bias_cols() const { return cols / times; }
  // Elements of row r in columns begin to end; not more than 0 if it ends before.
  int64_t count(int64_t r, int64_t begin, int64_t end) const { return min_of(end, total - r * cols) - begin; }
};

FS_INLINE float as_float(float x) { return x; }
FS_INLINE float as_float(bf16 x) { return bf16_to_float(x); }

// The bias of columns begin to end in fp32, in the order of pairs of T, zeros behind it up to a whole pair.
template <class T>
FS_INLINE void copy_bias(const Folded& shape, const void* bias, int32_t dtype, int64_t begin, int64_t end,
                         float* copy) {
  with_type(dtype, [&](auto type) {
    using B = decltype(type);
    const B* from = static_cast<const B*>(bias);
    int64_t column = begin % shape.bias_cols();
    for (int64_t at = begin; at < end; at += kPair, copy += kPair) {
      const bool whole = shape.times == 1 && at + kPair <= end;
      if (whole && sizeof(T) == 4) {
        store_pair(copy, {load(from + at, All{}), load(from + at + kWidth, All{})});
      } else if (whole && sizeof(B) == 2) {
        store_pair(copy, load_pair(from + at));
      } else {
        float natural[kPair] = {};
        const int64_t n = min_of(kPair, end - at);
        for (int64_t l = 0; l < n; ++l, column = column + 1 < shape.bias_cols() ? column + 1 : 0) {
          const float value = as_float(from[shape.times == 1 ? at + l : column]);
          natural[l] = value == value ? value : __builtin_nanf("");  // the form of NaN that store_pair asks for
        }
        to_pair_order<T>(natural, copy);
      }
    }
  });
}

// dbias[begin .. end) from sums in the order of pairs of T, added up over the repetitions of the columns.
template <class T>
FS_INLINE void write_sums(const Folded& shape, const float* sums, float* dbias, int64_t begin, int64_t end) {
  int64_t column = begin;
  for (int64_t at = begin; at < end; at += kPair, sums += kPair) {
    if (shape.times == 1 && at + kPair <= end) {
      from_pair_order<T>(sums, dbias + at);
      continue;
    }
    column = shape.times == 1 ? at : column;
    float natural[kPair];
    from_pair_order<T>(sums, natural);
    for (int64_t l = 0; l < min_of(kPair, end - at); ++l, column = column + 1 < shape.bias_cols() ? column + 1 : 0)
      dbias[column] = at + l < shape.bias_cols() ? natural[l] : dbias[column] + natural[l];
  }
}

// body(r, begin, n, bias, sums) for n elements of row r from column `begin`, strip by strip: bias and sums are those
// of the strip, in the order of pairs of T, NULL where there is none. Then dbias (or NULL) from the sums.
template <class T, class Body>
FS_INLINE void for_strips(const Folded& shape, const void* bias, int32_t bias_dtype, float* dbias, const Body& body) {
  Blocks blocks(shape.rows, shape.cols, kBiasActGrain);
  if (dbias && shape.times > 1 && !blocks.by_rows) {  // a column stands in several places, which one thread must sum
    blocks.by_rows = true;
    blocks.grain = max_of(1, fs_internal_grain(kBiasActGrain) / shape.cols);
  }
  const int64_t padded = (shape.cols + kPair - 1) / kPair * kPair;
  // Threads that own rows sum over all columns; threads that own columns are done with a strip when they leave it.
  const int64_t bias_size = bias ? min_of(padded, kStrip) : 0;
  const int64_t sums_size = dbias ? (blocks.by_rows ? padded : min_of(padded, kStrip)) : 0;
  const int threads = blocks.threads();
  float* scratch = static_cast<float*>(fs_internal_scratch(threads * (bias_size + sums_size) * 4 + 4));
  float* all_sums = scratch + threads * bias_size;
  blocks.run([&](int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end, int thread) {
    for (int64_t begin = col_begin; begin < col_end; begin += kStrip) {
      const int64_t end = min_of(col_end, begin + kStrip), n = (end - begin + kPair - 1) / kPair * kPair;
      float* b = bias ? scratch + thread * bias_size : nullptr;
      float* s = dbias ? all_sums + thread * sums_size + (blocks.by_rows ? begin : 0) : nullptr;
      if (b) copy_bias<T>(shape, bias, bias_dtype, begin, end, b);
      if (s) memset(s, 0, static_cast<size_t>(n) * sizeof(float));
      for (int64_t r = row_begin; r < row_end; ++r) body(r, begin, shape.count(r, begin, end), b, s);
      if (s && !blocks.by_rows) write_sums<T>(shape, s, dbias, begin, end);
    }
  });
  if (!dbias || !blocks.by_rows) return;
  for (int t = 1; t < threads; ++t)
    for_vectors(padded, [=](int64_t i, auto lanes) {
      const float* more = all_sums + t * padded;
      store(all_sums + i, load(all_sums + i, lanes) + load(more + i, lanes), lanes);
    });
  write_sums<T>(shape, all_sums, dbias, 0, shape.cols);
}

// Around the cache only where y is aligned: the bias stands in the order of pairs, which begin where the row does.
template <class A, class T>
FS_INLINE void forward_row(const T* x, const float* bias, T* y, int64_t n, bool around_cache) {
  with_flag(bias, [=](auto has_bias) {
    for_pairs_to(y, n, around_cache && elements_before_aligned(y) == 0, [=](int64_t i, auto lanes) {
      Pair z = load_pair(x + i, lanes);
      if constexpr (has_bias.value) {
        const Pair b = load_pair(bias + i);
        z = {z.a + b.a, z.b + b.b};
      }
      store_pair(y + i, {A::value(z.a), A::value(z.b)}, lanes);
    });
  });
}

// `saved` is y for ReLU and x for the others. As in torch, a NaN lets the gradient of ReLU pass.
template <class A>
FS_INLINE vfloat times_slope(vfloat dy, vfloat saved) {
  if constexpr (__is_same(A, Relu))
    return saved <= 0.0f ? vfloat{} : dy;
  else
    return dy * A::both(saved).slope;
}

template <class A, class T>
FS_INLINE void backward_row(const T* dy, const T* saved, const float* bias, T* dx, float* sums, int64_t n,
                            bool around_cache) {
  const auto loop = [=](auto has_bias, auto has_sums) {
    for_pairs_to(dx, n, around_cache && elements_before_aligned(dx) == 0, [=](int64_t i, auto lanes) {
      Pair z = load_pair(saved + i, lanes);
      if constexpr (has_bias.value) {
        const Pair b = load_pair(bias + i);
        z = {z.a + b.a, z.b + b.b};
      }
      const Pair d = load_pair(dy + i, lanes);
      const Pair result = {times_slope<A>(d.a, z.a), times_slope<A>(d.b, z.b)};
      if constexpr (has_sums.value) {
        const Pair s = load_pair(sums + i);
        store_pair(sums + i, {s.a + result.a, s.b + result.b});
      }
      if constexpr (__is_same(A, Relu))
        store_exact_pair(dx + i, result, lanes);  // dy or 0
      else
        store_pair(dx + i, result, lanes);
    });
  };
  with_flag(sums, [&](auto has_sums) {
    if constexpr (__is_same(A, Relu))
      loop(No{}, has_sums);
    else
      with_flag(bias, [&](auto has_bias) { loop(has_bias, has_sums); });
  });
}

template <class T>
FS_INLINE void add_row(const T* dy, float* sums, int64_t n) {
  for_pairs(n, [=](int64_t i, auto lanes) {
    const Pair d = load_pair(dy + i, lanes), s = load_pair(sums + i);
    store_pair(sums + i, {s.a + d.a, s.b + d.b});
  });
}

// body(A{}) with A the activation of that number, "none" excepted.
template <class Body>
FS_INLINE void with_activation(int32_t activation, const Body& body) {
  if (activation == FS_RELU)
    body(Relu{});
  else if (activation == FS_GELU)
    body(Gelu{});
  else if (activation == FS_GELU_TANH)
    body(GeluTanh{});
  else
    body(Silu{});
}

}  // namespace

FS_DEFINE(bias_act_forward)(const void* x, const void* bias, void* y, int64_t rows, int64_t cols, int32_t activation,
                            int32_t dtype, int32_t bias_dtype) {
  if (rows * cols == 0) return;
  const Folded shape(rows, cols, bias);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const bool around_cache = goes_around_cache(shape.total * static_cast<int64_t>(sizeof(T)), x, y);
    const auto run = [&](auto act) {
      for_strips<T>(shape, bias, bias_dtype, nullptr, [&](int64_t r, int64_t begin, int64_t n, const float* b, float*) {
        forward_row<decltype(act)>(row<T>(x, r, shape.cols) + begin, b, row<T>(y, r, shape.cols) + begin, n,
                                   around_cache);
      });
    };
    if (activation == FS_NONE)
      run(Identity{});
    else
      with_activation(activation, run);
  });
}

FS_DEFINE(bias_act_backward)(const void* dy, const void* saved, const void* bias, void* dx, float* dbias, int64_t rows,
                             int64_t cols, int32_t activation, int32_t dtype, int32_t bias_dtype) {
  if (rows == 0 && dbias) memset(dbias, 0, static_cast<size_t>(cols) * sizeof(float));
  if (rows * cols == 0 || (activation == FS_NONE && !dbias)) return;
  if (activation <= FS_RELU) bias = nullptr;
  const Folded shape(rows, cols, bias || dbias);
  const int64_t width = shape.cols;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (activation == FS_NONE) {
      for_strips<T>(shape, nullptr, 0, dbias, [=](int64_t r, int64_t begin, int64_t n, const float*, float* sums) {
        add_row(row<T>(dy, r, width) + begin, sums, n);
      });
      return;
    }
    const bool around_cache = goes_around_cache(shape.total * static_cast<int64_t>(sizeof(T)), dy, dx);
    with_activation(activation, [&](auto act) {
      for_strips<T>(shape, bias, bias_dtype, dbias,
                    [=](int64_t r, int64_t begin, int64_t n, const float* b, float* sums) {
                      backward_row<decltype(act)>(row<T>(dy, r, width) + begin, row<T>(saved, r, width) + begin, b,
                                                  row<T>(dx, r, width) + begin, sums, n, around_cache);
                    });
    });
  });
}
