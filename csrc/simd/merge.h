// The two halves of a split weight as one float, for formats.h and optimizer/block_formats.h, whose orders of elements
// differ.
#pragma once
#include "simd/vectors.h"

namespace {

// upper + lower. A negative lower half belongs to no zero: somebody has written zeros into the upper halves since, and
// the sum would be a NaN.
FS_INLINE vfloat merge_bits(vuint upper, vint lower) {
  return float_of(upper + (vuint)(((upper << 1) == 0) & (lower < 0) ? vint{} : lower));
}

}  // namespace
