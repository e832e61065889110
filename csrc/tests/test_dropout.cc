#include "test.h"

namespace {

uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
bool is_kept(uint64_t seed, uint64_t step, uint64_t index, int64_t threshold) {
  const uint64_t key = mix64(mix64(mix64(mix64(seed) + step)) + (index >> 32));
  uint32_t x = static_cast<uint32_t>(index) ^ static_cast<uint32_t>(key);
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= static_cast<uint32_t>(key >> 32);
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return static_cast<int32_t>(x) >= threshold - (int64_t{1} << 31);
}

}  // namespace

TEST(dropout, equals_its_definition) {
  const int64_t threshold = 1288490189;  // 0.3
  for (int64_t first : {int64_t{0}, (int64_t{1} << 32) - 20, (int64_t{5} << 32) + 3}) {
    for (int64_t n : kSizes) {
      const auto x = random_floats(n);
      const auto half = to_bf16(x);
      std::vector<float> y(n);
      std::vector<uint16_t> y_half(n);
      KERNEL(dropout)(x.data(), y.data(), n, 7, 9, first, threshold, 1.25f, FS_F32);
      KERNEL(dropout)(half.data(), y_half.data(), n, 7, 9, first, threshold, 1.25f, FS_BF16);
      for (int64_t i = 0; i < n; ++i) {
        const float factor = is_kept(7, 9, static_cast<uint64_t>(first + i), threshold) ? 1.25f : 0.0f;
        CHECK_CLOSE(y[i], x[i] * factor, 0);
        CHECK(y_half[i] == to_bf16(from_bf16(half[i]) * factor));
      }
    }
  }
}

TEST(dropout, in_place_and_extreme_thresholds) {
  const auto x = random_floats(1001);
  for (int64_t threshold : {int64_t{0}, int64_t{1} << 32}) {
    auto y = x;
    KERNEL(dropout)(y.data(), y.data(), 1001, 1, 2, 0, threshold, 1.0f, FS_F32);
    for (int64_t i = 0; i < 1001; ++i) CHECK_CLOSE(y[i], threshold ? 0 : x[i], 0);
  }
}
