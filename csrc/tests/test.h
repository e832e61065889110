// A test is TEST(op, name) { ... }: it is run once for every variant this machine supports, with `isa` its index.
// KERNEL(x)(args) calls kernel x in that variant. Buffers are vectors of the exact size, so that AddressSanitizer
// sees every access beyond them.
#pragma once
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <random>
#include <vector>

#include "fullstride.h"

struct Test {
  const char *op, *name;
  void (*run)(int isa);
  Test* next;
  static Test* first;
  Test(const char* op, const char* name, void (*run)(int)) : op(op), name(name), run(run), next(first) { first = this; }
};

#define TEST(op, name)                                              \
  static void op##_##name(int isa);                                 \
  static Test register_##op##_##name(#op, #name, op##_##name);      \
  static void op##_##name([[maybe_unused]] int isa)

// By name, so that a library without the variants this machine lacks can be tested as well.
inline void* find_kernel(int isa, const char* name) {
  char symbol[128];
  snprintf(symbol, sizeof(symbol), "fs_%s_%s", fs_isa_name(isa), name);
  if (void* const found = dlsym(RTLD_DEFAULT, symbol)) return found;
  if (fs_isa_base(isa) >= 0) return find_kernel(fs_isa_base(isa), name);
  printf("%s is not in the library\n", symbol);
  exit(1);
}
#define KERNEL(name) (reinterpret_cast<decltype(&fs_portable_##name)>(find_kernel(isa, #name)))

// For kernels that this thread calls from now on, until the next test; without OpenMP nothing.
void set_num_threads(int num_threads);

extern int num_failures;
#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      ++num_failures;                                                                     \
      printf("%s:%d: %s: not true in %s\n", __FILE__, __LINE__, #condition, fs_isa_name(isa)); \
      return;                                                                             \
    }                                                                                     \
  } while (0)
// NaN is close to NaN, an infinity to itself.
#define CHECK_CLOSE(actual, expected, tolerance)                                          \
  do {                                                                                    \
    const double a_ = (actual), e_ = (expected);                                          \
    if (!(a_ == e_ || (isnan(a_) && isnan(e_)) || fabs(a_ - e_) <= (tolerance))) {        \
      ++num_failures;                                                                     \
      printf("%s:%d: %s is %.9g, expected %.9g, in %s\n", __FILE__, __LINE__, #actual, a_, e_, fs_isa_name(isa)); \
      return;                                                                             \
    }                                                                                     \
  } while (0)

// Nothing, one, odd, prime, one past each vector width and tile, and large enough for several threads.
inline const int64_t kSizes[] = {0, 1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 65, 127, 257, 513, 1025, 4099, 70001};

inline std::vector<float> random_floats(int64_t n, unsigned seed = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(engine);
  return values;
}

inline uint16_t to_bf16(float x) {
  uint32_t u = __builtin_bit_cast(uint32_t, x);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> result;
  for (float value : values) result.push_back(to_bf16(value));
  return result;
}
inline std::vector<float> from_bf16(const std::vector<uint16_t>& values) {
  std::vector<float> result;
  for (uint16_t value : values) result.push_back(from_bf16(value));
  return result;
}
