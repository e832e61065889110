"""Cases of the kernels that multiply, as `fullstride bench kernels` calls them: op, and the name of the case.

Copied from its results: to ask the benchmark itself for them would allocate the operands of all.
"""

_TEXT = """
attention: causal bf16 forward+backward 4 x 12 x 64 x 64
attention: causal bf16 forward+backward 4 x 12 x 256 x 64
attention: causal bf16 forward+backward 4 x 12 x 1024 x 64
attention: causal bf16 forward+backward 1 x 12 x 4096 x 64
attention: padded bf16 forward+backward 4 x 12 x 256 x 64
attention: causal fp32 forward+backward 4 x 12 x 64 x 64
attention: causal fp32 forward+backward 4 x 12 x 256 x 64
attention: causal fp32 forward+backward 4 x 12 x 1024 x 64
attention: causal fp32 forward+backward 1 x 12 x 4096 x 64
attention: padded fp32 forward+backward 4 x 12 x 256 x 64
contrastive_loss: forward+backward fp32 256 images, 256 texts, 512 wide
contrastive_loss: forward+backward fp32 1024 images, 1024 texts, 512 wide
contrastive_loss: forward+backward fp32 256 images, 1024 texts, 512 wide
conv1d: relu, forward+backward bf16 16 x 400, 256 to 1024, 9 taps
conv1d: relu, forward+backward fp32 16 x 400, 256 to 1024, 9 taps
conv1d: none, forward+backward bf16 16 x 400, 1024 to 256, 1 taps
conv1d: none, forward+backward fp32 16 x 400, 1024 to 256, 1 taps
conv1d: none, forward+backward bf16 16 x 400, 256 to 768, 3 taps
conv1d: none, forward+backward fp32 16 x 400, 256 to 768, 3 taps
conv1d: relu, forward+backward bf16 16 x 60, 256 to 256, 3 taps
conv1d: relu, forward+backward fp32 16 x 60, 256 to 256, 3 taps
conv1d: none, forward+backward bf16 16 x 400, 80 to 256, 5 taps
conv1d: none, forward+backward fp32 16 x 400, 80 to 256, 5 taps
gemm: x W^T fp32 128 x 4096 x 4096
gemm: g W fp32 128 x 4096 x 4096
gemm: g^T x fp32 128 x 4096 x 4096
gemm: x W^T fp32 1024 x 768 x 768
gemm: g W fp32 1024 x 768 x 768
gemm: g^T x fp32 1024 x 768 x 768
gemm: x W^T fp32 1024 x 768 x 2048
gemm: g W fp32 1024 x 768 x 2048
gemm: g^T x fp32 1024 x 768 x 2048
gemm: x W^T fp32 1024 x 2048 x 768
gemm: g W fp32 1024 x 2048 x 768
gemm: g^T x fp32 1024 x 2048 x 768
gemm: x W^T fp32 1024 x 768 x 32000
gemm: g W fp32 1024 x 768 x 32000
gemm: g^T x fp32 1024 x 768 x 32000
gemm: x W^T bf16 1024 x 768 x 768
gemm: square fp32 128 x 128 x 128
gemm: square fp32 256 x 256 x 256
gemm: square fp32 512 x 512 x 512
gemm: square fp32 1024 x 1024 x 1024
gemm: square fp32 2048 x 2048 x 2048
gemm: square fp32 4096 x 4096 x 4096
gemm: square bf16 128 x 128 x 128
gemm: square bf16 256 x 256 x 256
gemm: square bf16 512 x 512 x 512
gemm: square bf16 1024 x 1024 x 1024
gemm: square bf16 2048 x 2048 x 2048
gemm: square bf16 4096 x 4096 x 4096
linear: relu by torch, forward+backward fp32 128 x 4096 x 4096
linear: relu by onednn, forward+backward fp32 128 x 4096 x 4096
linear: relu by native, forward+backward fp32 128 x 4096 x 4096
linear: relu by torch, forward+backward fp32 1024 x 768 x 2048
linear: relu by onednn, forward+backward fp32 1024 x 768 x 2048
linear: relu by native, forward+backward fp32 1024 x 768 x 2048
linear: gelu by native, forward+backward fp32 1024 x 768 x 2048
linear_cross_entropy: forward+backward fp32 1024 x 768 x 32000, 0% ignored
linear_cross_entropy: forward+backward fp32 1024 x 768 x 30522, 85% ignored
patches: forward+backward bf16 12 x 3 x 224 x 224, 640 of 16 x 16
patches: forward+backward fp32 12 x 3 x 224 x 224, 640 of 16 x 16
patches: forward+backward bf16 12 x 3 x 224 x 224, 768 of 32 x 32
patches: forward+backward fp32 12 x 3 x 224 x 224, 768 of 32 x 32
patches: forward+backward bf16 12 x 384 x 14 x 14, 768 of 2 x 2
patches: forward+backward fp32 12 x 384 x 14 x 14, 768 of 2 x 2
"""
PRODUCT_CASES = [(op, case) for op, _, case in (line.partition(": ") for line in _TEXT.split("\n") if line)]
