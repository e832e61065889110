#include "test.h"

namespace {

template <class I>
std::vector<I> random_indices(int64_t numel, int64_t vocab, unsigned seed = 5) {
  std::mt19937 engine(seed);
  std::vector<I> indices(numel);
  for (I& index : indices) index = static_cast<I>(engine() % static_cast<unsigned>(vocab));
  return indices;
}

// dweight in fp32, as the header defines it.
template <class I>
std::vector<float> sums(const std::vector<I>& indices, const std::vector<float>& dy, std::vector<float> dweight,
                        int64_t dim, int64_t padding) {
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices[i] != padding && indices[i] >= 0)
      for (int64_t j = 0; j < dim; ++j) dweight[indices[i] * dim + j] += dy[i * dim + j];
  return dweight;
}

}  // namespace

TEST(embedding, forward_copies_rows_and_reports_the_first_bad_index) {
  for (int64_t dim : {1, 3, 8, 17, 65, 257}) {
    const int64_t numel = 301, vocab = 23;
    const auto weight = random_floats(vocab * dim);
    auto wide = random_indices<int64_t>(numel, vocab);
    std::vector<int32_t> narrow(wide.begin(), wide.end());
    std::vector<float> out(numel * dim), out_narrow(numel * dim);
    int64_t bad = 99;
    KERNEL(embedding_forward)(wide.data(), weight.data(), out.data(), &bad, numel, vocab, dim, 0, FS_F32);
    CHECK(bad == -1);
    KERNEL(embedding_forward)(narrow.data(), weight.data(), out_narrow.data(), &bad, numel, vocab, dim, 1, FS_F32);
    CHECK(bad == -1);
    for (int64_t i = 0; i < numel; ++i)
      for (int64_t j = 0; j < dim; ++j) CHECK(out[i * dim + j] == weight[wide[i] * dim + j]);
    CHECK(out == out_narrow);
    wide[7] = vocab;
    wide[200] = -1;
    KERNEL(embedding_forward)(wide.data(), weight.data(), out.data(), &bad, numel, vocab, dim, 0, FS_F32);
    CHECK(bad == 7);
    CHECK(out[7 * dim] == 0);
    CHECK(out[8 * dim] == weight[wide[8] * dim]);
  }
  int64_t bad = 99;
  KERNEL(embedding_forward)(nullptr, nullptr, nullptr, &bad, 0, 5, 4, 0, FS_BF16);
  CHECK(bad == -1);
}

TEST(embedding, backward_adds_in_order) {
  for (int64_t dim : {1, 3, 8, 17, 65, 1025})
    for (int64_t padding : {-1, 4})
      for (int accumulate : {0, 1}) {
        const int64_t numel = 501, vocab = 29;
        auto indices = random_indices<int32_t>(numel, vocab - 2);  // the last two rows are never hit
        for (int64_t i = 0; i < 300; ++i) indices[i] = 6;
        indices[33] = -5;
        const auto dy = random_floats(numel * dim), before = random_floats(vocab * dim, 7);
        auto dweight = before;
        KERNEL(embedding_backward)(indices.data(), dy.data(), dweight.data(), numel, vocab, dim, padding, accumulate, 1,
                                   FS_F32, FS_F32);
        const auto start = accumulate ? before : std::vector<float>(vocab * dim);
        CHECK(dweight == sums(indices, dy, start, dim, padding));
      }
}

TEST(embedding, backward_of_bf16_rounds_once) {
  const int64_t numel = 400, vocab = 11, dim = 37;
  const auto indices = random_indices<int64_t>(numel, vocab);
  const auto dy = to_bf16(random_floats(numel * dim));
  const auto expected = sums(indices, from_bf16(dy), std::vector<float>(vocab * dim), dim, -1);
  std::vector<float> wide(vocab * dim, 77.0f);
  std::vector<uint16_t> rounded(vocab * dim, 77);
  KERNEL(embedding_backward)(indices.data(), dy.data(), wide.data(), numel, vocab, dim, -1, 0, 0, FS_BF16, FS_F32);
  KERNEL(embedding_backward)(indices.data(), dy.data(), rounded.data(), numel, vocab, dim, -1, 0, 0, FS_BF16, FS_BF16);
  CHECK(wide == expected);
  CHECK(rounded == to_bf16(expected));
}

// Large enough to be written around the cache, and for several threads; nothing hit at all is all zeros.
TEST(embedding, backward_large_and_empty) {
  const int64_t vocab = 20011, dim = 211, numel = 3000;
  auto indices = random_indices<int64_t>(numel, vocab);
  for (int64_t i = 0; i < numel; i += 3) indices[i] = 20010;
  const auto dy = random_floats(numel * dim);
  std::vector<float> dweight(vocab * dim, 77.0f);
  KERNEL(embedding_backward)(indices.data(), dy.data(), dweight.data(), numel, vocab, dim, -1, 0, 0, FS_F32, FS_F32);
  CHECK(dweight == sums(indices, dy, std::vector<float>(vocab * dim), dim, -1));
  dweight.assign(5 * 3, 77.0f);
  KERNEL(embedding_backward)(nullptr, nullptr, dweight.data(), 0, 5, 3, -1, 0, 0, FS_F32, FS_F32);
  CHECK(dweight == std::vector<float>(5 * 3));
  KERNEL(embedding_backward)(nullptr, nullptr, nullptr, 0, 0, 3, -1, 0, 0, FS_F32, FS_F32);
}
