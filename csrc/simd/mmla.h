// Products of 2 x 4 by 4 x 2 bf16, summed in fp32, in one instruction of arm64's BF16 extension.
#pragma once
#include "simd/vectors.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

namespace {

// Two lines of four, one after the other; and 2 x 2 sums, row by row.
constexpr int64_t kMmlaDepth = 4;

FS_INLINE vfloat add_mmla(vfloat sums, const bf16* a, const bf16* b) {
  bfloat16x8_t left, right;
  memcpy(&left, a, sizeof(left));
  memcpy(&right, b, sizeof(right));
  return (vfloat)vbfmmlaq_f32((float32x4_t)sums, left, right);
}

// Sums of columns 0, 1 and of columns 2, 3 to the two rows of four, and back: the same exchange of the inner halves.
struct MmlaPair {
  vfloat first, second;
};
FS_INLINE MmlaPair exchange_halves(MmlaPair x) {
  return {FS_SHUFFLE(x.first, x.second, 0, 1, 4, 5), FS_SHUFFLE(x.first, x.second, 2, 3, 6, 7)};
}

}  // namespace

#endif
