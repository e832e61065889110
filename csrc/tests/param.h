// A tensor of an optimizer's list, in any format.
#pragma once
#include "test.h"

namespace {

// One tensor with buffers of the exact size, so that AddressSanitizer sees every access beyond them.
struct Tensor {
  std::vector<float> w32, g32, slow, m32, v32, x32, m_scale, v_scale, x_scale;
  std::vector<uint16_t> w16, g16, m16, v16, x16;
  std::vector<int16_t> lo;
  std::vector<uint8_t> m8, v8, x8;
  fs_param p = {};

  Tensor(int64_t n, int weight_format, int state_format, int grad_dtype, bool amsgrad, bool lookahead,
         unsigned seed = 1) {
    const auto w = random_floats(n, seed), g = random_floats(n, seed + 1);
    p.numel = n;
    p.step = 1;
    p.stream = seed;
    p.weight_format = weight_format;
    p.state_format = state_format;
    p.grad_dtype = grad_dtype;
    w16.resize(n), lo.resize(n);
    if (weight_format == FS_WEIGHT_F32) {
      w32 = w;
      p.weight = w32.data();
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, w[i]);
        w16[i] = static_cast<uint16_t>((bits + 0x8000u) >> 16);
        lo[i] = static_cast<int16_t>(bits);
      }
      p.weight = w16.data();
      if (weight_format == FS_WEIGHT_SPLIT) p.weight_lo = lo.data();
    }
    g32 = grad_dtype == FS_F32 ? g : from_bf16(to_bf16(g));
    g16 = to_bf16(g);
    p.grad = grad_dtype == FS_F32 ? static_cast<void*>(g32.data()) : g16.data();
    if (lookahead) {
      for (int64_t i = 0; i < n; ++i) slow.push_back(weight(i));
      p.slow = slow.data();
    }
    const int64_t blocks = (n + FS_STATE_BLOCK - 1) / FS_STATE_BLOCK;
    state(n, blocks, m32, m16, m8, m_scale, p.m, p.m_scale);
    state(n, blocks, v32, v16, v8, v_scale, p.v, p.v_scale);
    if (amsgrad) state(n, blocks, x32, x16, x8, x_scale, p.v_max, p.v_max_scale);
  }
  Tensor(const Tensor&) = delete;

  void state(int64_t n, int64_t blocks, std::vector<float>& wide, std::vector<uint16_t>& half,
             std::vector<uint8_t>& byte, std::vector<float>& scale, void*& pointer, float*& scale_pointer) {
    wide.resize(p.state_format == FS_STATE_F32 ? n : 0);
    half.resize(p.state_format == FS_STATE_BF16 ? n : 0);
    byte.resize(p.state_format == FS_STATE_8BIT ? n : 0);
    scale.resize(p.state_format == FS_STATE_8BIT ? blocks : 0);
    pointer = byte.data();
    if (wide.size()) pointer = wide.data();
    if (half.size()) pointer = half.data();
    scale_pointer = scale.size() ? scale.data() : nullptr;
  }
  float weight(int64_t i) const {
    if (p.weight_format == FS_WEIGHT_F32) return w32[i];
    if (p.weight_format == FS_WEIGHT_BF16) return from_bf16(w16[i]);
    const uint32_t low = static_cast<uint32_t>(static_cast<int32_t>(lo[i]));
    return __builtin_bit_cast(float, (static_cast<uint32_t>(w16[i]) << 16) + low);
  }
};

}  // namespace
