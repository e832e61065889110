// Matrix product with bias and activation, by the tiles that this variant multiplies its types fastest with.
#include "gemm/alone.h"
#include "gemm/product.h"
#include "gemm/tiles.h"

namespace {

// Multiply-adds that are worth a thread: 14 us of one core with AVX2, where two parallel regions cost about 10. Chosen
// from these, and not yet measured by benchmarks/thresholds.py.
constexpr int64_t kGemmGrain = 1 << 19;

}  // namespace

FS_DEFINE(gemm)(const void* a, const void* b, const void* bias, void* c, void* pre, double* squares, int64_t m, int64_t n,
                int64_t k, int64_t a_row_stride, int64_t a_col_stride, int64_t b_row_stride, int64_t b_col_stride,
                int64_t c_row_stride, int32_t accumulate, int32_t activation, int32_t a_dtype, int32_t b_dtype,
                int32_t c_dtype, int32_t bias_dtype) {
  if (squares) *squares = 0;
  if (m == 0 || n == 0) return;
  Call call = {m, n, k, {a, a_row_stride, a_col_stride, a_dtype}, {b, b_row_stride, b_col_stride, b_dtype},
               {c, pre, c_row_stride, c_dtype, activation, accumulate != 0, bias, bias_dtype}, squares};
  const int threads = max_of(1, fs_internal_num_threads(call.work(), fs_internal_grain(kGemmGrain)));
  if (sizeof(Bf16Tiles::Element) == 2 && a_dtype == FS_BF16 && b_dtype == FS_BF16)
    Product<Bf16Tiles>(call).run(threads);
  else if (Alone::suits(call, threads))
    Alone(call).run(threads);
  else
    Product<F32Tiles>(call).run(threads);
}
