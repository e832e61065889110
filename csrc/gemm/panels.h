// How the operands of a product are cut: lines into panels, the depth into parts.
#pragma once
#include "kernel.h"

namespace {

struct Range {
  int64_t first, last;
  FS_INLINE int64_t count() const { return last - first; }
};
// Part i of n nearly equal ones.
FS_INLINE Range share(Range all, int64_t i, int64_t n) {
  return {all.first + all.count() * i / n, all.first + all.count() * (i + 1) / n};
}

constexpr FS_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows cut into panels of nearly equal height: a last panel of one or two rows would leave the multiply-adds waiting.
// Heights are multiples of `unit`, but for the last one.
struct Panels {
  int64_t rows, unit, count, least, higher;  // `higher` panels of least + 1 units, then those of `least`

  Panels(int64_t rows, int64_t most, int64_t unit = 1)
      : rows(rows), unit(unit), count(divide_up(divide_up(rows, unit), most / unit)),
        least(divide_up(rows, unit) / count), higher(divide_up(rows, unit) % count) {}
  FS_INLINE int64_t begin(int64_t panel) const { return (panel * least + min_of(panel, higher)) * unit; }
  FS_INLINE int64_t height(int64_t panel) const {
    return min_of(rows - begin(panel), (least + (panel < higher)) * unit);
  }
  // Rows with those that fill up the last unit.
  FS_INLINE int64_t padded() const { return divide_up(rows, unit) * unit; }
};

// The depth cut into nearly equal parts of at most `most`, at multiples of `step`.
struct Depth {
  int64_t size, step, count;

  Depth(int64_t size, int64_t most, int64_t step) : size(size), step(step), count(max_of(1, divide_up(size, most))) {}
  FS_INLINE int64_t begin(int64_t part) const {
    return min_of(size, divide_up(divide_up(size, step) * part, count) * step);
  }
  FS_INLINE int64_t of(int64_t part) const { return begin(part + 1) - begin(part); }
};

}  // namespace
