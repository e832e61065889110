// Products of which one matrix is small, as in narrow models: each thread works alone, from packing to the last sum.
//
// Either it owns rows of C, and reads those of A as they lie: packed for 8 panels of columns they cost 20 % of the time.
// Or, if A does not lie by rows (the gradient of a weight, g^T x), the depth is cut into slices, each with sums of its
// own, which are added in the end. So threads wait for each other at the end only, and packed memory stays in the cache of
// one. Slices are cut by the shape alone: the bits are the same for any number of threads.
// 4096 x 128 x 128 on 2 cores of an AMD EPYC, matrices from memory: 133 GFLOP/s, where a way like product.h's had 109.
#pragma once
#include "gemm/product.h"
#include "gemm/vector_tiles.h"

namespace {

class Alone {
  using Tiles = VectorTiles<F32Words>;
  static constexpr int64_t kRows = Tiles::kRows, kCols = Tiles::kCols, kDepth = Tiles::kDepth;

 public:
  explicit Alone(Call& call) : call_(call), depth_(call.k, kDepth, 1) {}

  // Whether that is a good way. Where slices give other bits than product.h, the number of threads must not decide.
  static bool suits(const Call& call, int threads) {
    if (call.out.dtype != FS_F32) return false;
    if (as_it_lies(call))
      return !call.out.accumulate && call.m >= threads * kLeastRows && call.k * call.n <= kSmallB;
    return call.out.plain() && call.m >= kLeastRows && call.m * padded(call) <= kSmallC && num_slices(call) > 1;
  }

  void run(int threads) {
    const int64_t sums = as_it_lies(call_) ? 0 : (num_slices(call_) - 1) * call_.m * padded(call_);
    const int64_t floats = threads * kThreadFloats + sums;
    float* scratch = static_cast<float*>(fs_internal_scratch((floats + call_.n) * 4));
    call_.out.widen_bias(scratch + floats, call_.n);
    if (as_it_lies(call_))
      by_rows(threads, scratch);
    else
      by_depth(threads, scratch);
    if (call_.squares) *call_.squares = call_.out.squares(0, 0, call_.m, call_.n);
  }

 private:
  static constexpr int64_t kLeastRows = 64;        // of a thread: with fewer, it would mostly pack B
  static constexpr int64_t kSmallB = 1 << 19;      // elements; above, both ways are as fast
  static constexpr int64_t kSmallC = 1 << 18;      // elements, which every slice has
  static constexpr int64_t kMostSlices = 4, kLeastParts = 2;  // parts of the depth a slice
  static constexpr int64_t kMostDirect = 1024;     // columns of A; longer rows lie on few sets of the cache
  static constexpr int64_t kPackedB = 1 << 17;     // elements, 512 KiB, in the second-level cache
  static constexpr int64_t kFewCols = 256, kManyCols = 512, kColElements = 96 << 10;  // of B packed at a time
  static constexpr int64_t kBlockDirect = 24 << 10, kBlockPacked = 48 << 10;  // elements of A, used while B passes by
  static constexpr int64_t kLeastPanels = 4;       // of rows in a block
  static constexpr int64_t kLine = 16;             // between panels, against powers of two
  static constexpr int64_t kRoomB = kPackedB + kCols * kDepth + 8192;  // a panel more, and all the lines between
  static constexpr int64_t kThreadFloats = kRoomB + kBlockPacked;
  static_assert(kManyCols * kDepth <= kPackedB && kLeastPanels * kRows * kDepth <= kBlockPacked);
  static_assert((kManyCols / kCols + 1) * (kMostDirect / kDepth + 1) * kLine <= 8192);

  struct Sums {
    float* data;
    int64_t row;
    bool fresh;
  };
  Sums in_c() const { return {static_cast<float*>(call_.out.c), call_.out.row, !call_.out.accumulate}; }

  // 14 rows of AVX-512 are too many for pointers in registers.
  static bool as_it_lies(const Call& call) {
    return Tiles::kTakesLying && call.a.dtype == FS_F32 && call.a.col == 1 && call.k > 0 && call.k <= kMostDirect;
  }
  static int64_t padded(const Call& call) { return divide_up(call.n, kCols) * kCols; }
  static int64_t num_parts(const Call& call) { return Depth(call.k, kDepth, 1).count; }
  static int64_t num_slices(const Call& call) {
    int64_t slices = kMostSlices;
    while (slices > 1 && num_parts(call) < slices * kLeastParts) slices /= 2;
    return slices;
  }
  static int64_t panel_stride(int64_t depth) { return depth * kCols + kLine; }

  void by_rows(int threads, float* scratch) const {
    const Panels panels(call_.m, kRows);
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      multiply(panels, share({0, panels.count}, t, threads), {0, depth_.count}, in_c(), scratch + t * kThreadFloats);
    });
  }

  // The sums of the first slice stand in C, those of the others behind the scratch of the threads. Rows are cut, too, as
  // far as every thread needs something to do.
  void by_depth(int threads, float* scratch) const {
    const Panels panels(call_.m, kRows);
    const int64_t stride = padded(call_), slices = num_slices(call_);
    int64_t groups = threads;  // of rows
    for (int64_t s = slices; s > 1 && groups % 2 == 0; s /= 2) groups /= 2;
    float* const sums = scratch + threads * kThreadFloats;
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      const Range items = share({0, slices * groups}, t, threads);
      for (int64_t item = items.first; item < items.last; ++item) {
        const int64_t slice = item / groups, group = item % groups;
        multiply(panels, share({0, panels.count}, group, groups), share({0, depth_.count}, slice, slices),
                 slice ? Sums{sums + (slice - 1) * call_.m * stride, stride, true} : in_c(), scratch + t * kThreadFloats);
      }
    });
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      const Range rows = share({0, call_.m}, t, threads);
      for (int64_t i = rows.first; i < rows.last; ++i) {
        float* const c = in_c().data + i * call_.out.row;
        for_vectors(call_.n, [&](int64_t j, auto lanes) {
          vfloat sum = load(c + j, lanes);
          for (int64_t slice = 1; slice < slices; ++slice)
            sum += load(sums + ((slice - 1) * call_.m + i) * stride + j, All{});
          store(c + j, sum, lanes);
        });
      }
    });
  }

  // One thread's share: the panels `rows` of A with `parts` of the depth, all columns. own: its scratch.
  void multiply(const Panels& panels, Range rows, Range parts, const Sums& sums, float* own) const {
    const bool packs = !as_it_lies(call_);
    const int64_t total = divide_up(call_.n, kCols);
    const int64_t width = packs ? kManyCols : max_of(kFewCols, min_of(kManyCols, kColElements / call_.k));
    const int64_t chunks = divide_up(total * kCols, width);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Range cols = share({0, total}, chunk, chunks);
      const int64_t at_once = packs ? 1 : max_of(1, kPackedB / (cols.count() * kCols * kDepth));
      for (int64_t part = parts.first; part < parts.last; part += at_once) {
        const Range round = {part, min_of(parts.last, part + at_once)};
        pack_b(round, cols, own);
        const Sums to = {sums.data, sums.row, sums.fresh && part == parts.first};
        const int64_t depth = depth_.begin(round.last) - depth_.begin(part);
        const int64_t height = max_of(kLeastPanels, (packs ? kBlockPacked : kBlockDirect) / (depth * kRows));
        for (int64_t p = rows.first; p < rows.last; p += height) {
          const Range block = {p, min_of(rows.last, p + height)};
          multiply_block(panels, block, round, cols, to, own);
          if (round.last == depth_.count && !call_.out.plain()) finish(panels, block, cols);
        }
      }
    }
  }

  static uint32_t* words(float* x) { return reinterpret_cast<uint32_t*>(x); }

  void pack_b(Range round, Range cols, float* to) const {
    const int64_t begin = cols.first * kCols, width = min_of(call_.n, cols.last * kCols) - begin;
    for (int64_t part = round.first; part < round.last; ++part) {
      const int64_t depth = depth_.of(part), stride = panel_stride(depth);
      with_type(call_.b.dtype, [&](auto type) {
        using T = decltype(type);
        const Lines<T> all{static_cast<const T*>(call_.b.data), call_.b.col, call_.b.row};
        Tiles::pack_cols(all.from(begin, depth_.begin(part)), width, depth, stride, words(to));
      });
      to += cols.count() * stride;
    }
  }
  void pack_a(const Panels& panels, Range block, int64_t part, float* to) const {
    with_type(call_.a.dtype, [&](auto type) {
      using T = decltype(type);
      const Lines<T> all{static_cast<const T*>(call_.a.data), call_.a.row, call_.a.col};
      Tiles::pack_rows(all.from(0, depth_.begin(part)), panels, block, depth_.of(part), words(to));
    });
  }

  void multiply_block(const Panels& panels, Range block, Range round, Range cols, const Sums& to, float* own) const {
    const bool packs = !as_it_lies(call_);
    const int64_t first_row = panels.begin(block.first);
    float* const packed = own + kRoomB;
    if (packs) pack_a(panels, block, round.first, packed - first_row * depth_.of(round.first));  // of one part
    const float* b = own;
    for (int64_t part = round.first; part < round.last; ++part) {
      const int64_t depth = depth_.of(part);
      const float* const lying = static_cast<const float*>(call_.a.data) + depth_.begin(part);
      for (int64_t panel = cols.first; panel < cols.last; ++panel, b += panel_stride(depth))
        for (int64_t p = block.first; p < block.last; ++p) {
          const int64_t row = panels.begin(p);
          const float* const a = packs ? packed + (row - first_row) * depth : lying + row * call_.a.row;
          add_tile(depth, a, packs, panels.height(p), b, to.data + row * to.row + panel * kCols, to.row,
                   call_.n - panel * kCols, to.fresh && part == round.first);
        }
    }
  }

  FS_INLINE void multiply_tile(int64_t depth, const float* a, bool packed, int64_t height, const float* b, float* to,
                               int64_t stride, bool fresh) const {
    const auto *a_words = reinterpret_cast<const uint32_t*>(a), *b_words = reinterpret_cast<const uint32_t*>(b);
    if (packed)
      Tiles::multiply(depth, a_words, height, b_words, to, stride, fresh);
    else
      Tiles::multiply_lying(depth, a_words, call_.a.row, height, b_words, to, stride, fresh);
  }

  // to (or 0, if `fresh`) += a tile. Of its columns only `cols` may be there.
  FS_INLINE void add_tile(int64_t depth, const float* a, bool packed, int64_t height, const float* b, float* to,
                          int64_t stride, int64_t cols, bool fresh) const {
    if (cols >= kCols) {
      for (int64_t r = 0; r < height; ++r) {  // C may lie in memory
        __builtin_prefetch(to + r * stride, 1);
        __builtin_prefetch(to + r * stride + kCols - 1, 1);
      }
      return multiply_tile(depth, a, packed, height, b, to, stride, fresh);
    }
    float edge[kRows * kCols] = {};
    for (int64_t r = 0; r < height && !fresh; ++r)
      for_vectors(cols, [&](int64_t j, auto lanes) {
        store(edge + r * kCols + j, load(to + r * stride + j, lanes), All{});
      });
    multiply_tile(depth, a, packed, height, b, edge, kCols, fresh);
    for (int64_t r = 0; r < height; ++r)
      for_vectors(cols, [&](int64_t j, auto lanes) {
        store(to + r * stride + j, load(edge + r * kCols + j, All{}), lanes);
      });
  }

  // What follows the product, on rows that are still in the cache: their sums stand in C.
  void finish(const Panels& panels, Range block, Range cols) const {
    const int64_t first = panels.begin(block.first), begin = cols.first * kCols;
    call_.out.finish(in_c().data + first * call_.out.row + begin, call_.out.row, first, begin,
                     panels.begin(block.last) - first, min_of(call_.n, cols.last * kCols) - begin);
  }

  Call& call_;
  Depth depth_;
};

}  // namespace
