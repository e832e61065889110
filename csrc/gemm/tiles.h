// The tiles of this variant: what multiplies fp32, and bf16. Where bf16 has no instructions it is widened while it is packed.
#pragma once
#include "gemm/amx_tiles.h"
#include "gemm/mmla_tiles.h"
#include "gemm/vector_tiles.h"

namespace {

using F32Tiles = VectorTiles<F32Words>;
#if defined(__AMX_BF16__)
using Bf16Tiles = AmxTiles;
#elif defined(__AVX512BF16__)
using Bf16Tiles = VectorTiles<Bf16Words>;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
using Bf16Tiles = MmlaTiles;
#else
using Bf16Tiles = F32Tiles;
#endif

}  // namespace
