// Matrix product with bias and activation: both operands are copied into panels that tiles read in order, so that any
// strides and bf16 cost no more than dense fp32.
//
// Rows of C are taken by thousands: their part of A is packed once by all threads. Each thread then owns a block of C.
// It packs B by chunks of columns and of kDepth rows, and multiplies each chunk, which stays in the second-level cache,
// with all of its rows. So B, the weights of a layer with few rows, is read from memory once and never written back.
// Where B or C is small, as in narrow models, alone.h is the better way.
#include "gemm/alone.h"
#include "gemm/operands.h"

namespace {

// Multiply-adds that are worth a thread: 14 us of one core with AVX2, where two parallel regions cost about 10. Chosen
// from these, and not yet measured by benchmarks/thresholds.py.
constexpr int64_t kGemmGrain = 1 << 19;
// Columns of B packed at a time, 128 KiB of them with kDepth. Fewer would be a page of memory for a few lines each.
constexpr int64_t kChunkPanels = 128 / kTileCols;
// Panels of A that stay in the second-level cache (about 240 KiB) while the panels of a chunk pass by.
constexpr int64_t kBlockPanels = 240 / kTileRows;
// Elements of A packed before any is used: 4 MiB, read from the third-level cache once for each chunk.
constexpr int64_t kPackedElements = 1 << 20;
// Rows for which B may be packed anew; with fewer, that would show.
constexpr int64_t kEnoughRows = 256;
constexpr int64_t kMostRows = 1024;

// What is packed of A at a time: so many rows, so many parts of the depth. If not all parts, their sums are kept from
// one round to the next, and B is still packed once. But sums over many columns take room, too.
struct Rounds {
  int64_t rows = 0, parts = 0;

  Rounds() = default;
  explicit Rounds(const Shape& shape) : rows(min_of(shape.m, kMostRows)), parts(shape.num_parts()) {
    const int64_t at_once = kPackedElements / max_of(1, shape.k);
    if (at_once >= min_of(rows, kEnoughRows)) {
      rows = min_of(rows, at_once);
    } else {
      rows = min_of(rows, max_of(kEnoughRows / 2, kPackedElements / shape.n));
      parts = max_of(1, kPackedElements / rows / kDepth);
    }
    const int64_t blocks = (shape.m + rows - 1) / rows;
    rows = (shape.m + blocks - 1) / blocks;  // no block of a few rows at the end
  }
  bool one(const Shape& shape) const { return parts >= shape.num_parts(); }
};

// Threads in a grid over the panels of C: a block of it each.
struct Grid {
  int64_t rows, cols;

  // Each row of the grid packs B for itself, so that many of them must pay by an even cut. A packed element costs
  // about as much as 6 multiply-adds of a tile.
  Grid(int64_t threads, int64_t row_panels, int64_t col_panels) : rows(1), cols(threads) {
    int64_t least = -1;
    for (int64_t r = 1; r <= threads; ++r) {
      if (threads % r) continue;
      const int64_t high = (row_panels + r - 1) / r, wide = (col_panels * r + threads - 1) / threads;
      const int64_t cost = wide * (high * kTileRows + 6);
      if (least < 0 || cost < least) {
        least = cost;
        rows = r;
        cols = threads / r;
      }
    }
  }
};

using Finish = void (*)(const float* sums, const float* bias, void* c, void* pre, int64_t stride, bool accumulate,
                        int64_t at, int64_t rows, int64_t cols);

template <class A, class T>
void finish(const float* sums, const float* bias, void* c, void* pre, int64_t stride, bool accumulate, int64_t at,
            int64_t rows, int64_t cols) {
  finish_tile<A>(sums, bias, Output<T>{static_cast<T*>(c), static_cast<T*>(pre), stride, accumulate}, at, rows, cols);
}
template <class T>
Finish finish_of(int32_t activation) {
  switch (activation) {
    case FS_RELU: return finish<Relu, T>;
    case FS_GELU: return finish<Gelu, T>;
    case FS_GELU_TANH: return finish<GeluTanh, T>;
    case FS_SILU: return finish<Silu, T>;
    default: return finish<Identity, T>;
  }
}

// Where the sums of tiles are kept between the parts of the depth: [panel of columns][row][kTileCols].
struct Sums {
  float* data;
  int64_t first_panel, rows;  // rows 0: every tile is complete at once, and they share one place

  FS_INLINE float* tile(int64_t col_panel, int64_t row) const {
    return data + ((col_panel - first_panel) * rows + (rows ? row : 0)) * kTileCols;
  }
};

struct Product : Operands {
  int64_t c_row, b_element, c_element;
  void *c, *pre;
  bool accumulate;
  int32_t activation;
  Finish finish_c;
  // Scratch: the packed rows of A, the bias in fp32, and for each thread a chunk of B.
  float *packed_a, *bias, *chunks, *sums;
  Rounds rounds;
  int64_t chunk_size, sums_size;  // a thread; sums_size 0: one for all, over all columns

  // Asks for the lines of a tile of C while its last sums are computed; it may lie in memory.
  FS_INLINE void fetch_tile(int64_t at, int64_t height) const {
    const char* line = static_cast<const char*>(c) + at * c_element;
    for (int64_t r = 0; r < height; ++r, line += c_row * c_element) {
      __builtin_prefetch(line, 1);
      __builtin_prefetch(line + kTileCols * c_element - 1, 1);
    }
  }

  // What will be packed for a part of the depth and a chunk of columns.
  Ahead ahead(int64_t part, int64_t first_panel, int64_t last_panel) const {
    const int64_t begin = shape.part(part), col = first_panel * kTileCols;
    return Ahead(static_cast<const char*>(b) + (begin * b_row + col * b_col) * b_element, b_row, b_col,
                 shape.part(part + 1) - begin, min_of(shape.n, last_panel * kTileCols) - col, b_element);
  }

  // Parts first .. last of the depth for a thread's block of C, out of rows row_begin .. of the matrix.
  void multiply_block(int64_t row_begin, const Panels& panels, int64_t row_first, int64_t row_last, int64_t col_first,
                      int64_t col_last, int64_t part_first, int64_t part_last, int thread) const {
    float* chunk = chunks + thread * chunk_size;
    if (row_first == row_last) return;  // more threads than panels
    for (int64_t q = col_first; q < col_last; q += kChunkPanels) {
      const int64_t q_end = min_of(col_last, q + kChunkPanels);
      const int64_t col = q * kTileCols, cols = min_of(shape.n, q_end * kTileCols) - col;
      const bool alone = shape.num_parts() == 1;
      const Sums kept = {sums + thread * sums_size, sums_size ? q : 0, alone ? 0 : panels.rows};
      for (int64_t part = part_first; part < part_last; ++part) {
        const int64_t begin = shape.part(part), depth = shape.part(part + 1) - begin;
        // Panels one line apart from a power of two: else they would share a few sets of the first-level cache.
        const int64_t stride = depth * kTileCols + 16;
        pack_b()(b, b_row, b_col, begin, col, cols, depth, stride, chunk);
        const float* rows = packed_a + panels.rows * (begin - shape.part(part_first));
        Ahead next = part + 1 < part_last ? ahead(part + 1, q, q_end)
                     : q_end < col_last   ? ahead(part_first, q_end, min_of(col_last, q_end + kChunkPanels))
                                          : Ahead(nullptr, 0, 0, 0, 0, 0);
        const int64_t lines = next.lines() / ((q_end - q) * (row_last - row_first)) + 1;
        for (int64_t block = row_first; block < row_last; block += kBlockPanels)
          for (int64_t panel = q; panel < q_end; ++panel)
            for (int64_t p = block; p < min_of(row_last, block + kBlockPanels); ++p) {
              const int64_t row = panels.begin(p), height = panels.height(p);
              float* tile = kept.tile(panel, row);
              next.fetch(lines);
              if (part + 1 == shape.num_parts())
                fetch_tile((row_begin + row) * c_row + panel * kTileCols, height);
              Tiles::functions[height - 1](depth, {rows + row * depth, 0}, chunk + (panel - q) * stride, tile, kTileCols,
                                           part == 0);
              if (part + 1 == shape.num_parts())
                finish_c(tile, bias + panel * kTileCols, c, pre, c_row, accumulate,
                         (row_begin + row) * c_row + panel * kTileCols, height,
                         min_of(kTileCols, shape.n - panel * kTileCols));
            }
      }
    }
  }

  void multiply_rows(int64_t row_begin, int64_t num_rows, int threads) const {
    const Panels panels(num_rows, kTileRows);
    const int64_t col_panels = shape.num_col_panels(), num_parts = shape.num_parts();
    const Grid grid(threads, panels.count, col_panels);
    for (int64_t first = 0; first < num_parts; first += rounds.parts) {
      const int64_t last = min_of(num_parts, first + rounds.parts);
      parallel_for(threads, 1, [&](int64_t t, int64_t, int) {
        const int64_t from = panels.count * t / threads, to = panels.count * (t + 1) / threads;
        for (int64_t part = first; part < last; ++part) {
          const int64_t begin = shape.part(part), depth = shape.part(part + 1) - begin;
          pack_a()(a, a_row, a_col, row_begin, begin, panels, from, to, depth,
                   packed_a + num_rows * (begin - shape.part(first)));
        }
      });
      parallel_for(threads, 1, [&](int64_t t, int64_t, int thread) {
        const int64_t i = t / grid.cols, j = t % grid.cols;
        multiply_block(row_begin, panels, panels.count * i / grid.rows, panels.count * (i + 1) / grid.rows,
                       col_panels * j / grid.cols, col_panels * (j + 1) / grid.cols, first, last, thread);
      });
    }
  }

  void run(const void* given_bias, int32_t bias_dtype) {
    const int64_t work = shape.m * shape.n * max_of(1, shape.k), grain = fs_internal_grain(kGemmGrain);
    const int threads = static_cast<int>(max_of(1, fs_internal_num_threads(work, grain)));
    const bool plain = !given_bias && !pre && activation == FS_NONE;
    if (c_element == 4 && Alone::suits(*this, plain, accumulate, threads)) return run_alone(threads, given_bias, bias_dtype);
    const int64_t rows = rounds.rows, padded = shape.num_col_panels() * kTileCols;
    const int64_t packed = rows * min_of(shape.k, rounds.parts * kDepth);
    chunk_size = kChunkPanels * (kDepth * kTileCols + 16);
    sums_size = !rounds.one(shape) ? 0 : shape.num_parts() == 1 ? kTileSize : rows * kChunkPanels * kTileCols;
    const int64_t all_sums = rounds.one(shape) ? threads * sums_size : rows * padded;
    packed_a = static_cast<float*>(fs_internal_scratch((packed + padded + threads * chunk_size + all_sums) * 4 + 256));
    chunks = packed_a + (packed + 15) / 16 * 16;
    sums = chunks + threads * chunk_size;
    bias = sums + all_sums;
    widen_bias(given_bias, bias_dtype);
    for (int64_t row = 0; row < shape.m; row += rows) multiply_rows(row, min_of(rows, shape.m - row), threads);
  }

  void run_alone(int threads, const void* given_bias, int32_t bias_dtype) {
    const int64_t floats = Alone::scratch_floats(*this, threads);
    float* scratch = static_cast<float*>(fs_internal_scratch((floats + shape.num_col_panels() * kTileCols) * 4));
    bias = given_bias ? scratch + floats : nullptr;
    if (bias) widen_bias(given_bias, bias_dtype);
    Alone(*this, static_cast<float*>(c), static_cast<float*>(pre), c_row, accumulate, bias, activation)
        .run(threads, scratch);
  }

  // The bias in fp32, zeros if there is none.
  void widen_bias(const void* given, int32_t dtype) const {
    memset(bias, 0, static_cast<size_t>(shape.num_col_panels() * kTileCols) * sizeof(float));
    if (!given) return;
    with_type(dtype, [&](auto type) {
      const auto* from = static_cast<const decltype(type)*>(given);
      for (int64_t j = 0; j < shape.n; ++j) bias[j] = as_float(from[j]);
    });
  }
};

}  // namespace

FS_DEFINE(gemm)(const void* a, const void* b, const void* bias, void* c, void* pre, int64_t m, int64_t n, int64_t k,
                int64_t a_row_stride, int64_t a_col_stride, int64_t b_row_stride, int64_t b_col_stride,
                int64_t c_row_stride, int32_t accumulate, int32_t activation, int32_t a_dtype, int32_t b_dtype,
                int32_t c_dtype, int32_t bias_dtype) {
  if (m == 0 || n == 0) return;
  Product product = {};
  product.shape = {m, n, k};
  product.rounds = Rounds(product.shape);
  product.a = a;
  product.b = b;
  product.a_row = a_row_stride;
  product.a_col = a_col_stride;
  product.b_row = b_row_stride;
  product.b_col = b_col_stride;
  product.c_row = c_row_stride;
  product.b_element = b_dtype == FS_F32 ? 4 : 2;
  product.c_element = c_dtype == FS_F32 ? 4 : 2;
  product.c = c;
  product.pre = pre;
  product.accumulate = accumulate;
  product.activation = activation;
  product.a_dtype = a_dtype;
  product.b_dtype = b_dtype;
  product.finish_c = c_dtype == FS_F32 ? finish_of<float>(activation) : finish_of<bf16>(activation);
  product.run(bias, bias_dtype);
}
