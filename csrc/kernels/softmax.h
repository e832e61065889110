// What softmax and cross-entropy share: the maximum of a row, and its exponentials with their sum.
//
// A row is read three times, from memory only once: the maximum, e^(x - maximum) into fp32, and the result from those.
// Each exponential is evaluated once and kept: storing it added 1 cycle a vector to the 5 of evaluating it (Zen 4, data
// in the first-level cache; evaluating it twice was not tried). A row of 32000 needs 125 KB, which the second-level
// cache holds; 200,000 classes overflow it and took about 10 % longer an element.
#pragma once
#include "kernel.h"
#include "simd/functions.h"

namespace {

// The exponentials of a row are added in blocks of this many, so that 200,000 of them lose no more than a few ulp.
constexpr int64_t kSumBlock = 4096;

// Where the exponentials of a row are kept: in the result itself if that is fp32, else in a scratch row of each thread.
struct ExpScratch {
  int64_t stride;
  float* base;

  ExpScratch(int64_t rows, int64_t cols, int64_t grain, int32_t dtype) : stride((cols + 15) / 16 * 16), base(nullptr) {
    if (dtype == FS_F32) return;
    const int64_t threads = max_of(1, fs_internal_num_threads(rows, grain));
    base = static_cast<float*>(fs_internal_scratch(threads * stride * 4));
  }
  float* row(int, float* result) const { return result; }
  float* row(int thread, bf16*) const { return base + thread * stride; }
};

// The largest of x over [0, n), or -infinity. A NaN may be passed over: it shows in the sum.
FS_INLINE float max_of_row(const float* x, int64_t n) {
  vfloat m0 = broadcast(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    m0 = max_of(load(x + i, All{}), m0);
    m1 = max_of(load(x + i + kWidth, All{}), m1);
    m2 = max_of(load(x + i + 2 * kWidth, All{}), m2);
    m3 = max_of(load(x + i + 3 * kWidth, All{}), m3);
  }
  for (; i + kWidth <= n; i += kWidth) m0 = max_of(load(x + i, All{}), m0);
  if (i < n) {
    const First rest{n - i};
    m1 = max_of(lane_numbers() < static_cast<int32_t>(rest.count) ? load(x + i, rest) : m1, m1);
  }
  return max_lane(max_of(max_of(m0, m1), max_of(m2, m3)));
}

// bf16 without widening: as integers, numbers of positive sign are in order, and those of negative sign in reverse. So
// the largest signed pattern is the maximum, unless all are negative: then it is the smallest unsigned one.
FS_INLINE float max_of_row(const bf16* x, int64_t n) {
  typedef int16_t Signed __attribute__((vector_size(4 * kWidth)));
  typedef uint16_t Unsigned __attribute__((vector_size(4 * kWidth)));
  constexpr int64_t kLanes = 2 * kWidth;
  int16_t largest = INT16_MIN;
  uint16_t smallest = 0xff80;  // -infinity, and every NaN of negative sign is above it
  int64_t i = 0;
  if (n >= kLanes) {
    Signed s = Signed{} + largest;
    Unsigned u = Unsigned{} + smallest;
    for (; i + kLanes <= n; i += kLanes) {
      Signed v;
      memcpy(&v, x + i, sizeof(v));
      s = v > s ? v : s;
      u = (Unsigned)v < u ? (Unsigned)v : u;
    }
    for (int l = 0; l < kLanes; ++l) {
      largest = s[l] > largest ? s[l] : largest;
      smallest = u[l] < smallest ? u[l] : smallest;
    }
  }
  for (; i < n; ++i) {
    const int16_t v = static_cast<int16_t>(x[i]);
    largest = v > largest ? v : largest;
    smallest = x[i] < smallest ? x[i] : smallest;
  }
  return bf16_to_float(largest >= 0 ? static_cast<bf16>(largest) : smallest);
}

// Sum of term(i, lanes) over the vectors of [begin, end); begin is a multiple of kWidth. Two partial sums and not the
// four of sum_of: the constants of the exponential fill the registers of AVX2 (Zen 4: 5.8 and not 6.3 cycles a vector).
template <class Term>
FS_INLINE float sum_in_blocks(int64_t begin, int64_t end, const Term& term) {
  float total = 0;
  for (int64_t i = begin; i < end;) {
    const int64_t stop = min_of(end, i + kSumBlock);
    vfloat s0 = {}, s1 = {};
    for (; i + 2 * kWidth <= stop; i += 2 * kWidth) {
      s0 += term(i, All{});
      s1 += term(i + kWidth, All{});
    }
    if (i + kWidth <= stop) {
      s0 += term(i, All{});
      i += kWidth;
    }
    if (i < stop) {
      s1 += keep(term(i, First{stop - i}), First{stop - i});
      i = stop;
    }
    total += sum(s0 + s1);
  }
  return total;
}

// Sum of term(i, lanes) over [0, n) without the element `skip`.
template <class Term>
FS_INLINE float sum_without(int64_t n, int64_t skip, const Term& term) {
  const int64_t at = skip / kWidth * kWidth;
  const auto others = [&](auto lanes) {
    return sum(keep(lane_numbers() == static_cast<int32_t>(skip - at) ? vfloat{} : term(at, lanes), lanes));
  };
  const float before = sum_in_blocks(0, at, term);
  const float around = at + kWidth <= n ? others(All{}) : others(First{n - at});
  return before + around + sum_in_blocks(at + kWidth, n, term);
}

}  // namespace
