// A block of 256 weights and states in its storage formats, for updates that decode, compute and encode in registers:
// one loop for each combination of formats, over pairs of vectors. An update is a template over both types:
//
//     for (int64_t i = 0; i < kBlock; i += 2 * kWidth) { ... weight.load(i), states.load_m(i), states.store(i, m, v) }
//     if constexpr (States::kBlocks) states.encode(new_m, new_root);
#pragma once
#include "optimizer/step.h"

namespace {

struct Place {
  const Address& at;
  const Keys& keys;
  int64_t first;
};

FS_INLINE void stash(float* p, EvenOdd x) {
  store(p, x.even, All{});
  store(p + kWidth, x.odd, All{});
}
FS_INLINE EvenOdd stashed(const float* p) { return {load(p, All{}), load(p + kWidth, All{})}; }

FS_INLINE EvenOdd sqrt(EvenOdd x) { return {sqrt(x.even), sqrt(x.odd)}; }

struct F32Weight {
  static constexpr bool kAnyNan = true;
  float* p;
  F32Weight() = default;
  explicit F32Weight(const Place& place) : p(reinterpret_cast<float*>(place.at.array[kWeight])) {}
  FS_INLINE EvenOdd load(int64_t i) const { return load_even_odd(p + i); }
  FS_INLINE void store(int64_t i, EvenOdd w) const { store_even_odd(p + i, w); }
};
struct SplitWeight {
  static constexpr bool kAnyNan = false;
  bf16* hi;
  int16_t* lo;
  SplitWeight() = default;
  explicit SplitWeight(const Place& place)
      : hi(reinterpret_cast<bf16*>(place.at.array[kWeight])),
        lo(reinterpret_cast<int16_t*>(place.at.array[kWeightLo])) {}
  FS_INLINE EvenOdd load(int64_t i) const { return load_split_even_odd(hi + i, lo + i); }
  FS_INLINE void store(int64_t i, EvenOdd w) const { store_split_even_odd(hi + i, lo + i, w); }
};
struct Bf16Weight {
  static constexpr bool kAnyNan = false;
  bf16* p;
  BlockRandom random;
  Bf16Weight() = default;
  explicit Bf16Weight(const Place& place)
      : p(reinterpret_cast<bf16*>(place.at.array[kWeight])), random(place.keys.weight, place.first) {}
  FS_INLINE EvenOdd load(int64_t i) const { return load_even_odd(p + i); }
  FS_INLINE void store(int64_t i, EvenOdd w) const {
    store_rounded(p + i, w, random.draw_halves(i).of_m());
  }
};

struct F32States {
  static constexpr bool kBlocks = false, kAnyNan = true;
  float *m, *v;
  F32States() = default;
  explicit F32States(const Place& place)
      : m(reinterpret_cast<float*>(place.at.array[kM])), v(reinterpret_cast<float*>(place.at.array[kV])) {}
  FS_INLINE EvenOdd load_m(int64_t i) const { return load_even_odd(m + i); }
  FS_INLINE EvenOdd load_v(int64_t i) const { return load_even_odd(v + i); }
  FS_INLINE EvenOdd load_root(int64_t i) const { return sqrt(load_v(i)); }
  FS_INLINE void store(int64_t i, EvenOdd new_m, EvenOdd new_v) const {
    store_even_odd(m + i, new_m);
    store_even_odd(v + i, new_v);
  }
};
struct Bf16States {
  static constexpr bool kBlocks = false, kAnyNan = false;
  bf16 *m, *v;
  BlockRandom random;
  Bf16States() = default;
  explicit Bf16States(const Place& place)
      : m(reinterpret_cast<bf16*>(place.at.array[kM])), v(reinterpret_cast<bf16*>(place.at.array[kV])),
        random(place.keys.state, place.first) {}
  FS_INLINE EvenOdd load_m(int64_t i) const { return load_even_odd(m + i); }
  FS_INLINE EvenOdd load_v(int64_t i) const { return load_even_odd(v + i); }
  FS_INLINE EvenOdd load_root(int64_t i) const { return sqrt(load_v(i)); }
  FS_INLINE void store(int64_t i, EvenOdd new_m, EvenOdd new_v) const {
    const Noise noise = random.draw_halves(i);
    store_rounded(m + i, new_m, noise.of_m());
    store_rounded(v + i, new_v, noise.of_v());
  }
};
// The scales must be known before anything is encoded: seen by store(), chosen, then used by encode().
struct ByteStates {
  static constexpr bool kBlocks = true, kAnyNan = false;
  uint8_t *m, *v;
  float *m_scale, *v_scale;
  float old_m_scale, old_v_scale;
  BlockRandom random;
  vuint m_seen, v_seen;
  Scale m_block, v_block;

  ByteStates() = default;
  explicit ByteStates(const Place& place)
      : m(reinterpret_cast<uint8_t*>(place.at.array[kM])), v(reinterpret_cast<uint8_t*>(place.at.array[kV])),
        m_scale(place.at.m_scale), v_scale(place.at.v_scale), old_m_scale(*m_scale), old_v_scale(*v_scale),
        random(place.keys.state, place.first), m_seen{}, v_seen{} {}
  FS_INLINE EvenOdd load_m(int64_t i) const { return load_m_codes(m + i, old_m_scale); }
  FS_INLINE EvenOdd load_root(int64_t i) const { return load_root_codes(v + i, old_v_scale); }
  FS_INLINE EvenOdd load_v(int64_t i) const {
    const EvenOdd root = load_root(i);
    return {root.even * root.even, root.odd * root.odd};
  }
  FS_INLINE void store(int64_t, EvenOdd new_m, EvenOdd new_v) {
    m_seen = larger(m_seen, larger(bits_of(new_m.even) & 0x7fffffffu, bits_of(new_m.odd) & 0x7fffffffu));
    v_seen = larger(v_seen, larger(bits_of(new_v.even), bits_of(new_v.odd)));  // a negative one can only be NaN
  }
  FS_INLINE void choose_scales() {
    const uint32_t v_largest = largest_lane(v_seen);
    m_block = scale_for(largest_lane(m_seen));
    v_block = scale_for(v_largest > 0x7f800000u ? v_largest : bits_of(sqrtf(float_of(v_largest))));
    *m_scale = m_block.value;
    *v_scale = v_block.value;
  }
  FS_INLINE void encode(int64_t i, EvenOdd new_m, EvenOdd root) const {
    const vuint drawn = random.draw(i);
    store_bytes(m + i, v + i, m_codes(new_m, m_block, drawn), root_codes(root, v_block, drawn));
  }
  FS_INLINE void clear_unscalable() const {
    if (m_block.inverse == 0) memset(m, 0, kBlock);
    if (v_block.inverse == 0) memset(v, 0, kBlock);
  }
  FS_INLINE void encode(const float* new_m, const float* new_root) const {
    for (int64_t i = 0; i < kBlock; i += 2 * kWidth) encode(i, stashed(new_m + i), stashed(new_root + i));
    clear_unscalable();
  }
};

}  // namespace
