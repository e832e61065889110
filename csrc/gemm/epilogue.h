// What becomes of the sums of a tile once they are complete: bias, activation, an older value, rounding, their squares.
#pragma once
#include "gemm/panels.h"
#include "kernels/activations.h"

namespace {

struct Epilogue {
  void *c, *pre;  // pre or NULL: receives the sums with bias, before the activation
  int64_t row;    // elements from one row of both to the next
  int32_t dtype, activation;
  bool accumulate;
  const void* given_bias;  // or NULL
  int32_t bias_dtype;
  const float* bias = nullptr;  // the same in fp32, by widen_bias

  bool plain() const { return !given_bias && !pre && activation == FS_NONE; }
  // room: for n floats.
  void widen_bias(float* room, int64_t n) {
    if (!given_bias) return;
    bias = room;
    with_type(bias_dtype, [&](auto type) {
      const auto* from = static_cast<const decltype(type)*>(given_bias);
      for_vectors(n, [&](int64_t i, auto lanes) { store(room + i, load(from + i, lanes), lanes); });
    });
  }
  int64_t element() const { return dtype == FS_F32 ? 4 : 2; }

  // c = activation(sums + bias) for rows x cols at row `at`, column `col`; with accumulate c + sums. Sums: `stride` apart.
  void finish(const float* sums, int64_t stride, int64_t at, int64_t col, int64_t rows, int64_t cols) const {
    with_type(dtype, [&](auto type) {
      using T = decltype(type);
      switch (activation) {
        case FS_RELU: return finish_as<Relu, T>(sums, stride, at, col, rows, cols);
        case FS_GELU: return finish_as<Gelu, T>(sums, stride, at, col, rows, cols);
        case FS_GELU_TANH: return finish_as<GeluTanh, T>(sums, stride, at, col, rows, cols);
        case FS_SILU: return finish_as<Silu, T>(sums, stride, at, col, rows, cols);
        default: return finish_as<Identity, T>(sums, stride, at, col, rows, cols);
      }
    });
  }

  // Asks for the lines of a tile of c, which may lie in memory, into the second-level cache: the first has no more places
  // for so many at once (4096 x 4096 x 128 added to fp32 on Zen 4: 330 GFLOP/s, by prefetchw 314, not asked for 303).
  FS_INLINE void fetch(int64_t at, int64_t col, int64_t rows, int64_t cols) const {
    const char* line = static_cast<const char*>(c) + (at * row + col) * element();
    for (int64_t r = 0; r < rows; ++r, line += row * element()) {
      __builtin_prefetch(line, 0, 2);
      __builtin_prefetch(line + cols * element() - 1, 0, 2);
    }
  }

  // The sum of the squares of what stands in a tile of c now. Squares of bf16 are exact in fp32, and so few of them are
  // summed there, if the sum shows that nothing overflowed and nothing that counts vanished.
  double squares(int64_t at, int64_t col, int64_t rows, int64_t cols) const {
    if (dtype == FS_BF16) {
      vfloat even = {}, odd = {};
      for_squares<bf16>(at, col, rows, cols, [&](int64_t r, vfloat x) { (r & 1 ? odd : even) += x * x; });
      const float quick = sum(even + odd);
      if (quick > 0x1p-80f && quick < __builtin_inff()) return quick;
    }
    SumOfSquares sum;
    with_type(dtype, [&](auto type) {
      for_squares<decltype(type)>(at, col, rows, cols, [&](int64_t, vfloat x) { sum.add(x); });
    });
    return sum.total();
  }

 private:
  template <class T, class Body>
  FS_INLINE void for_squares(int64_t at, int64_t col, int64_t rows, int64_t cols, const Body& body) const {
    const T* from = static_cast<const T*>(c) + at * row + col;
    for (int64_t r = 0; r < rows; ++r, from += row)
      for_vectors(cols, [&](int64_t i, auto lanes) { body(r, load(from + i, lanes)); });
  }
  template <class Activation, class T>
  __attribute__((noinline)) void finish_as(const float* sums, int64_t stride, int64_t at, int64_t col, int64_t rows,
                                           int64_t cols) const {
    T* const to = static_cast<T*>(c) + at * row + col;
    T* const before = pre ? static_cast<T*>(pre) + at * row + col : nullptr;
    for (int64_t r = 0; r < rows; ++r, sums += stride)
      for_vectors(cols, [&](int64_t i, auto lanes) {
        vfloat z = load(sums + i, lanes);
        if (bias) z += load(bias + col + i, lanes);
        if (accumulate) z += load(to + r * row + i, lanes);
        if (before) store(before + r * row + i, z, lanes);
        store(to + r * row + i, Activation::value(z), lanes);
      });
  }
};

}  // namespace
