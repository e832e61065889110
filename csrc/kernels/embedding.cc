// Embedding: lookup of rows, and the deterministic sum of gradients into the rows they came from.
#include "simd/around_cache.h"
#include "kernel.h"

namespace {

// Elements that are worth a thread: see benchmarks/thresholds.md.
constexpr int64_t kEmbeddingGrain = 32768;
constexpr int64_t kTile = 1024;        // columns summed at a time; the sums stay in the level 1 cache
constexpr int64_t kColumnQuantum = 64;  // a row is cut between threads only at multiples of this

FS_INLINE void copy_row(void* to, const void* from, int64_t bytes, bool around_cache) {
  if (around_cache)
    copy_around_cache(to, from, bytes);
  else
    memcpy(to, from, static_cast<size_t>(bytes));
}

FS_INLINE bool inside(int64_t index, int64_t vocab) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(vocab);
}

// body(const int64_t*) or body(const int32_t*).
template <class Body>
FS_INLINE void with_indices(const void* indices, int32_t narrow, const Body& body) {
  if (narrow)
    body(static_cast<const int32_t*>(indices));
  else
    body(static_cast<const int64_t*>(indices));
}

// The occurrences of each row's index in rising order, by a counting sort: those of row v are
// order[start[v]] .. order[start[v + 1] - 1]. Serial: all but the sums took
// 0.3 of 7.2 ms on one core, for 8192 tokens and a table of 32000 x 768.
struct Groups {
  int64_t *start, *order;

  template <class I>
  Groups(const I* indices, int64_t numel, int64_t vocab, int64_t padding) {
    start = static_cast<int64_t*>(fs_internal_scratch((vocab + 2 + numel) * static_cast<int64_t>(sizeof(int64_t))));
    order = start + vocab + 2;
    memset(start, 0, static_cast<size_t>(vocab + 2) * sizeof(int64_t));
    const auto counts = [=](int64_t index) { return inside(index, vocab) && index != padding; };
    // Counted two places up: after the sums start[v + 1] is where v begins, and after the sort where it ends.
    for (int64_t i = 0; i < numel; ++i)
      if (counts(indices[i])) ++start[indices[i] + 2];
    for (int64_t v = 0; v < vocab; ++v) start[v + 2] += start[v + 1];
    for (int64_t i = 0; i < numel; ++i)
      if (counts(indices[i])) order[start[indices[i] + 1]++] = i;
  }
};

// The work of backward laid out on a line: row v takes one unit to write, none with accumulate, and one for each
// occurrence. Threads get equal lengths of the line. Where a cut falls inside a row, the row's columns are cut in that
// proportion, so that one index making up most of the batch is still shared by all; each column is summed by one
// thread, in order, so that the bits do not depend on the cuts.
struct Line {
  const int64_t* start;
  int64_t vocab, dim, write;

  int64_t begin(int64_t v) const { return write * v + start[v]; }
  // The row that point `at` lies in.
  int64_t row_at(int64_t at) const {
    int64_t low = 0, high = vocab;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (begin(middle) <= at)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  // The column of row v that point `at` lies in.
  int64_t column_at(int64_t v, int64_t at) const {
    const int64_t first = begin(v), length = begin(v + 1) - first;
    if (at <= first) return 0;
    if (at >= first + length) return dim;
    const double share = static_cast<double>(at - first) / static_cast<double>(length);
    return static_cast<int64_t>(share * static_cast<double>(dim)) / kColumnQuantum * kColumnQuantum;
  }
};

// out[0, n) = sum of the rows dy[order[0]], dy[order[1]], ... of `stride` elements, starting from out with accumulate.
template <class T, class Out>
FS_INLINE void sum_rows(const T* dy, int64_t stride, const int64_t* order, int64_t count, Out* out, int64_t n,
                        bool accumulate, bool around_cache) {
  if (__is_same(T, Out) && count == 1 && !accumulate)
    return copy_row(out, dy + order[0] * stride, n * static_cast<int64_t>(sizeof(T)), around_cache);
  alignas(64) float sums[kTile];
  alignas(64) Out rounded[kTile];
  int64_t next = 0;
  if (accumulate) {
    for_vectors(n, [&](int64_t i, auto lanes) { store(sums + i, load(out + i, lanes), lanes); });
  } else if (count > 0) {
    const T* from = dy + order[next++] * stride;
    for_vectors(n, [&](int64_t i, auto lanes) { store(sums + i, load(from + i, lanes), lanes); });
  } else {
    memset(sums, 0, static_cast<size_t>(n) * sizeof(float));
  }
  for (; next < count; ++next) {
    const T* from = dy + order[next] * stride;
    for_vectors(n, [&](int64_t i, auto lanes) { store(sums + i, load(sums + i, lanes) + load(from + i, lanes), lanes); });
  }
  Out* target = around_cache ? rounded : out;
  for_vectors(n, [&](int64_t i, auto lanes) { store(target + i, load(sums + i, lanes), lanes); });
  if (around_cache) copy_around_cache(out, rounded, n * static_cast<int64_t>(sizeof(Out)));
}

template <class T, class Out>
void sum_part(const Line& line, const Groups& groups, const T* dy, Out* dweight, int64_t begin, int64_t end,
              bool around_cache) {
  const bool accumulate = line.write == 0;
  alignas(64) static constexpr char zeros[kTile * sizeof(Out)] = {};
  for (int64_t v = line.row_at(begin); v < line.vocab && line.begin(v) < end; ++v) {
    const int64_t count = groups.start[v + 1] - groups.start[v];
    if (accumulate && !count) continue;
    const int64_t last = line.column_at(v, end);
    for (int64_t column = line.column_at(v, begin), n; column < last; column += n) {
      n = min_of(kTile, last - column);
      Out* out = dweight + v * line.dim + column;
      if (count)
        sum_rows(dy + column, line.dim, groups.order + groups.start[v], count, out, n, accumulate, around_cache);
      else
        copy_row(out, zeros, n * static_cast<int64_t>(sizeof(Out)), around_cache);
    }
  }
}

}  // namespace

FS_DEFINE(embedding_forward)(const void* indices, const void* weight, void* out, int64_t* bad, int64_t numel,
                             int64_t vocab, int64_t dim, int32_t narrow, int32_t dtype) {
  const int64_t bytes = dim * (dtype == FS_F32 ? 4 : 2);
  const bool around_cache = goes_around_cache(numel * bytes, weight, out);
  const int64_t grain = grain_rows(kEmbeddingGrain, dim);
  const int threads = static_cast<int>(max_of(1, fs_internal_num_threads(numel, grain)));
  int64_t* first_bad = static_cast<int64_t*>(fs_internal_scratch(threads * static_cast<int64_t>(sizeof(int64_t))));
  for (int t = 0; t < threads; ++t) first_bad[t] = numel;
  with_indices(indices, narrow, [&](const auto* rows) {
    parallel_for(numel, grain, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        char* to = static_cast<char*>(out) + i * bytes;
        if (inside(rows[i], vocab)) {
          copy_row(to, static_cast<const char*>(weight) + rows[i] * bytes, bytes, around_cache);
        } else {
          first_bad[thread] = min_of(first_bad[thread], i);
          memset(to, 0, static_cast<size_t>(bytes));
        }
      }
    });
  });
  int64_t first = numel;
  for (int t = 0; t < threads; ++t) first = min_of(first, first_bad[t]);
  bad[0] = first < numel ? first : -1;
}

FS_DEFINE(embedding_backward)(const void* indices, const void* dy, void* dweight, int64_t numel, int64_t vocab,
                              int64_t dim, int64_t padding, int32_t accumulate, int32_t narrow, int32_t dtype,
                              int32_t dweight_dtype) {
  if (vocab <= 0 || dim <= 0) return;
  const int64_t bytes = vocab * dim * (dweight_dtype == FS_F32 ? 4 : 2);
  const bool around_cache = !accumulate && goes_around_cache(bytes, dy, dweight);
  with_indices(indices, narrow, [&](const auto* rows) {
    const Groups groups(rows, numel, vocab, padding);
    const Line line = {groups.start, vocab, dim, accumulate ? 0 : 1};
    const auto run = [&](auto type, auto out_type) {
      using T = decltype(type);
      using Out = decltype(out_type);
      parallel_for(line.begin(vocab), grain_rows(kEmbeddingGrain, dim), [&](int64_t begin, int64_t end, int) {
        sum_part(line, groups, static_cast<const T*>(dy), static_cast<Out*>(dweight), begin, end, around_cache);
      });
    };
    with_type(dtype, [&](auto type) { with_type(dweight_dtype, [&](auto out_type) { run(type, out_type); }); });
  });
}
