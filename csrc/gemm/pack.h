// Copies of parts of a matrix in the order in which vector tiles read them: panels of words, [depth][lines].
#pragma once
#include "gemm/panels.h"
#include "simd/words.h"

namespace {

// ---- reading ahead --------------------------------------------------------------------------------------------

// The cache lines of a part of a matrix, to be asked for a few at a time while something else is computed.
class Ahead {
 public:
  Ahead() = default;
  // Nothing if the part is not dense in one direction.
  Ahead(const void* data, int64_t row, int64_t col, int64_t rows, int64_t cols, int64_t element) {
    if (!data || (row != 1 && col != 1)) return;
    const bool by_rows = col == 1;
    at_ = static_cast<const char*>(data);
    stride_ = (by_rows ? row : col) * element;
    left_ = by_rows ? rows : cols;
    lines_ = divide_up((by_rows ? cols : rows) * element, 64);
  }
  int64_t lines() const { return left_ * lines_; }
  FS_INLINE void fetch(int64_t count) {
    for (int64_t i = 0; i < count && left_ > 0; ++i) {
      __builtin_prefetch(at_ + 64 * line_, 0, 2);
      if (++line_ < lines_) continue;
      line_ = 0;
      at_ += stride_;
      --left_;
    }
  }

 private:
  const char* at_ = nullptr;
  int64_t stride_ = 0, left_ = 0, lines_ = 0, line_ = 0;
};

// ---- panels of words ------------------------------------------------------------------------------------------

// Lines that are dense in the depth: four words at a time are turned. Whole vectors are stored, and what stands behind
// the last line is overwritten by the next words, so the last ones are left to the caller. Returns the words done.
template <class Words, class T>
FS_INLINE int64_t turn_lines(const Lines<T>& m, int64_t count, int64_t depth, int64_t steps, uint32_t* to) {
  const int64_t whole = depth / Words::kStep;
  int64_t s = 0;
  for (; s + 4 <= whole && (s + 3) * count + kWidth <= steps * count; s += 4) {
    for (int64_t l = 0; l < count; l += kWidth) {
      vuint v[4];
      read_quads<Words>(m.from(l, 0), count - l, s, v);
      for (int j = 0; j < 4; ++j) {
        float* target = reinterpret_cast<float*>(to) + (s + j) * count + l;
        if (l == 0 || count - l >= kWidth)
          store(target, float_of(v[j]), All{});
        else
          store(target, float_of(v[j]), First{count - l});
      }
    }
  }
  return s;
}

FS_INLINE int64_t whole_vectors(int64_t n) { return divide_up(n, kWidth) * kWidth; }

// Lines that lie side by side, so that a word of `count` panels of `height` lines is read in one go: it is copied into all
// of them, in whole vectors as above. Precondition: whole vectors can be read from the last panel, too.
template <class Words, class T>
FS_INLINE int64_t copy_across(const Lines<T>& m, int64_t count, int64_t height, int64_t depth, int64_t steps,
                              uint32_t* to) {
  constexpr int64_t kAhead = 8;  // steps are too far apart for the prefetcher of the CPU
  constexpr int64_t kLine = 64 / sizeof(T);
  int64_t s = 0;
  for (; s * height + whole_vectors(height) <= steps * height; ++s) {
    for (int64_t d = (s + kAhead) * Words::kStep; d < min_of(depth, (s + kAhead + 1) * Words::kStep); ++d)
      for (int64_t l = 0; l < count * height; l += kLine) __builtin_prefetch(m.at(l, d));
    for (int64_t p = 0; p < count; ++p)
      for (int64_t l = 0; l < height; l += kWidth)
        store_lanes(to + (p * steps + s) * height + l,
                    WordReader<Words, T>::across(m, p * height + l, s, depth, All{}), All{});
  }
  return s;
}

// Panels first .. last of lines of m: panel p stands at to + panels.begin(p) * steps as [steps][height(p)].
template <class Words, class T>
void pack_rows(const Lines<T>& m, const Panels& panels, Range range, int64_t depth, uint32_t* to) {
  constexpr int64_t kGroup = 16;
  const int64_t steps = divide_up(depth, Words::kStep);
  for (int64_t p = range.first; p < range.last; ++p) {
    const int64_t begin = panels.begin(p), height = panels.height(p);
    const Lines<T> lines = m.from(begin, 0);
    uint32_t* target = to + begin * steps;
    int64_t count = 1, done = 0;
    if (m.line == 1) {
      const int64_t alike = (p < panels.higher ? min_of(range.last, panels.higher) : range.last) - p;
      const int64_t room = panels.rows - begin - whole_vectors(height);
      if (room >= 0) {
        count = min_of(min_of(kGroup, alike), room / height + 1);
        done = copy_across<Words>(lines, count, height, depth, steps, target);
      }
    } else if (m.step == 1) {
      done = turn_lines<Words>(lines, height, depth, steps, target);
    }
    for (int64_t q = 0; q < count; ++q)
      for (int64_t s = done; s < steps; ++s)
        for (int64_t l = 0; l < height; ++l)
          target[(q * steps + s) * height + l] = WordReader<Words, T>::word(lines, q * height + l, s, depth);
    p += count - 1;
  }
}

// `count` lines of m as panels of kLines lines: panel q stands at to + q * stride as [steps][kLines]. What stands beyond
// the last line is of no account.
template <class Words, int64_t kLines, class T>
void pack_cols(const Lines<T>& m, int64_t count, int64_t depth, int64_t stride, uint32_t* to) {
  const int64_t steps = divide_up(depth, Words::kStep), whole = depth / Words::kStep;
  if (m.line == 1) {
    for (int64_t s = 0; s < steps; ++s)
      for_vectors(count, [&](int64_t l, auto lanes) {
        store_lanes(to + l / kLines * stride + s * kLines + l % kLines,
                    WordReader<Words, T>::across(m, l, s, depth, lanes), All{});
      });
    return;
  }
  for (int64_t l = 0; l < count; l += kWidth) {
    const Lines<T> lines = m.from(l, 0);
    uint32_t* target = to + l / kLines * stride + l % kLines;
    const int64_t present = min_of(kWidth, count - l);
    int64_t s = 0;
    if (m.step == 1)
      for (; s + 4 <= whole; s += 4) {
        vuint v[4];
        read_quads<Words>(lines, present, s, v);
        for (int j = 0; j < 4; ++j) store_lanes(target + (s + j) * kLines, v[j], All{});
      }
    for (; s < steps; ++s)
      for (int64_t i = 0; i < present; ++i)
        target[s * kLines + i] = WordReader<Words, T>::word(lines, i, s, depth);
  }
}

}  // namespace
