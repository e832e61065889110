// The loops of a product, for tiles of any kind.
//
// The smaller operand stays: all threads pack it whole, to be read from the last-level cache. The larger one passes by:
// each thread has a share of its lines and packs a chunk of them at a time, which stays in its second-level cache, by
// parts of the depth that let a panel of columns stay in the first. So the larger one, the weights of a layer with few
// rows, is read from memory once and never written back.
// Where even the smaller one is too large, either fewer of its lines are taken at a time, or, if the depth is the longest,
// a round takes some parts of the depth and the sums are kept from one round to the next.
// Which, and where the depth is cut, only sizes decide: the same bits for any number of threads.
#pragma once
#include "gemm/epilogue.h"
#include "gemm/pack.h"

namespace {

struct Operand {
  const void* data;
  int64_t row, col;
  int32_t dtype;

  int64_t element() const { return dtype == FS_F32 ? 4 : 2; }
};

struct Call {
  int64_t m, n, k;
  Operand a, b;
  Epilogue out;
  double* squares;  // or NULL

  int64_t work() const { return m * n * max_of(1, k); }
};

template <class Tiles>
class Product {
  using Packed = typename Tiles::Packed;
  static constexpr int64_t kCols = Tiles::kCols;
  static constexpr int64_t kTile = Tiles::kRows * kCols;
  static constexpr int64_t kPackedSize = sizeof(Packed);
  // Bytes of the operand that stays, read from the last-level cache once for each chunk of the other.
  static constexpr int64_t kStayingBytes = 4 << 20;
  // Columns that pass by at a time, 96 KiB of them. Fewer would be a page of memory for a few lines each.
  static constexpr int64_t kChunkCols = 128;
  // Rows that pass by at a time; of rows that stay, as many are used while the panels of a chunk pass by.
  static constexpr int64_t kChunkRows = 240;
  // Lines for which the passing operand may be packed anew; with fewer, that would show.
  static constexpr int64_t kEnoughLines = 256, kMostLines = 1024;
  // Panels one cache line apart from a power of two: else they would share a few sets of the first-level cache.
  static constexpr int64_t kGap = 64 / kPackedSize;

 public:
  explicit Product(Call& call)
      : call_(call), depth_(call.k, Tiles::kDepth, Tiles::kStep), rows_stay_(call.m <= call.n),
        direct_(call.out.dtype == FS_F32 && call.out.plain()) {
    const int64_t lines = rows_stay_ ? call.m : call.n, others = rows_stay_ ? call.n : call.m;
    const int64_t most = kStayingBytes / kPackedSize;
    const auto fitting = [&](int64_t depth) { return most / max_of(1, Tiles::line_size(depth)); };
    lines_ = min_of(lines, kMostLines);
    parts_ = depth_.count;
    if (fitting(call.k) >= min_of(lines_, kEnoughLines)) {
      lines_ = min_of(lines_, fitting(call.k));
    } else {
      lines_ = min_of(lines_, max_of(kEnoughLines / 2, (kStayingBytes / 4) / others));
      parts_ = max_of(1, most / lines_ / Tiles::line_size(Tiles::kDepth));
    }
    const int64_t unit = rows_stay_ ? Tiles::kRows : kCols;
    lines_ = divide_up(divide_up(lines, divide_up(lines, lines_)), unit) * unit;  // no block of a few lines at the end
  }

  void run(int threads) {
    const int64_t lines = min_of(lines_, padded_lines()), rounds = divide_up(depth_.count, parts_);
    const int64_t staying = lines * Tiles::line_size(min_of(call_.k, parts_ * Tiles::kDepth) + Tiles::kStep * parts_) +
                            divide_up(lines, kCols) * parts_ * kGap;
    chunk_size_ = rows_stay_ ? kChunkCols / kCols * panel_size(Tiles::kDepth)
                             : (kChunkRows + Tiles::kRows + Tiles::kRowUnit) * Tiles::line_size(Tiles::kDepth);
    const int64_t held = rows_stay_ ? lines * kChunkCols : (kChunkRows + Tiles::kRows) * divide_up(lines, kCols) * kCols;
    const bool keeps = depth_.count > 1 && !direct_;
    sums_size_ = rounds > 1 ? 0 : keeps ? held : kTile;
    const int64_t across = rows_stay_ ? lines * divide_up(call_.n, kCols) * kCols
                                      : (call_.m + Tiles::kRows) * divide_up(lines, kCols) * kCols;
    const int64_t all_sums = rounds > 1 ? (direct_ ? threads * kTile : across) : threads * sums_size_;
    const int64_t num_tiles = call_.squares ? divide_up(call_.m, Tiles::kRows) * divide_up(call_.n, kCols) : 0;
    const int64_t bytes =
        (staying + threads * chunk_size_) * kPackedSize + all_sums * 4 + num_tiles * 8 + call_.n * 4 + 1024;
    char* scratch = static_cast<char*>(fs_internal_scratch(bytes));
    const auto take = [&](int64_t size) {
      char* const piece = scratch;
      scratch += divide_up(size, 64) * 64;
      return piece;
    };
    staying_ = reinterpret_cast<Packed*>(take(staying * kPackedSize));
    chunks_ = reinterpret_cast<Packed*>(take(threads * chunk_size_ * kPackedSize));
    sums_ = reinterpret_cast<float*>(take(all_sums * 4));
    if (call_.squares) squares_ = reinterpret_cast<double*>(take(num_tiles * 8));
    call_.out.widen_bias(reinterpret_cast<float*>(take(call_.n * 4)), call_.n);
    const int64_t all = rows_stay_ ? call_.m : call_.n;
    for (int64_t line = 0; line < all; line += lines_)
      multiply_lines({line, min_of(all, line + lines_)}, threads);
    if (call_.squares) {
      double sum = 0;
      for (int64_t i = 0; i < num_tiles; ++i) sum += squares_[i];
      *call_.squares = sum;
    }
  }

 private:
  static int64_t panel_size(int64_t depth) { return kCols * Tiles::line_size(depth) + kGap; }
  int64_t padded_lines() const {
    return rows_stay_ ? Panels(call_.m, Tiles::kRows, Tiles::kRowUnit).padded() : divide_up(call_.n, kCols) * kCols;
  }

  // Threads in a grid over the lines that stay and those that pass.
  struct Grid {
    int64_t staying = 1, passing = 1;

    // Each share of what stays packs what passes for itself, so that many of them must pay by an even cut. A packed
    // element costs about as much as 6 multiply-adds of a tile.
    Grid(int64_t threads, int64_t staying_panels, int64_t passing_panels, int64_t panel_lines) {
      int64_t least = -1;
      for (int64_t s = 1; s <= threads; ++s) {
        if (threads % s) continue;
        const int64_t high = divide_up(staying_panels, s), wide = divide_up(passing_panels * s, threads);
        const int64_t cost = wide * (high * panel_lines + 6);
        if (least >= 0 && cost >= least) continue;
        least = cost;
        staying = s;
        passing = threads / s;
      }
    }
  };

  template <class Body>
  void with_lines(const Operand& x, bool rows, Range lines, int64_t depth_begin, const Body& body) const {
    const int64_t line = rows ? x.row : x.col, step = rows ? x.col : x.row;
    if constexpr (sizeof(typename Tiles::Element) == 2) {
      const bf16* data = static_cast<const bf16*>(x.data) + lines.first * line + depth_begin * step;
      body(Lines<bf16>{data, line, step});
    } else {
      with_type(x.dtype, [&](auto type) {
        using T = decltype(type);
        body(Lines<T>{static_cast<const T*>(x.data) + lines.first * line + depth_begin * step, line, step});
      });
    }
  }
  void pack_rows(Range rows, const Panels& panels, Range range, int64_t part, Packed* to) const {
    with_lines(call_.a, true, rows, depth_.begin(part),
               [&](const auto& lines) { Tiles::pack_rows(lines, panels, range, depth_.of(part), to); });
  }
  void pack_cols(Range cols, int64_t part, Packed* to) const {
    with_lines(call_.b, false, cols, depth_.begin(part), [&](const auto& lines) {
      Tiles::pack_cols(lines, cols.count(), depth_.of(part), panel_size(depth_.of(part)), to);
    });
  }

  // All that has to do with these lines of the operand that stays.
  void multiply_lines(Range lines, int threads) {
    const Range rows = rows_stay_ ? lines : Range{0, call_.m}, cols = rows_stay_ ? Range{0, call_.n} : lines;
    const Panels panels(rows.count(), Tiles::kRows, Tiles::kRowUnit);
    const int64_t col_panels = divide_up(cols.count(), kCols);
    const int64_t staying = rows_stay_ ? panels.count : col_panels, passing = rows_stay_ ? col_panels : panels.count;
    const Grid grid(threads, staying, passing, rows_stay_ ? Tiles::kRows : kCols);
    for (int64_t first = 0; first < depth_.count; first += parts_) {
      const Range parts = {first, min_of(depth_.count, first + parts_)};
      parallel_for(threads, 1, [&](int64_t t, int64_t, int) { pack_staying(rows, panels, cols, parts, t, threads); });
      parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
        [[maybe_unused]] const typename Tiles::Scope scope;
        const Range mine = share({0, staying}, t / grid.passing, grid.staying);
        const Range theirs = share({0, passing}, t % grid.passing, grid.passing);
        if (mine.count() == 0) return;  // more threads than panels
        if (rows_stay_)
          pass_columns(rows, panels, mine, cols, theirs, parts, t);
        else
          pass_rows(rows, panels, theirs, cols, mine, parts, t);
      });
    }
  }

  // Where a part of the operand that stays is packed.
  Packed* staying(const Panels& panels, Range cols, Range parts, int64_t part) const {
    int64_t at = 0;
    for (int64_t p = parts.first; p < part; ++p)
      at += rows_stay_ ? panels.padded() * Tiles::line_size(depth_.of(p))
                       : divide_up(cols.count(), kCols) * panel_size(depth_.of(p));
    return staying_ + at;
  }
  void pack_staying(Range rows, const Panels& panels, Range cols, Range parts, int64_t t, int threads) const {
    for (int64_t part = parts.first; part < parts.last; ++part) {
      Packed* const to = staying(panels, cols, parts, part);
      if (rows_stay_) {
        pack_rows(rows, panels, share({0, panels.count}, t, threads), part, to);
      } else {
        const Range mine = share({0, divide_up(cols.count(), kCols)}, t, threads);
        const Range lines = {cols.first + mine.first * kCols, min_of(cols.last, cols.first + mine.last * kCols)};
        if (mine.count()) pack_cols(lines, part, to + mine.first * panel_size(depth_.of(part)));
      }
    }
  }

  // Where the sums of tiles are between the parts of the depth: [panel of columns][row][kCols], or one place for all.
  struct Sums {
    float* data;
    int64_t first_panel, first_row, rows;  // rows 0: every tile is complete at once

    FS_INLINE float* tile(int64_t col_panel, int64_t row) const {
      return rows ? data + ((col_panel - first_panel) * rows + row - first_row) * kCols : data;
    }
  };
  Sums sums_for(int64_t first_panel, int64_t first_row, int64_t rows, const Panels& panels, int64_t t) const {
    if (direct_) return {sums_ + t * kTile, 0, 0, 0};  // for tiles at the edge
    if (sums_size_ == 0) return {sums_, 0, 0, panels.padded()};
    return {sums_ + t * sums_size_, first_panel, first_row, depth_.count > 1 ? rows : 0};
  }

  void pass_columns(Range rows, const Panels& panels, Range mine, Range cols, Range theirs, Range parts, int64_t t) const {
    Packed* const chunk = chunks_ + t * chunk_size_;
    constexpr int64_t kChunk = kChunkCols / kCols;
    for (int64_t q = theirs.first; q < theirs.last; q += kChunk) {
      const Range chunk_panels = {q, min_of(theirs.last, q + kChunk)};
      const Sums sums = sums_for(q, 0, panels.padded(), panels, t);
      for (int64_t part = parts.first; part < parts.last; ++part) {
        pack_cols(columns(cols, chunk_panels), part, chunk);
        const bool more = part + 1 < parts.last;
        const Range next = {q + kChunk, min_of(theirs.last, q + 2 * kChunk)};
        Ahead ahead = more ? ahead_of(call_.b, false, columns(cols, chunk_panels), part + 1)
                      : next.first < next.last ? ahead_of(call_.b, false, columns(cols, next), parts.first)
                                               : Ahead();
        const int64_t lines = ahead.lines() / (chunk_panels.count() * mine.count()) + 1;
        const Packed* const a = staying(panels, cols, parts, part);
        const int64_t at_once = max_of(1, kChunkRows / Tiles::kRows);
        for (int64_t p = mine.first; p < mine.last; p += at_once)
          multiply_tiles(rows, panels, {p, min_of(mine.last, p + at_once)}, a, cols, chunk_panels, chunk, part, sums, ahead,
                         lines);
      }
    }
  }

  void pass_rows(Range rows, const Panels& panels, Range theirs, Range cols, Range mine, Range parts, int64_t t) const {
    Packed* const chunk = chunks_ + t * chunk_size_;
    constexpr int64_t kChunk = max_of(1, kChunkRows / Tiles::kRows);
    for (int64_t p = theirs.first; p < theirs.last; p += kChunk) {
      const Range chunk_panels = {p, min_of(theirs.last, p + kChunk)};
      const int64_t first_row = panels.begin(p), last_row = end_of(panels, chunk_panels);
      const Sums sums = sums_for(mine.first, first_row, kChunkRows + Tiles::kRows, panels, t);
      for (int64_t part = parts.first; part < parts.last; ++part) {
        const int64_t depth = depth_.of(part);
        Packed* const a = chunk - first_row * Tiles::line_size(depth);  // panels stand by their first row
        pack_rows(rows, panels, chunk_panels, part, a);
        const bool more = part + 1 < parts.last;
        const Range next = {p + kChunk, min_of(theirs.last, p + 2 * kChunk)};
        Ahead ahead = more ? ahead_of(call_.a, true, {rows.first + first_row, rows.first + last_row}, part + 1)
                      : next.first < next.last
                          ? ahead_of(call_.a, true,
                                     {rows.first + panels.begin(next.first), rows.first + end_of(panels, next)},
                                     parts.first)
                          : Ahead();
        const int64_t lines = ahead.lines() / (chunk_panels.count() * mine.count()) + 1;
        const Packed* const b = staying(panels, cols, parts, part) + mine.first * panel_size(depth);
        multiply_tiles(rows, panels, chunk_panels, a, cols, mine, b, part, sums, ahead, lines);
      }
    }
  }

  static int64_t end_of(const Panels& panels, Range range) {
    return panels.begin(range.last - 1) + panels.height(range.last - 1);
  }
  static Range columns(Range cols, Range panels) {
    return {cols.first + panels.first * kCols, min_of(cols.last, cols.first + panels.last * kCols)};
  }
  // The cache lines of these lines of an operand in one part of the depth.
  Ahead ahead_of(const Operand& x, bool rows, Range lines, int64_t part) const {
    const int64_t begin = depth_.begin(part), depth = depth_.of(part);
    const int64_t at = rows ? lines.first * x.row + begin * x.col : begin * x.row + lines.first * x.col;
    return Ahead(static_cast<const char*>(x.data) + at * x.element(), x.row, x.col, rows ? lines.count() : depth,
                 rows ? depth : lines.count(), x.element());
  }

  // Tiles of panels of rows and columns: a panel of columns stays in the first-level cache while those of rows pass by.
  void multiply_tiles(Range rows, const Panels& panels, Range row_panels, const Packed* a, Range cols, Range col_panels,
                      const Packed* b, int64_t part, const Sums& sums, Ahead& ahead, int64_t lines) const {
    const int64_t depth = depth_.of(part), line = Tiles::line_size(depth), b_stride = panel_size(depth);
    const bool first = part == 0, last = part + 1 == depth_.count, adds = direct_ && !(first && !call_.out.accumulate);
    for (int64_t q = col_panels.first; q < col_panels.last; ++q, b += b_stride)
      for (int64_t p = row_panels.first; p < row_panels.last; ++p) {
        const int64_t row = panels.begin(p), height = panels.height(p), at = rows.first + row;
        const int64_t col = cols.first + q * kCols, width = min_of(kCols, cols.last - col);
        ahead.fetch(lines);
        if (adds && p + 1 < row_panels.last)  // sums are read at once, so those of the next tile are asked for
          call_.out.fetch(rows.first + panels.begin(p + 1), col, panels.height(p + 1), width);
        else if (adds && q + 1 < col_panels.last)
          call_.out.fetch(rows.first + panels.begin(row_panels.first), col + kCols, panels.height(row_panels.first),
                          min_of(kCols, cols.last - col - kCols));
        else if (!adds && (direct_ || last))
          call_.out.fetch(at, col, height, width);
        if (direct_) {
          multiply_into_c(depth, a + row * line, height, b, at, col, width, first, sums.data);
        } else {
          float* const tile = sums.tile(q, row);
          Tiles::multiply(depth, a + row * line, height, b, tile, kCols, first);
          if (last) call_.out.finish(tile, kCols, at, col, height, width);
        }
        if (last && squares_)
          squares_[(rows.first / Tiles::kRows + p) * divide_up(call_.n, kCols) + col / kCols] =
              call_.out.squares(at, col, height, width);
      }
  }

  // c, fp32, takes the sums itself; by way of `edge` where a tile reaches beyond it.
  FS_INLINE void multiply_into_c(int64_t depth, const Packed* a, int64_t height, const Packed* b, int64_t at, int64_t col,
                                 int64_t width, bool first, float* edge) const {
    float* const c = static_cast<float*>(call_.out.c) + at * call_.out.row + col;
    const int64_t stride = call_.out.row;
    const bool fresh = first && !call_.out.accumulate;
    if (width == kCols && height % Tiles::kRowUnit == 0) return Tiles::multiply(depth, a, height, b, c, stride, fresh);
    if (!fresh)
      for (int64_t r = 0; r < height; ++r)
        for_vectors(width, [&](int64_t i, auto lanes) {
          store(edge + r * kCols + i, load(c + r * stride + i, lanes), All{});
        });
    Tiles::multiply(depth, a, height, b, edge, kCols, fresh);
    for (int64_t r = 0; r < height; ++r)
      for_vectors(width, [&](int64_t i, auto lanes) {
        store(c + r * stride + i, load(edge + r * kCols + i, All{}), lanes);
      });
  }

  Call& call_;
  Depth depth_;
  bool rows_stay_, direct_;
  int64_t lines_, parts_;  // of what stays, taken at a time
  int64_t chunk_size_, sums_size_;  // of a thread; sums_size_ 0: one for all
  Packed *staying_, *chunks_;
  float* sums_;
  double* squares_ = nullptr;  // of each tile, to be added in their order: the sum does not depend on threads
};

}  // namespace
