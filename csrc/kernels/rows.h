// How a matrix is cut for the threads.
#pragma once
#include "kernel.h"

namespace {

// A matrix cut into one block a thread: of whole rows where there are enough of them, else of columns.
struct Blocks {
  static constexpr int64_t kColumnUnit = 64;  // columns are cut at multiples of it: no cache line has two writers

  int64_t rows, cols, grain;
  bool by_rows;

  // `elements` elements are worth a thread.
  Blocks(int64_t rows, int64_t cols, int64_t elements) : rows(rows), cols(cols) {
    elements = fs_internal_grain(elements);
    // With four rows a thread, the one that gets a row more than another works at most a quarter longer.
    by_rows = rows >= 4 * fs_internal_num_threads(rows * cols, elements) || cols < 2 * kColumnUnit;
    grain = max_of(1, elements / max_of(1, by_rows ? cols : rows * kColumnUnit));
  }

  int64_t num_units() const { return by_rows ? rows : (cols + kColumnUnit - 1) / kColumnUnit; }
  int threads() const { return static_cast<int>(max_of(1, fs_internal_num_threads(num_units(), grain))); }

  // body(first row, end row, first column, end column, thread)
  template <class Body>
  void run(const Body& body) const {
    parallel_for(num_units(), grain, [&](int64_t begin, int64_t end, int thread) {
      if (by_rows)
        body(begin, end, int64_t{0}, cols, thread);
      else
        body(int64_t{0}, rows, begin * kColumnUnit, min_of(cols, end * kColumnUnit), thread);
    });
  }
};

}  // namespace
