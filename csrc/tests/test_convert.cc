#include <utility>

#include "test.h"

namespace {

float from_pattern(uint32_t pattern) { return __builtin_bit_cast(float, pattern); }
uint32_t pattern_of(float x) { return __builtin_bit_cast(uint32_t, x); }

// Patterns from every part of the range, and what lies around the carries, ties and overflows.
std::vector<float> patterns() {
  std::vector<float> values;
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 40009) values.push_back(from_pattern(static_cast<uint32_t>(pattern)));
  for (const uint32_t centre : {0u, 0x8000u, 0x00800000u, 0x33000000u, 0x33800000u, 0x38800000u, 0x3f800000u, 0x3f808000u,
                                0x477fe000u, 0x477ff000u, 0x7f7f8000u, 0x7f800000u, 0x7f808000u, 0x7fff8000u})
    for (uint32_t offset = 0; offset < 64; ++offset)
      for (const uint32_t sign : {0u, 0x80000000u}) values.push_back(from_pattern((centre + offset - 32) ^ sign));
  return values;
}

// The value of a finite fp16 pattern, or infinity, from the definition.
double value_of_fp16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double magnitude = exponent == 31  ? INFINITY
                           : exponent == 0 ? ldexp(mantissa, -24)
                                           : ldexp(1024 + mantissa, exponent - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}
bool fp16_is_nan(uint16_t h) { return (h & 0x7fff) > 0x7c00; }

std::vector<uint16_t> all_halves() {
  std::vector<uint16_t> values(65536);
  for (int i = 0; i < 65536; ++i) values[i] = static_cast<uint16_t>(i);
  return values;
}

}  // namespace

TEST(convert, every_bf16_there_and_back) {
  const auto x = all_halves();
  std::vector<float> wide(x.size());
  std::vector<uint16_t> back(x.size());
  KERNEL(convert)(x.data(), wide.data(), 65536, FS_BF16, FS_F32);
  KERNEL(convert)(wide.data(), back.data(), 65536, FS_F32, FS_BF16);
  for (int i = 0; i < 65536; ++i) {
    CHECK(pattern_of(wide[i]) == static_cast<uint32_t>(i) << 16);
    CHECK(back[i] == (isnan(wide[i]) ? i | 0x40 : i));
  }
}

TEST(convert, bf16_is_the_nearest_and_keeps_denormals) {
  const auto x = patterns();
  std::vector<uint16_t> y(x.size());
  KERNEL(convert)(x.data(), y.data(), static_cast<int64_t>(x.size()), FS_F32, FS_BF16);
  for (size_t i = 0; i < x.size(); ++i) CHECK(isnan(x[i]) ? isnan(from_bf16(y[i])) : y[i] == to_bf16(x[i]));
}

TEST(convert, every_fp16_there_and_back) {
  const auto x = all_halves();
  std::vector<float> wide(x.size());
  std::vector<uint16_t> back(x.size());
  KERNEL(convert)(x.data(), wide.data(), 65536, FS_F16, FS_F32);
  KERNEL(convert)(wide.data(), back.data(), 65536, FS_F32, FS_F16);
  for (int i = 0; i < 65536; ++i) {
    if (fp16_is_nan(x[i])) {
      CHECK(pattern_of(wide[i]) == (static_cast<uint32_t>(i & 0x8000) << 16 | 0x7fc00000u | (i & 0x1ff) << 13));
    } else {
      CHECK(wide[i] == value_of_fp16(x[i]) && signbit(wide[i]) == (i >> 15));
    }
    CHECK(back[i] == (fp16_is_nan(x[i]) ? i | 0x200 : i));
  }
}

TEST(convert, fp16_is_the_nearest) {
  const auto x = patterns();
  std::vector<uint16_t> y(x.size());
  KERNEL(convert)(x.data(), y.data(), static_cast<int64_t>(x.size()), FS_F32, FS_F16);
  for (size_t i = 0; i < x.size(); ++i) {
    CHECK(fp16_is_nan(y[i]) == isnan(x[i]));
    if (isnan(x[i])) continue;
    CHECK(signbit(x[i]) == (y[i] >> 15));
    if (fabsf(x[i]) >= 65520) {
      CHECK((y[i] & 0x7fff) == 0x7c00);
      continue;
    }
    // Neither neighbour is nearer, and one equally near is odd.
    const double error = fabs(x[i] - value_of_fp16(y[i]));
    for (const int step : {-1, 1}) {
      const uint16_t neighbour = static_cast<uint16_t>(y[i] + step);
      if ((neighbour & 0x7fff) >= 0x7c00) continue;
      const double other = fabs(x[i] - value_of_fp16(neighbour));
      CHECK(error < other || (error == other && y[i] % 2 == 0));
    }
  }
}

TEST(convert, between_bf16_and_fp16_goes_through_fp32) {
  const auto x = all_halves();
  std::vector<float> wide(x.size());
  std::vector<uint16_t> direct(x.size()), through(x.size());
  for (const auto& [from, to] : {std::pair{FS_BF16, FS_F16}, std::pair{FS_F16, FS_BF16}}) {
    KERNEL(convert)(x.data(), direct.data(), 65536, from, to);
    KERNEL(convert)(x.data(), wide.data(), 65536, from, FS_F32);
    KERNEL(convert)(wide.data(), through.data(), 65536, FS_F32, to);
    CHECK(direct == through);
  }
}

TEST(convert, split_and_merge_keep_every_bit) {
  const auto x = patterns();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> hi(n);
  std::vector<int16_t> lo(n);
  std::vector<float> back(n);
  KERNEL(split)(x.data(), hi.data(), lo.data(), n);
  KERNEL(merge)(hi.data(), lo.data(), back.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    if (isnan(x[i])) {
      CHECK(isnan(from_bf16(hi[i])) && lo[i] == 0 && isnan(back[i]));
    } else {
      CHECK(pattern_of(back[i]) == pattern_of(x[i]));
      CHECK(hi[i] == (pattern_of(x[i]) + 0x8000) >> 16);
    }
  }
}

TEST(convert, stochastic_gives_a_neighbour_and_keeps_what_is_exact) {
  const auto x = patterns();
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> y(n);
  KERNEL(convert_stochastic)(x.data(), y.data(), n, 1, 2, 3);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t below = pattern_of(x[i]) >> 16;
    if (isnan(x[i])) {
      CHECK(isnan(from_bf16(y[i])));
    } else {
      CHECK(y[i] == below || (y[i] == below + 1 && (pattern_of(x[i]) & 0xffff)));
      CHECK(isinf(from_bf16(y[i])) == isinf(x[i]));
    }
  }
}

TEST(convert, stochastic_is_unbiased) {
  const int64_t n = 1 << 20;
  const std::vector<float> x(n, 1 + 1.0f / 512 + 1.0f / 1024);  // three eighths of the way to the next
  std::vector<uint16_t> y(n);
  KERNEL(convert_stochastic)(x.data(), y.data(), n, 1, 2, 3);
  double sum = 0;
  for (const uint16_t value : y) sum += from_bf16(value);
  // The mean of 2^20 roundings has a deviation of 2^-7 * sqrt(15 / 64) / 2^10 = 3.7e-6.
  CHECK_CLOSE(sum / n, x[0], 4 * 3.7e-6);
}

TEST(convert, every_size_writes_its_elements_and_no_more) {
  for (const int64_t n : kSizes) {
    const auto x = random_floats(n);
    std::vector<uint16_t> whole(n), hi(n), half(n);
    std::vector<int16_t> lo(n);
    std::vector<float> back(n);
    KERNEL(convert)(x.data(), whole.data(), n, FS_F32, FS_BF16);
    CHECK(whole == to_bf16(x));
    KERNEL(convert)(whole.data(), back.data(), n, FS_BF16, FS_F32);
    CHECK(back == from_bf16(whole));
    KERNEL(convert)(x.data(), half.data(), n, FS_F32, FS_F16);
    KERNEL(convert)(half.data(), back.data(), n, FS_F16, FS_F32);
    for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(back[i], x[i], fabs(x[i]) / 2048 + 3e-8);
    KERNEL(split)(x.data(), hi.data(), lo.data(), n);
    KERNEL(merge)(hi.data(), lo.data(), back.data(), n);
    CHECK(back == x);
    KERNEL(convert_stochastic)(x.data(), half.data(), n, 1, 2, 3);
    for (int64_t i = 0; i < n; ++i) CHECK_CLOSE(from_bf16(half[i]), x[i], fabs(x[i]) / 128);
  }
}

TEST(convert, results_larger_than_the_cache_are_the_same) {
  const int64_t n = (9 << 20) + 5, part = 1 << 20;  // the parts do not go around the cache
  const auto x = random_floats(n);
  std::vector<uint16_t> whole(n), parts(n), hi(n);
  std::vector<int16_t> lo(n);
  std::vector<float> back(n);
  KERNEL(convert)(x.data(), whole.data(), n, FS_F32, FS_BF16);
  for (int64_t start = 0; start < n; start += part)
    KERNEL(convert)(&x[start], &parts[start], n - start < part ? n - start : part, FS_F32, FS_BF16);
  CHECK(whole == parts);
  KERNEL(split)(x.data(), hi.data(), lo.data(), n);
  KERNEL(merge)(hi.data(), lo.data(), back.data(), n);
  CHECK(back == x);
}
