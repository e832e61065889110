"""How optimizers keep weights and states, in torch, to the bit of csrc/optimizer/block_formats.h.

- split: an fp32 weight as bf16 `hi`, rounded to nearest, and int16 `lo`; `merge` gives every bit back.
- bf16 with stochastic rounding: rounded up with the probability of the fraction that is cut off.
- 8 bits: a byte an element and a power-of-two scale S for each block of 256. Both codes are small floats shifted by
  2^-15, evenly spaced around zero and logarithmic beyond:

      m        sign and 7 bits c    |m|     = S * (float with the pattern 0x38000000 + (c << 20)) - S * 2^-15
      root     8 bits c             sqrt(v) = S * (float with the pattern 0x38000000 + (c << 19)) - S * 2^-15

  v is kept as its root, which halves the range of exponents. As S is a power of two, it stays while the largest value
  of the block moves a little, and a value that did not change gets the same byte again: noise comes only with change.
  With S = absmax every step would round every element anew, and with beta2 = 0.999 that noise would add up.

Random bits are a function of (seed, step, stream, index). Elements 2 k and 2 k + 1 share 32 of them: m (or a weight)
takes the lower ones for the even element and the upper ones for the odd one, v the other way round.
"""

import torch
from torch import Tensor

from ._random import random_bits as bits_at

BLOCK = 256
_BASE = 0x38000000  # the pattern of 2^-15
_MASK32 = 0xFFFFFFFF


# ---- random bits -------------------------------------------------------------------------------------------------


def random_bits(seed: int, step: int, stream: int, numel: int) -> Tensor:
    """32 bits for each pair of elements, as int64, given to both."""
    return bits_at(seed, step, stream, torch.arange(numel, device="cpu") // 2)


def noise_of_m(random: Tensor, bits: int) -> Tensor:
    """`bits` of the random bits of each element for m or a weight, as a vector."""
    lower = torch.arange(random.numel(), device=random.device) % 2 == 0
    return torch.where(lower, random & ((1 << bits) - 1), random >> (32 - bits))


def noise_of_v(random: Tensor, bits: int) -> Tensor:
    upper = torch.arange(random.numel(), device=random.device) % 2 == 0
    return torch.where(upper, random >> (32 - bits), random & ((1 << bits) - 1))


# ---- bits of floats ----------------------------------------------------------------------------------------------


def _bits(x: Tensor) -> Tensor:
    """The pattern of each fp32 value, as int64; NaN is the quiet one."""
    return torch.where(x.isnan(), 0x7FC00000, x.contiguous().view(torch.int32).long() & _MASK32)


def _float(bits: Tensor) -> Tensor:
    return _signed(bits, 32).to(torch.int32).view(torch.float32)


def _signed(bits: Tensor, width: int) -> Tensor:
    """The lowest `width` bits read as a signed number."""
    bits = bits & ((1 << width) - 1)
    return torch.where(bits >> (width - 1) == 1, bits - (1 << width), bits)


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    """(hi, lo) of an fp32 tensor."""
    bits = _bits(x)
    return _signed(bits + 0x8000 >> 16, 16).to(torch.int16).view(torch.bfloat16), _signed(bits, 16).to(torch.int16)


def merge(hi: Tensor, lo: Tensor) -> Tensor:
    """A negative lower half belongs to no zero: somebody has written zeros into hi since. The sum would be a NaN."""
    upper = hi.view(torch.int16).long()
    return _float((upper << 16) + torch.where((upper & 0x7FFF == 0) & (lo < 0), 0, lo.long()))


def round_to_bf16(x: Tensor, noise: Tensor) -> Tensor:
    """bf16 of an fp32 tensor, rounded up where the 16 random bits of `noise` and the lower half of x carry."""
    return _signed(_bits(x) + noise >> 16, 16).to(torch.int16).view(torch.bfloat16)


# ---- 8 bits and a scale ------------------------------------------------------------------------------------------


def _blocks(x: Tensor) -> Tensor:
    """Rows of 256, the last one filled up with zeros."""
    return torch.nn.functional.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)


def _scale(blocks: Tensor) -> Tensor:
    """The smallest power of two with 1.067 * absmax / S < 2, at least 2^-126; NaN for NaN and above 2^124."""
    largest = _bits(blocks.abs()).amax(dim=1)
    exponent = (_bits(_float(largest) * blocks.new_tensor(1.067)) >> 23).clamp(min=1)
    return torch.where(largest > 0x7D800000, torch.nan, _float(exponent << 23))


def encode_m(m: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """(bytes like m, scales)."""
    blocks = _blocks(m)
    scale = _scale(blocks)
    code = _bits(blocks.abs() / scale[:, None] + 2.0**-15) + _blocks(noise_of_m(random, 20)) >> 20 & 0x7F
    code = torch.where(scale.isnan()[:, None], 0, code | torch.where(blocks.signbit(), 0x80, 0))
    return code.to(torch.uint8).flatten()[: m.numel()].view(m.shape), scale


def decode_m(code: Tensor, scale: Tensor) -> Tensor:
    blocks = _blocks(code.long())
    magnitude = _float(((blocks & 0x7F) << 20) + _BASE) * scale[:, None] - scale[:, None] * 2.0**-15
    return torch.where(blocks >= 0x80, -magnitude, magnitude).flatten()[: code.numel()].view(code.shape)


def encode_root(root: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """(bytes like root, scales); root >= 0. The smallest code is 1: m / (0 + eps) would explode."""
    blocks = _blocks(root)
    scale = _scale(blocks)
    code = (_bits(blocks / scale[:, None] + 2.0**-15) + _blocks(noise_of_v(random, 19)) - _BASE >> 19).clamp(min=1)
    code = torch.where(scale.isnan()[:, None], 0, code)
    return code.to(torch.uint8).flatten()[: root.numel()].view(root.shape), scale


def decode_root(code: Tensor, scale: Tensor) -> Tensor:
    root = _float((_blocks(code.long()) << 19) + _BASE) * scale[:, None] - scale[:, None] * 2.0**-15
    return root.flatten()[: code.numel()].view(code.shape)
