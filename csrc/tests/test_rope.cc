#include "test.h"

namespace {

struct Case {
  int64_t batch, seq, heads, dim, rotary;
};

const Case kCases[] = {{1, 1, 1, 2, 2},   {2, 3, 2, 6, 4},     {1, 5, 3, 17, 16}, {2, 7, 1, 34, 34},
                       {1, 4, 2, 64, 64}, {2, 9, 3, 80, 80},   {1, 3, 2, 97, 66}, {2, 65, 5, 128, 128},
                       {1, 2, 1, 8, 0},   {1, 2, 2, 300, 258}};
constexpr int64_t kTable = 80;

// y of one element, in double.
double expected(const Case& c, const std::vector<float>& row, const float* cos, const float* sin, int64_t i,
                bool interleaved) {
  const int64_t half = c.rotary / 2;
  if (i >= c.rotary) return row[i];
  const int64_t angle = interleaved ? i / 2 : i % half;
  const bool second = interleaved ? i % 2 : i >= half;
  const double other = row[interleaved ? i ^ 1 : second ? i - half : i + half];
  return row[i] * static_cast<double>(cos[angle]) + (second ? other : -other) * sin[angle];
}

}  // namespace

TEST(rope, turns_every_pair_in_both_layouts) {
  for (const Case& c : kCases)
    for (int64_t head_major : {0, 1})
      for (int interleaved : {0, 1}) {
        const int64_t numel = c.batch * c.seq * c.heads * c.dim;
        const auto x = random_floats(numel), cos = random_floats(kTable * c.rotary / 2, 2),
                   sin = random_floats(kTable * c.rotary / 2, 3);
        const int64_t batch_stride = c.seq * c.heads * c.dim;
        const int64_t seq_stride = head_major ? c.dim : c.heads * c.dim;
        const int64_t head_stride = head_major ? c.seq * c.dim : c.dim;
        std::vector<float> y(numel);
        KERNEL(rope)(x.data(), y.data(), cos.data(), sin.data(), nullptr, c.batch, c.seq, c.heads, c.dim, c.rotary,
                     batch_stride, seq_stride, head_stride, batch_stride, seq_stride, head_stride, 3, interleaved, 0,
                     FS_F32);
        const auto x_short = to_bf16(x);
        const auto x_rounded = from_bf16(x_short);
        std::vector<uint16_t> y_short(numel);
        KERNEL(rope)(x_short.data(), y_short.data(), cos.data(), sin.data(), nullptr, c.batch, c.seq, c.heads, c.dim,
                     c.rotary, batch_stride, seq_stride, head_stride, batch_stride, seq_stride, head_stride, 3,
                     interleaved, 0, FS_BF16);
        for (int64_t b = 0; b < c.batch; ++b)
          for (int64_t s = 0; s < c.seq; ++s)
            for (int64_t h = 0; h < c.heads; ++h) {
              const int64_t at = b * batch_stride + s * seq_stride + h * head_stride;
              const float *cosine = cos.data() + (s + 3) * (c.rotary / 2), *sine = sin.data() + (s + 3) * (c.rotary / 2);
              const std::vector<float> row(x.begin() + at, x.begin() + at + c.dim);
              const std::vector<float> rounded(x_rounded.begin() + at, x_rounded.begin() + at + c.dim);
              for (int64_t i = 0; i < c.dim; ++i) {
                CHECK_CLOSE(y[at + i], expected(c, row, cosine, sine, i, interleaved), 2e-6);
                const double wide = expected(c, rounded, cosine, sine, i, interleaved);
                CHECK_CLOSE(from_bf16(y_short[at + i]), wide, fabs(wide) / 256 + 2e-6);
              }
            }
      }
}

TEST(rope, backward_in_place_with_positions_undoes_forward) {
  const int64_t batch = 2, seq = 5, heads = 3, dim = 40, numel = batch * seq * heads * dim;
  const int64_t positions[batch * seq] = {0, 7, 7, 2, 9, 4, 3, 2, 1, 0};
  std::vector<float> cos, sin;
  for (int i = 0; i < 10 * dim / 2; ++i) {
    cos.push_back(cosf(0.37f * static_cast<float>(i)));
    sin.push_back(sinf(0.37f * static_cast<float>(i)));
  }
  for (int interleaved : {0, 1}) {
    const auto x = random_floats(numel);
    auto y = x;
    for (int backward : {0, 1})
      KERNEL(rope)(y.data(), y.data(), cos.data(), sin.data(), positions, batch, seq, heads, dim, dim,
                   seq * heads * dim, heads * dim, dim, seq * heads * dim, heads * dim, dim, 0, interleaved, backward,
                   FS_F32);
    for (int64_t i = 0; i < numel; ++i) CHECK_CLOSE(y[i], x[i], 2e-6);
  }
}

// Large enough to be written around the cache, and for several threads.
TEST(rope, large_and_empty) {
  KERNEL(rope)(nullptr, nullptr, nullptr, nullptr, nullptr, 0, 4, 2, 8, 8, 64, 16, 8, 64, 16, 8, 0, 0, 0, FS_F32);
  KERNEL(rope)(nullptr, nullptr, nullptr, nullptr, nullptr, 1, 4, 0, 8, 8, 0, 0, 8, 0, 0, 8, 0, 0, 0, FS_F32);
  const int64_t seq = 700, heads = 131, dim = 48, numel = seq * heads * dim;
  const auto x = random_floats(numel), cos = random_floats(seq * dim / 2, 2), sin = random_floats(seq * dim / 2, 3);
  std::vector<float> adjacent(numel), apart(numel);
  KERNEL(rope)(x.data(), adjacent.data(), cos.data(), sin.data(), nullptr, 1, seq, heads, dim, dim, 0, heads * dim, dim,
               0, heads * dim, dim, 0, 0, 0, FS_F32);
  KERNEL(rope)(x.data(), apart.data(), cos.data(), sin.data(), nullptr, 1, seq, heads, dim, dim, 0, heads * dim, dim, 0,
               dim, seq * dim, 0, 0, 0, FS_F32);
  for (int64_t s = 0; s < seq; ++s)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < dim; ++i)
        CHECK_CLOSE(adjacent[(s * heads + h) * dim + i], apart[(h * seq + s) * dim + i], 0);
}
