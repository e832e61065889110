// FULLSTRIDE_EXHAUSTIVE=exp (or any other function, or "all") runs that function over all 2^32 patterns in every variant,
// or in the one FULLSTRIDE_ISA names, and prints the worst error and where it is: about a minute and a half for one
// function in one variant. Without it the tests take every 40009th pattern and what lies around the seams.
#include <stdlib.h>
#include <string.h>

#include "test.h"

namespace {

struct Function {
  const char* name;
  int32_t code;
  double (*reference)(double);
  double bound;  // ulp, as in ops/vector_math.py
};
const Function kFunctions[] = {
    {"exp", FS_EXP, [](double x) { return exp(x); }, 1.1},
    {"log", FS_LOG, [](double x) { return log(x); }, 1.0},
    {"sqrt", FS_SQRT, [](double x) { return sqrt(x); }, 0.5},
    {"rsqrt", FS_RSQRT, [](double x) { return 1 / sqrt(x); }, 1.5},
    {"tanh", FS_TANH, [](double x) { return tanh(x); }, 1.5},
    {"sigmoid", FS_SIGMOID, [](double x) { return 1 / (1 + exp(-x)); }, 2.5},
    {"sin", FS_SIN, [](double x) { return sin(x); }, 1.6},
    {"cos", FS_COS, [](double x) { return cos(x); }, 1.6},
    {"erf", FS_ERF, [](double x) { return erf(x); }, 1.4},
};

struct KeepDenormals {
  KeepDenormals() { fs_set_flush_denormals(0); }
  ~KeepDenormals() { fs_set_flush_denormals(1); }
};

float from_pattern(uint32_t pattern) { return __builtin_bit_cast(float, pattern); }
uint32_t pattern_of(float x) { return __builtin_bit_cast(uint32_t, x); }

// |y - exact| in units of the last place of fp32 at exact, or 0.5 where y is exact rounded. A wrong sign, and NaN
// against a number, are 1e9.
double error_in_ulp(float y, double exact) {
  if (pattern_of(y) == pattern_of(static_cast<float>(exact))) return 0.5;  // most of them, and cheap
  if (isnan(y) || isnan(exact)) return isnan(y) && isnan(exact) ? 0 : 1e9;
  if (signbit(y) != signbit(exact)) return 1e9;
  const double top = ldexp(1, 128);  // where infinity stands when something rounds to it
  const double value = isinf(y) ? top : fabs(y), target = fabs(exact) > top ? top : fabs(exact);
  int exponent = -200;
  if (target > 0) frexp(target, &exponent);
  return fabs(value - target) / ldexp(1, exponent < -125 ? -149 : exponent - 24);
}

struct Worst {
  double error = 0;
  float at = 0;
};

// The worst error over the patterns first, first + stride, ... of [first, last].
Worst worst_error(int isa, const Function& f, uint64_t first, uint64_t last, uint64_t stride) {
  constexpr int64_t kChunk = 8192;  // below the grain: one thread
  std::vector<float> x(kChunk), y(kChunk);
  Worst worst;
  for (uint64_t pattern = first; pattern <= last;) {
    int64_t n = 0;
    for (; n < kChunk && pattern <= last; pattern += stride) x[n++] = from_pattern(static_cast<uint32_t>(pattern));
    KERNEL(vector_function_forward)(x.data(), y.data(), n, f.code, FS_F32);
    for (int64_t i = 0; i < n; ++i) {
      const double error = error_in_ulp(y[i], f.reference(x[i]));
      if (error > worst.error) worst = {error, x[i]};
    }
  }
  return worst;
}

}  // namespace

TEST(vector_math, stays_within_its_bound_over_the_whole_range) {
  const KeepDenormals keep;
  for (const Function& f : kFunctions) {
    const Worst worst = worst_error(isa, f, 0, UINT32_MAX, 40009);
    if (worst.error > f.bound) printf("%s: %.4f ulp at %.9g\n", f.name, worst.error, worst.at);
    CHECK(worst.error <= f.bound);
  }
}

TEST(vector_math, stays_within_its_bound_around_the_seams) {
  const KeepDenormals keep;
  std::vector<float> seams = {0, 1e-38f, 1.17549435e-38f, 0.625f, 0.70710678f, 0.9217f, 1, 1.41421356f, 4, 9.01f, 17.3f,
                              87.33655f, 88.72284f, 89, 103.28f, 103.972f, 104, 100000, 3.4028235e38f, INFINITY};
  for (int k = 1; k < 100; k += 2) {
    seams.push_back(static_cast<float>(k * M_LN2 / 2));  // where exp changes its power of two
    seams.push_back(static_cast<float>(k * M_PI / 4));   // where sin and cos change their quarter,
    seams.push_back(static_cast<float>(k * M_PI / 2));   // and where one of them is nearly zero
    seams.push_back(static_cast<float>(k * 499 * M_PI / 2));
  }
  for (const Function& f : kFunctions)
    for (const float seam : seams)
      for (const float side : {seam, -seam}) {
        const uint64_t low = pattern_of(side) & 0x80000000u, middle = pattern_of(side);
        const Worst worst = worst_error(isa, f, middle < low + 200 ? low : middle - 200, middle + 200, 1);
        if (worst.error > f.bound) printf("%s: %.4f ulp at %.9g\n", f.name, worst.error, worst.at);
        CHECK(worst.error <= f.bound);
      }
}

TEST(vector_math, flushed_denormals_are_zeros_of_their_sign) {
  for (const Function& f : kFunctions)
    for (const float x : {1e-40f, -1e-40f}) {
      float y = 7, zero = copysignf(0, x), expected = 7;
      KERNEL(vector_function_forward)(&x, &y, 1, f.code, FS_F32);
      KERNEL(vector_function_forward)(&zero, &expected, 1, f.code, FS_F32);
      CHECK(pattern_of(y) == pattern_of(expected));
    }
  float x = -95, y = 7;
  KERNEL(vector_function_forward)(&x, &y, 1, FS_EXP, FS_F32);
  CHECK(pattern_of(y) == 0);
}

TEST(vector_math, sizes_and_places_do_not_matter) {
  for (const Function& f : kFunctions)
    for (const int64_t n : kSizes) {
      const auto x = random_floats(n);
      std::vector<float> y(n), single(1);
      auto in_place = x;
      KERNEL(vector_function_forward)(x.data(), y.data(), n, f.code, FS_F32);
      KERNEL(vector_function_forward)(in_place.data(), in_place.data(), n, f.code, FS_F32);
      for (int64_t i = 0; i < n; ++i) CHECK(pattern_of(y[i]) == pattern_of(in_place[i]));
      for (int64_t i = 0; i < n; i += 1 + n / 20) {
        KERNEL(vector_function_forward)(&x[i], single.data(), 1, f.code, FS_F32);
        CHECK(pattern_of(single[0]) == pattern_of(y[i]));
      }
    }
}

TEST(vector_math, results_larger_than_the_cache_are_the_same) {
  const int64_t n = (5 << 20) + 3;
  auto x = random_floats(n);
  std::vector<float> y(n);
  KERNEL(vector_function_forward)(x.data(), y.data(), n, FS_EXP, FS_F32);
  KERNEL(vector_function_forward)(x.data(), x.data(), n, FS_EXP, FS_F32);
  CHECK(memcmp(x.data(), y.data(), n * sizeof(float)) == 0);
}

TEST(vector_math, bf16_is_the_fp32_result_rounded) {
  const int64_t n = 65536;
  std::vector<uint16_t> x(n), y(n);
  std::vector<float> wide(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<uint16_t>(i);
  for (const Function& f : kFunctions) {
    KERNEL(vector_function_forward)(x.data(), y.data(), n, f.code, FS_BF16);
    const auto x_wide = from_bf16(x);
    KERNEL(vector_function_forward)(x_wide.data(), wide.data(), n, f.code, FS_F32);
    for (int64_t i = 0; i < n; ++i) CHECK(isnan(wide[i]) ? isnan(from_bf16(y[i])) : y[i] == to_bf16(wide[i]));
  }
}

TEST(vector_math, backward_is_the_derivative) {
  for (const Function& f : kFunctions)
    for (const int64_t n : {0, 1, 9, 67}) {
      std::vector<float> x(n), y(n), dx(n);
      const auto dy = random_floats(n, 2);
      for (int64_t i = 0; i < n; ++i) x[i] = 0.1f + 2.0f * static_cast<float>(i) / 67;
      KERNEL(vector_function_forward)(x.data(), y.data(), n, f.code, FS_F32);
      const bool from_y = f.code == FS_EXP || f.code == FS_SQRT || f.code == FS_RSQRT || f.code == FS_TANH || f.code == FS_SIGMOID;
      const auto& saved = from_y ? y : x;
      KERNEL(vector_function_backward)(dy.data(), saved.data(), dx.data(), n, f.code, FS_F32);
      for (int64_t i = 0; i < n; ++i) {
        const double slope = (f.reference(x[i] + 1e-5) - f.reference(x[i] - 1e-5)) / 2e-5;
        CHECK_CLOSE(dx[i], dy[i] * slope, 2e-6 * (1 + fabs(dx[i])));
      }
      const auto dy_narrow = to_bf16(dy), saved_narrow = to_bf16(saved);
      const auto dy_wide = from_bf16(dy_narrow), saved_wide = from_bf16(saved_narrow);
      std::vector<uint16_t> dx_narrow(n);
      KERNEL(vector_function_backward)(dy_narrow.data(), saved_narrow.data(), dx_narrow.data(), n, f.code, FS_BF16);
      KERNEL(vector_function_backward)(dy_wide.data(), saved_wide.data(), dx.data(), n, f.code, FS_F32);
      for (int64_t i = 0; i < n; ++i) CHECK(dx_narrow[i] == to_bf16(dx[i]));
    }
}

namespace {

constexpr float kFactor = -1.7f;
// add, mul, scale of T, which the kernels round once, in that order.
template <class T>
void combine(int isa, int which, const T* a, const T* b, T* y, int64_t n) {
  const int32_t dtype = sizeof(T) == 4 ? FS_F32 : FS_BF16;
  if (which == 0) KERNEL(vector_add)(a, b, y, n, dtype);
  if (which == 1) KERNEL(vector_mul)(a, b, y, n, dtype);
  if (which == 2) KERNEL(vector_scale)(a, kFactor, y, n, dtype);
}
float combined(int which, float a, float b) { return which == 0 ? a + b : which == 1 ? a * b : kFactor * a; }

}  // namespace

TEST(vector_math, sums_products_and_multiples_are_rounded_once_at_every_size) {
  for (int which = 0; which < 3; ++which)
    for (const int64_t n : kSizes) {
      const auto a = random_floats(n, 3), b = random_floats(n, 4);
      std::vector<float> y(n);
      combine(isa, which, a.data(), b.data(), y.data(), n);
      for (int64_t i = 0; i < n; ++i) CHECK(pattern_of(y[i]) == pattern_of(combined(which, a[i], b[i])));
      const auto narrow_a = to_bf16(a), narrow_b = to_bf16(b);
      std::vector<uint16_t> narrow(n);
      combine(isa, which, narrow_a.data(), narrow_b.data(), narrow.data(), n);
      for (int64_t i = 0; i < n; ++i)
        CHECK(narrow[i] == to_bf16(combined(which, from_bf16(narrow_a[i]), from_bf16(narrow_b[i]))));
    }
}

TEST(vector_math, sums_products_and_multiples_may_be_written_over_what_they_are_of) {
  for (int which = 0; which < 3; ++which)
    for (const int64_t n : {9, 70001, (5 << 20) + 3}) {  // the last is larger than the cache
      const auto a = random_floats(n, 3), b = random_floats(n, 4);
      std::vector<float> y(n);
      combine(isa, which, a.data(), b.data(), y.data(), n);
      auto first = a, second = b;
      combine(isa, which, first.data(), b.data(), first.data(), n);
      CHECK(memcmp(first.data(), y.data(), n * sizeof(float)) == 0);
      if (which == 2) continue;
      combine(isa, which, a.data(), second.data(), second.data(), n);
      CHECK(memcmp(second.data(), y.data(), n * sizeof(float)) == 0);
    }
}

TEST(vector_math, sums_products_and_multiples_of_every_bf16_keep_infinity_and_nan) {
  const int64_t n = 65536;
  std::vector<uint16_t> a(n), y(n);
  for (int64_t i = 0; i < n; ++i) a[i] = static_cast<uint16_t>(i);
  const KeepDenormals keep;
  for (const float other : {0.0f, 3.0f, INFINITY, NAN}) {
    const std::vector<uint16_t> b(n, to_bf16(other));
    for (int which = 0; which < 3; ++which) {
      combine(isa, which, a.data(), b.data(), y.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        const float expected = combined(which, from_bf16(a[i]), other);
        CHECK(isnan(expected) ? isnan(from_bf16(y[i])) : y[i] == to_bf16(expected));
      }
    }
  }
  for (const uint32_t payload : {0x7fffffffu, 0x7f800001u, 0xffc00000u}) {
    KERNEL(vector_scale)(a.data(), from_pattern(payload), y.data(), n, FS_BF16);
    for (int64_t i = 0; i < n; ++i) CHECK(isnan(from_bf16(y[i])));
  }
}

TEST(vector_math, exhaustive) {
  const char *wish = getenv("FULLSTRIDE_EXHAUSTIVE"), *variant = getenv("FULLSTRIDE_ISA");
  if (!wish || (variant && strcmp(variant, fs_isa_name(isa)))) return;
  const KeepDenormals keep;
  for (const Function& f : kFunctions) {
    if (strcmp(wish, "all") && strcmp(wish, f.name)) continue;
    const Worst worst = worst_error(isa, f, 0, UINT32_MAX, 1);
    printf("%s in %s: %.4f ulp at %.9g, bound %g\n", f.name, fs_isa_name(isa), worst.error, worst.at, f.bound);
    fflush(stdout);
    num_failures += worst.error > f.bound;
  }
}
