// The CPU's matrix unit: eight tiles of 16 rows of 64 bytes, multiplied with each other and summed in fp32.
//
// Instructions are written out. GCC 12's intrinsics do not say which memory they read: stores to a buffer that only a tile
// is loaded from were removed, and most of a configuration, too.
#pragma once
#include "simd/vectors.h"

#if defined(__AMX_BF16__)

namespace {

// Rows of a tile, and bf16 of a row: a pair of them, along the depth, is multiplied with a pair.
constexpr int64_t kMatrixRows = 16, kMatrixDepth = 32;

// All tiles whole, for the calling thread, until the end of the scope. Precondition: fs_isa_supported has asked the
// kernel for permission.
class MatrixScope {
 public:
  MatrixScope() {
    Configuration all = {};
    all.palette = 1;
    for (int t = 0; t < 8; ++t) {
      all.row_bytes[t] = 64;
      all.rows[t] = kMatrixRows;
    }
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  ~MatrixScope() { asm volatile("tilerelease"); }

 private:
  struct Configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
};

// Tile kTile from and to rows that are `stride` bytes apart.
template <int kTile>
FS_INLINE void load_matrix(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
FS_INLINE void store_matrix(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
FS_INLINE void clear_matrix() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Tile kSum += tile kLeft, 16 rows of 16 pairs, times tile kRight, 16 pairs of 16 columns.
template <int kSum, int kLeft, int kRight>
FS_INLINE void multiply_matrices() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

}  // namespace

#endif
