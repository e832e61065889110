// Formats that are stored but not computed in: split fp32.
#pragma once
#include "simd.h"

namespace {

// ---- split fp32: hi (bf16, rounded to nearest, ties away from zero) and lo (int16) -------------------------

// hi = (bits + 0x8000) >> 16 and lo = bits - (hi << 16), which is the lower half read as a signed number. Together
// they are every bit of x. A NaN becomes the quiet NaN with lo = 0: the carry could make hi an infinity or a zero.
struct Split {
  vhalf hi, lo;
};
FS_INLINE Split split_bits(vfloat x) {
  vuint u = bits_of(x);
  u = x != x ? (u & 0x80000000u) | 0x7fc00000u : u;
  return {narrow((u + 0x8000u) >> 16), narrow(u & 0xffffu)};
}
// (hi << 16) + lo, the whole float.
FS_INLINE vfloat merge_bits(vhalf hi, vhalf lo) {
  return float_of((widen(hi) << 16) + (vuint)((vint)(widen(lo) << 16) >> 16));
}

template <class Lanes>
FS_INLINE vfloat load_split(const bf16* hi, const int16_t* lo, Lanes lanes) {
  return merge_bits(load_lanes<vhalf>(hi, lanes), load_lanes<vhalf>(lo, lanes));
}
template <class Lanes>
FS_INLINE void store_split(bf16* hi, int16_t* lo, vfloat x, Lanes lanes) {
  const Split parts = split_bits(x);
  store_lanes(hi, parts.hi, lanes);
  store_lanes(lo, parts.lo, lanes);
}

}  // namespace
