// Products of which one matrix is small, as in narrow models: each thread works alone, from packing to the last sum.
//
// Either it owns rows of C, and reads those of A as they lie: packed for 8 panels of columns they cost 20 % of the time.
// Or, if A does not lie by rows (the gradient of a weight, g^T x), the depth is cut into slices, each with sums of its
// own, which are added in the end. So threads wait for each other at the end only, and packed memory stays in the cache of
// one. Slices are cut by the shape alone: the bits are the same for any number of threads.
// 4096 x 128 x 128 on 2 cores of an AMD EPYC, matrices from memory: 133 GFLOP/s, where gemm.cc's way has 109.
#pragma once
#include "gemm/operands.h"

namespace {

class Alone {
 public:
  // c: fp32. bias: fp32, padded to whole panels, or NULL.
  Alone(const Operands& ops, float* c, float* pre, int64_t c_row, bool accumulate, const float* bias, int32_t activation)
      : ops_(ops), c_(c), pre_(pre), c_row_(c_row), accumulate_(accumulate), bias_(bias), activation_(activation) {}

  // Whether that is a good way. `plain`: neither bias nor activation nor pre. Where slices give other bits than gemm.cc,
  // the number of threads must not decide.
  static bool suits(const Operands& ops, bool plain, bool accumulate, int threads) {
    const Shape& shape = ops.shape;
    if (as_it_lies(ops)) return !accumulate && shape.m >= threads * kLeastRows && shape.k * shape.n <= kSmallB;
    return plain && shape.m >= kLeastRows && shape.m * padded(shape) <= kSmallC && num_slices(shape) > 1;
  }

  static int64_t scratch_floats(const Operands& ops, int threads) {
    const int64_t sums = as_it_lies(ops) ? 0 : (num_slices(ops.shape) - 1) * ops.shape.m * padded(ops.shape);
    return threads * kThreadFloats + sums;
  }

  void run(int threads, float* scratch) const {
    if (as_it_lies(ops_))
      by_rows(threads, scratch);
    else
      by_depth(threads, scratch);
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
  static constexpr int64_t kRoomB = kPackedB + kTileCols * kDepth + 8192;  // a panel more, and all the lines between
  static constexpr int64_t kThreadFloats = kRoomB + kBlockPacked;
  static_assert(kManyCols * kDepth <= kPackedB && kLeastPanels * kTileRows * kDepth <= kBlockPacked);
  static_assert((kManyCols / kTileCols + 1) * (kMostDirect / kDepth + 1) * kLine <= 8192);

  struct Target {
    float* c;
    int64_t row;
    bool fresh;
  };
  struct Range {
    int64_t first, last;
  };

  // 14 rows of AVX-512 are too many for pointers in registers. Rows that are all one, 0 apart, would be taken for packed.
  static bool as_it_lies(const Operands& ops) {
    const bool by_rows = ops.a_dtype == FS_F32 && ops.a_col == 1 && ops.a_row != 0;
    return kTileRows <= 6 && by_rows && ops.shape.k > 0 && ops.shape.k <= kMostDirect;
  }
  static int64_t padded(const Shape& shape) { return shape.num_col_panels() * kTileCols; }
  static int64_t num_slices(const Shape& shape) {
    int64_t slices = kMostSlices;
    while (slices > 1 && shape.num_parts() < slices * kLeastParts) slices /= 2;
    return slices;
  }
  int64_t depth_of(int64_t part) const { return ops_.shape.part(part + 1) - ops_.shape.part(part); }
  static int64_t panel_stride(int64_t depth) { return depth * kTileCols + kLine; }

  void by_rows(int threads, float* scratch) const {
    const Panels panels(ops_.shape.m, kTileRows);
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      multiply(panels, {panels.count * t / threads, panels.count * (t + 1) / threads}, {0, ops_.shape.num_parts()},
               {c_, c_row_, !accumulate_}, scratch + t * kThreadFloats);
    });
  }

  // The sums of the first slice stand in C, those of the others behind the scratch of the threads. Rows are cut, too, as
  // far as every thread needs something to do.
  void by_depth(int threads, float* scratch) const {
    const Shape& shape = ops_.shape;
    const Panels panels(shape.m, kTileRows);
    const int64_t stride = padded(shape), parts = shape.num_parts(), slices = num_slices(shape);
    int64_t groups = threads;  // of rows
    for (int64_t s = slices; s > 1 && groups % 2 == 0; s /= 2) groups /= 2;
    float* sums = scratch + threads * kThreadFloats;
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      for (int64_t item = slices * groups * t / threads; item < slices * groups * (t + 1) / threads; ++item) {
        const int64_t slice = item / groups, group = item % groups;
        const Target target = slice ? Target{sums + (slice - 1) * shape.m * stride, stride, true}
                                    : Target{c_, c_row_, !accumulate_};
        multiply(panels, {panels.count * group / groups, panels.count * (group + 1) / groups},
                 {parts * slice / slices, parts * (slice + 1) / slices}, target, scratch + t * kThreadFloats);
      }
    });
    parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
      for (int64_t i = shape.m * t / threads; i < shape.m * (t + 1) / threads; ++i)
        for_vectors(shape.n, [&](int64_t j, auto lanes) {
          vfloat sum = load(c_ + i * c_row_ + j, lanes);
          for (int64_t slice = 1; slice < slices; ++slice)
            sum += load(sums + ((slice - 1) * shape.m + i) * stride + j, All{});
          store(c_ + i * c_row_ + j, sum, lanes);
        });
    });
  }

  // One thread's share: the panels `rows` of A with `parts` of the depth, all columns. own: its scratch.
  void multiply(const Panels& panels, Range rows, Range parts, const Target& target, float* own) const {
    const bool packs = !as_it_lies(ops_);
    const int64_t total = ops_.shape.num_col_panels();
    const int64_t width = packs ? kManyCols : max_of(kFewCols, min_of(kManyCols, kColElements / ops_.shape.k));
    const int64_t chunks = (total * kTileCols + width - 1) / width;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const Range cols = {total * chunk / chunks, total * (chunk + 1) / chunks};
      const int64_t at_once = packs ? 1 : max_of(1, kPackedB / ((cols.last - cols.first) * kTileCols * kDepth));
      for (int64_t part = parts.first; part < parts.last; part += at_once) {
        const Range round = {part, min_of(parts.last, part + at_once)};
        pack_b(round, cols, own);
        const Target to = {target.c, target.row, target.fresh && part == parts.first};
        const int64_t depth = ops_.shape.part(round.last) - ops_.shape.part(part);
        const int64_t height = max_of(kLeastPanels, (packs ? kBlockPacked : kBlockDirect) / (depth * kTileRows));
        for (int64_t p = rows.first; p < rows.last; p += height) {
          const Range block = {p, min_of(rows.last, p + height)};
          multiply_block(panels, block, round, cols, to, own);
          if (round.last == ops_.shape.num_parts()) finish(panels, block, cols);
        }
      }
    }
  }

  void pack_b(Range round, Range cols, float* to) const {
    const int64_t begin = cols.first * kTileCols, width = min_of(ops_.shape.n, cols.last * kTileCols) - begin;
    for (int64_t part = round.first; part < round.last; ++part) {
      const int64_t depth = depth_of(part), stride = panel_stride(depth);
      ops_.pack_b()(ops_.b, ops_.b_row, ops_.b_col, ops_.shape.part(part), begin, width, depth, stride, to);
      to += (cols.last - cols.first) * stride;
    }
  }

  void multiply_block(const Panels& panels, Range block, Range round, Range cols, const Target& to, float* own) const {
    const bool packs = !as_it_lies(ops_);
    const int64_t first_row = panels.begin(block.first);
    float* packed = own + kRoomB;
    if (packs)  // of one part
      ops_.pack_a()(ops_.a, ops_.a_row, ops_.a_col, 0, ops_.shape.part(round.first), panels, block.first, block.last,
                    depth_of(round.first), packed - first_row * depth_of(round.first));
    const float* b = own;
    for (int64_t part = round.first; part < round.last; ++part) {
      const int64_t depth = depth_of(part);
      const float* a = static_cast<const float*>(ops_.a) + ops_.shape.part(part);
      for (int64_t panel = cols.first; panel < cols.last; ++panel, b += panel_stride(depth))
        for (int64_t p = block.first; p < block.last; ++p) {
          const int64_t row = panels.begin(p);
          const TileRows rows = packs ? TileRows{packed + (row - first_row) * depth, 0}
                                      : TileRows{a + row * ops_.a_row, ops_.a_row};
          add_tile(depth, rows, panels.height(p), b, to.c + row * to.row + panel * kTileCols, to.row,
                   ops_.shape.n - panel * kTileCols, to.fresh && part == round.first);
        }
    }
  }

  // to (or 0, if `fresh`) += a tile. Of its columns only `cols` may be there.
  FS_INLINE static void add_tile(int64_t depth, TileRows a, int64_t height, const float* b, float* to, int64_t stride,
                                 int64_t cols, bool fresh) {
    const MultiplyTile multiply_tile = Tiles::functions[height - 1];
    if (cols >= kTileCols) {
      for (int64_t r = 0; r < height; ++r) {  // C may lie in memory
        __builtin_prefetch(to + r * stride, 1);
        __builtin_prefetch(to + r * stride + kTileCols - 1, 1);
      }
      return multiply_tile(depth, a, b, to, stride, fresh);
    }
    float edge[kTileSize] = {};
    for (int64_t r = 0; r < height && !fresh; ++r)
      for_vectors(cols, [&](int64_t j, auto lanes) {
        store(edge + r * kTileCols + j, load(to + r * stride + j, lanes), All{});
      });
    multiply_tile(depth, a, b, edge, kTileCols, fresh);
    for (int64_t r = 0; r < height; ++r)
      for_vectors(cols, [&](int64_t j, auto lanes) {
        store(to + r * stride + j, load(edge + r * kTileCols + j, All{}), lanes);
      });
  }

  // What follows the product, on rows that are still in the cache.
  void finish(const Panels& panels, Range block, Range cols) const {
    if (!bias_ && !pre_ && activation_ == FS_NONE) return;
    const Range rows = {panels.begin(block.first), panels.begin(block.last)};
    switch (activation_) {
      case FS_RELU: return finish_rows<Relu>(rows, cols);
      case FS_GELU: return finish_rows<Gelu>(rows, cols);
      case FS_GELU_TANH: return finish_rows<GeluTanh>(rows, cols);
      case FS_SILU: return finish_rows<Silu>(rows, cols);
      default: return finish_rows<Identity>(rows, cols);
    }
  }
  template <class A>
  void finish_rows(Range rows, Range cols) const {
    const int64_t begin = cols.first * kTileCols, width = min_of(ops_.shape.n, cols.last * kTileCols) - begin;
    for (int64_t i = rows.first; i < rows.last; ++i)
      for_vectors(width, [&](int64_t j, auto lanes) {
        const int64_t at = i * c_row_ + begin + j;
        const vfloat sum = load(c_ + at, lanes), z = bias_ ? sum + load(bias_ + begin + j, All{}) : sum;
        if (pre_) store(pre_ + at, z, lanes);
        store(c_ + at, A::value(z), lanes);
      });
  }

  Operands ops_;
  float *c_, *pre_;
  int64_t c_row_;
  bool accumulate_;
  const float* bias_;
  int32_t activation_;
};

}  // namespace
