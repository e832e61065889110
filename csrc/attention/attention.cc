// Attention without the matrix of scores, forward and backward: how its heads are shared out over the threads.
#include "attention/backward.h"
#include "attention/forward.h"

namespace {

// Multiplications that are worth a thread: they take 6 us on Zen 4, as 16384 elements of other kernels do; see
// benchmarks/thresholds.md.
constexpr int64_t kAttentionGrain = 1 << 18;

template <class T>
FS_INLINE void sum_delta(const Attention& a, const Gradients& g, const void* out, float* delta) {
  constexpr int64_t kPerElement = 16;  // multiplications that take as long as reading an element of both
  parallel_for(a.batch * a.heads * a.queries, grain_rows(kAttentionGrain, kPerElement * a.value_dim),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t r = begin; r < end; ++r) {
                   const int64_t head = r / a.queries, query = r % a.queries;
                   const T* x = at<T>(out, a.out, head / a.heads, head % a.heads, query);
                   const T* dx = at<T>(g.dout, g.dout_strides, head / a.heads, head % a.heads, query);
                   delta[r] = sum_of(a.value_dim, [=](int64_t i, auto lanes) {
                     return load(x + i, lanes) * load(dx + i, lanes);
                   });
                 }
               });
}

// dq of the query heads of each key head from the sums of its parts.
template <class T>
FS_INLINE void store_dq(const Attention& a, const Gradients& g, const float* sums, int64_t head, int64_t parts) {
  const int64_t size = Backward<T>::dq_size(a), stride = Backward<T>::dq_stride(a);
  for (int64_t i = 0; i < a.group(); ++i)
    for (int64_t query = 0; query < a.queries; ++query) {
      const float* from = sums + i * size + query * stride;
      T* to = at<T>(g.dq, g.dq_strides, head / a.kv_heads, head % a.kv_heads * a.group() + i, query);
      for_vectors(a.dim, [&](int64_t c, auto lanes) {
        vfloat total = load(from + c, lanes);
        for (int64_t part = 1; part < parts; ++part) total += load(from + part * a.group() * size + c, lanes);
        store(to + c, total * a.scale, lanes);
      });
    }
}

}  // namespace

FS_DEFINE(attention_forward)(const void* q, const void* k, const void* v, const void* mask, void* out, float* lse,
                             const int64_t* sizes, const int64_t* strides, float scale, int32_t causal, uint64_t seed,
                             int64_t threshold, float kept, int32_t dtype, int32_t mask_dtype) {
  const Attention a(sizes, strides, mask, mask_dtype, Dropout(seed, threshold, kept), scale, causal != 0);
  const Units units(a.batch * a.kv_heads, a.query_blocks());
  const int64_t work = a.group() * a.queries * a.keys * (a.dim + a.value_dim) / units.parts;
  const int64_t grain = grain_rows(kAttentionGrain, work);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    Arena sizing{nullptr};
    Forward<T>(a, sizing);
    const int64_t teams = max_of(1, fs_internal_num_threads(units.count, grain));
    char* const scratch = static_cast<char*>(fs_internal_scratch(teams * sizing.used));
    deal(units.count, grain, [&](int64_t unit, int thread) {
      [[maybe_unused]] const typename Forward<T>::Scope scope;
      Arena arena{scratch + thread * sizing.used};
      const int64_t head = unit / units.parts;
      Forward<T>(a, arena).run(head / a.kv_heads, head % a.kv_heads, unit % units.parts, units.parts, q, k, v, out, lse);
    });
  });
}

FS_DEFINE(attention_backward)(const void* dout, const void* q, const void* k, const void* v, const void* mask,
                              const void* out, const float* lse, float* delta, void* dq, void* dk, void* dv,
                              const int64_t* sizes, const int64_t* strides, float scale, int32_t causal, uint64_t seed,
                              int64_t threshold, float kept, int32_t dtype, int32_t mask_dtype) {
  const Attention a(sizes, strides, mask, mask_dtype, Dropout(seed, threshold, kept), scale, causal != 0);
  const auto next = [&](int i) { return Strides{strides[i], strides[i + 1], strides[i + 2]}; };
  const Gradients g{next(16), next(19), next(22), next(25), dout, dq, dk, dv, lse, delta};
  const int64_t kv_heads = a.batch * a.kv_heads;
  const int64_t dq_bytes = a.group() * (a.queries + kBlockTokens) * (a.dim + 32) * int64_t{sizeof(float)};
  const Units units(kv_heads, a.key_blocks(), dq ? dq_bytes : 0);
  const int64_t parts = units.parts, grain = grain_rows(kAttentionGrain, 5 * a.group() * a.queries * a.keys * a.dim / parts);
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    Arena sizing{nullptr};
    Backward<T>(a, g, sizing);
    const int64_t teams = max_of(1, fs_internal_num_threads(units.count, grain));
    // Sums for dq: a thread's own if a head is done by one, else one for each part.
    const int64_t size = dq ? a.group() * Backward<T>::dq_size(a) : 0;
    char* const scratch = static_cast<char*>(
        fs_internal_scratch(teams * sizing.used + (parts == 1 ? teams : units.count) * size * int64_t{sizeof(float)}));
    float* const sums = reinterpret_cast<float*>(scratch + teams * sizing.used);
    sum_delta<T>(a, g, out, delta);
    deal(units.count, grain, [&](int64_t unit, int thread) {
      [[maybe_unused]] const typename Backward<T>::Scope scope;
      Arena arena{scratch + thread * sizing.used};
      const int64_t head = unit / parts;
      float* const sum = dq ? sums + (parts == 1 ? thread : unit) * size : nullptr;
      Backward<T>(a, g, arena).run(head / a.kv_heads, head % a.kv_heads, unit % parts, parts, q, k, v, sum);
      if (dq && parts == 1) store_dq<T>(a, g, sum, head, 1);
    });
    if (dq && parts > 1)
      parallel_for(kv_heads, grain_rows(kAttentionGrain, size * parts), [&](int64_t begin, int64_t end, int) {
        for (int64_t head = begin; head < end; ++head) store_dq<T>(a, g, sums + head * parts * size, head, parts);
      });
  });
}
