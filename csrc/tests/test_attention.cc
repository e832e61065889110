#include "test.h"

#include <algorithm>

namespace {

// Sizes and options of one call, and tensors that are dense but for the order [batch, row, head, dim].
struct Case {
  int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
  bool causal = false;
  int mask = 0;  // 0: none, 1: bytes for each key, 2: bytes for each query and key, 3: floats for each head
  std::vector<float> q{}, k{}, v{}, dout{}, float_mask{};
  std::vector<uint8_t> byte_mask{};
  float scale = 0.3f;

  void fill() {
    q = random_floats(batch * heads * queries * dim, 1);
    k = random_floats(batch * kv_heads * keys * dim, 2);
    v = random_floats(batch * kv_heads * keys * value_dim, 3);
    dout = random_floats(batch * heads * queries * value_dim, 4);
    float_mask = random_floats(heads * queries * keys, 5);
    byte_mask.clear();
    for (float value : random_floats(mask == 1 ? keys : queries * keys, 6)) byte_mask.push_back(value > -0.5f);
  }
  const void* mask_data() const {
    return mask == 0 ? nullptr : mask == 3 ? static_cast<const void*>(float_mask.data()) : byte_mask.data();
  }
  int32_t mask_dtype() const { return mask == 3 ? FS_F32 : -1; }
  std::vector<int64_t> sizes() const { return {batch, heads, kv_heads, queries, keys, dim, value_dim}; }
  std::vector<int64_t> strides() const {
    std::vector<int64_t> all;
    const auto add = [&](int64_t rows, int64_t num_heads, int64_t cols) {
      all.insert(all.end(), {rows * num_heads * cols, cols, num_heads * cols});
    };
    add(queries, heads, dim);
    add(keys, kv_heads, dim);
    add(keys, kv_heads, value_dim);
    add(queries, heads, value_dim);
    all.insert(all.end(), {0, mask == 3 ? queries * keys : 0, mask > 1 ? keys : 0, 1});
    add(queries, heads, value_dim);
    add(queries, heads, dim);
    add(keys, kv_heads, dim);
    add(keys, kv_heads, value_dim);
    return all;
  }
  double masked(int64_t head, int64_t query, int64_t key, double score) const {
    if (causal && key > query) return -INFINITY;
    if (mask == 1 && !byte_mask[key]) return -INFINITY;
    if (mask == 2 && !byte_mask[query * keys + key]) return -INFINITY;
    return mask == 3 ? score + float_mask[(head * queries + query) * keys + key] : score;
  }
};

struct Result {
  std::vector<double> out, dq, dk, dv;
};

Result expected(const Case& c) {
  Result r{std::vector<double>(c.dout.size()), std::vector<double>(c.q.size()), std::vector<double>(c.k.size()),
           std::vector<double>(c.v.size())};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        const int64_t kv = h / (c.heads / c.kv_heads), at = (b * c.queries + i) * c.heads + h;
        const auto row = [&](int64_t j) { return (b * c.keys + j) * c.kv_heads + kv; };
        std::vector<double> p(c.keys), dp(c.keys);
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          double score = 0;
          for (int64_t e = 0; e < c.dim; ++e)
            score += static_cast<double>(c.q[at * c.dim + e]) * c.k[row(j) * c.dim + e];
          sum += p[j] = exp(c.masked(h, i, j, score * c.scale));
        }
        for (int64_t j = 0; j < c.keys; ++j) {
          p[j] = sum == 0 ? 0 : p[j] / sum;
          for (int64_t e = 0; e < c.value_dim; ++e) {
            r.out[at * c.value_dim + e] += p[j] * c.v[row(j) * c.value_dim + e];
            r.dv[row(j) * c.value_dim + e] += p[j] * c.dout[at * c.value_dim + e];
            dp[j] += static_cast<double>(c.dout[at * c.value_dim + e]) * c.v[row(j) * c.value_dim + e];
          }
          dot += p[j] * dp[j];
        }
        for (int64_t j = 0; j < c.keys; ++j)
          for (int64_t e = 0; e < c.dim; ++e) {
            r.dq[at * c.dim + e] += c.scale * p[j] * (dp[j] - dot) * c.k[row(j) * c.dim + e];
            r.dk[row(j) * c.dim + e] += c.scale * p[j] * (dp[j] - dot) * c.q[at * c.dim + e];
          }
      }
  return r;
}

template <class T>
struct Outputs {
  std::vector<T> out, dq, dk, dv;
  std::vector<float> lse;
};

// Both kernels on tensors of T; threshold and kept as for dropout.
template <class T>
Outputs<T> run(int isa, const Case& c, const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v,
               const std::vector<T>& dout, int64_t threshold = 0, float kept = 1) {
  const int32_t dtype = sizeof(T) == 4 ? FS_F32 : FS_BF16;
  Outputs<T> r{std::vector<T>(dout.size(), 7), std::vector<T>(q.size(), 7), std::vector<T>(k.size(), 7),
               std::vector<T>(v.size(), 7), std::vector<float>(c.batch * c.heads * c.queries, 7)};
  std::vector<float> delta(r.lse.size());
  const auto sizes = c.sizes(), strides = c.strides();
  KERNEL(attention_forward)(q.data(), k.data(), v.data(), c.mask_data(), r.out.data(), r.lse.data(), sizes.data(),
                            strides.data(), c.scale, c.causal, 11, threshold, kept, dtype, c.mask_dtype());
  KERNEL(attention_backward)(dout.data(), q.data(), k.data(), v.data(), c.mask_data(), r.out.data(), r.lse.data(),
                             delta.data(), r.dq.data(), r.dk.data(), r.dv.data(), sizes.data(), strides.data(),
                             c.scale, c.causal, 11, threshold, kept, dtype, c.mask_dtype());
  return r;
}
Outputs<float> run(int isa, const Case& c, int64_t threshold = 0, float kept = 1) {
  return run(isa, c, c.q, c.k, c.v, c.dout, threshold, kept);
}

// The largest difference, in units of the largest value or of 1.
template <class T>
double error_of(const std::vector<T>& actual, const std::vector<double>& expected) {
  double error = 0, size = 1;
  for (size_t i = 0; i < expected.size(); ++i) {
    double value;
    if constexpr (sizeof(T) == 2)
      value = from_bf16(actual[i]);
    else
      value = actual[i];
    error = isnan(value) ? INFINITY : std::max(error, fabs(value - expected[i]));
    size = std::max(size, fabs(expected[i]));
  }
  return error / size;
}

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1},        {2, 2, 2, 5, 7, 3, 5},      {1, 2, 1, 64, 64, 16, 32},   {1, 3, 3, 65, 63, 8, 17},
    {1, 4, 2, 129, 70, 33, 9},    {2, 1, 1, 7, 200, 64, 64},  {1, 2, 2, 131, 131, 48, 48},
};

}  // namespace

TEST(attention, equals_double_arithmetic) {
  for (Case c : kCases)
    for (bool causal : {false, true})
      for (int mask : {0, 1, 2, 3}) {
        c.causal = causal;
        c.mask = mask;
        c.fill();
        const Result e = expected(c);
        const auto r = run(isa, c);
        CHECK_CLOSE(error_of(r.out, e.out), 0, 2e-6);
        CHECK_CLOSE(error_of(r.dq, e.dq), 0, 4e-6);
        CHECK_CLOSE(error_of(r.dk, e.dk), 0, 4e-6);
        CHECK_CLOSE(error_of(r.dv, e.dv), 0, 4e-6);
      }
}

TEST(attention, bf16_loses_no_more_than_its_rounding) {
  for (Case c : kCases) {
    c.causal = true;
    c.mask = 1;
    c.fill();
    const auto q = to_bf16(c.q), k = to_bf16(c.k), v = to_bf16(c.v), dout = to_bf16(c.dout);
    c.q = from_bf16(q), c.k = from_bf16(k), c.v = from_bf16(v), c.dout = from_bf16(dout);
    const Result e = expected(c);
    const auto r = run(isa, c, q, k, v, dout);
    // out is rounded before backward reads it: dq and dk carry that error too.
    CHECK_CLOSE(error_of(r.out, e.out), 0, 0.0045);
    CHECK_CLOSE(error_of(r.dq, e.dq), 0, 0.02);
    CHECK_CLOSE(error_of(r.dk, e.dk), 0, 0.02);
    CHECK_CLOSE(error_of(r.dv, e.dv), 0, 0.0045);
  }
}

TEST(attention, a_query_without_keys_gives_zeros) {
  Case c{1, 2, 2, 70, 67, 9, 11};
  c.mask = 2;
  c.fill();
  for (int64_t j = 0; j < c.keys; ++j) c.byte_mask[3 * c.keys + j] = c.byte_mask[69 * c.keys + j] = 0;
  const auto r = run(isa, c);
  for (int64_t i : {3, 69}) {
    CHECK(r.lse[i] == INFINITY);
    for (int64_t e = 0; e < 2 * c.value_dim; ++e) CHECK(r.out[i * 2 * c.value_dim + e] == 0);
    for (int64_t e = 0; e < 2 * c.dim; ++e) CHECK(r.dq[i * 2 * c.dim + e] == 0);
  }
  const Result e = expected(c);
  CHECK_CLOSE(error_of(r.dk, e.dk), 0, 4e-6);
  CHECK_CLOSE(error_of(r.dv, e.dv), 0, 4e-6);
}

// With v the identity out is the matrix of probabilities itself, and with dout the identity dv is its transpose.
TEST(attention, dropout_is_the_same_forward_and_backward) {
  const int64_t n = 83;
  Case c{1, 2, 2, n, n, 5, n};
  c.fill();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < n; ++j) c.v[(i * 2 + h) * n + j] = c.dout[(i * 2 + h) * n + j] = i == j;
  const auto all = run(isa, c), some = run(isa, c, int64_t{1} << 30, 4.0f / 3);
  int64_t dropped = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t j = 0; j < n; ++j) {
        const float p = some.out[(i * 2 + h) * n + j], whole = all.out[(i * 2 + h) * n + j] * (4.0f / 3);
        CHECK(p == 0 || fabs(p - whole) <= 1e-6);
        CHECK_CLOSE(some.dv[(j * 2 + h) * n + i], p, 1e-6);
        dropped += p == 0;
      }
  CHECK(fabs(dropped - 0.25 * 2 * n * n) < 4 * sqrt(0.25 * 0.75 * 2 * n * n));
  const auto none = run(isa, c, int64_t{1} << 32, 0.0f);
  for (float value : none.out) CHECK(value == 0);
  for (float value : none.dq) CHECK(value == 0);
}

TEST(attention, outputs_that_are_not_wanted_are_left_out) {
  Case c{2, 2, 1, 67, 70, 17, 19};
  c.fill();
  const auto all = run(isa, c);
  const auto sizes = c.sizes(), strides = c.strides();
  std::vector<float> out(all.out.size()), delta(all.lse.size());
  KERNEL(attention_forward)(c.q.data(), c.k.data(), c.v.data(), nullptr, out.data(), nullptr, sizes.data(),
                            strides.data(), c.scale, 0, 0, 0, 1, FS_F32, -1);
  CHECK(out == all.out);
  for (int wanted = 0; wanted < 3; ++wanted) {
    std::vector<float> got(wanted == 0 ? all.dq.size() : wanted == 1 ? all.dk.size() : all.dv.size());
    KERNEL(attention_backward)(c.dout.data(), c.q.data(), c.k.data(), c.v.data(), nullptr, all.out.data(),
                               all.lse.data(), delta.data(), wanted == 0 ? got.data() : nullptr,
                               wanted == 1 ? got.data() : nullptr, wanted == 2 ? got.data() : nullptr, sizes.data(),
                               strides.data(), c.scale, 0, 0, 0, 1, FS_F32, -1);
    CHECK(got == (wanted == 0 ? all.dq : wanted == 1 ? all.dk : all.dv));
  }
}

TEST(attention, no_queries_and_no_keys) {
  for (int64_t queries : {0, 3})
    for (int64_t keys : {0, 3}) {
      Case c{1, 2, 2, queries, keys, 4, 4};
      c.fill();
      const auto r = run(isa, c);
      if (!keys)
        for (float value : r.out) CHECK(value == 0);
      if (!queries)
        for (float value : r.dk) CHECK(value == 0);
    }
}
