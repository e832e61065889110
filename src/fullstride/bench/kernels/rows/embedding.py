from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.embedding import embedding
from ..row import Row, forward_backward


def rows() -> Iterator[Row]:
    vocab, dim, tokens = 32000, 768, 8192
    uniform = torch.randint(vocab, (tokens,))
    skewed = torch.where(torch.rand(tokens) < 0.9, 7, uniform)  # one token is 90 % of the batch
    for dtype, name in [(torch.float32, "fp32"), (torch.bfloat16, "bf16")]:
        weight = torch.randn(vocab, dim).to(dtype).requires_grad_()
        gradient = torch.randn(tokens, dim).to(dtype)
        for indices, spread in [(uniform, "uniform"), (skewed, "90 % one token")]:
            yield Row(
                case=f"forward+backward {name} {spread} 8192 of 32000 x 768",
                ours=forward_backward(lambda w, i=indices: embedding(i, w), weight, gradient=gradient),
                peers={"torch": forward_backward(lambda w, i=indices: F.embedding(i, w), weight, gradient=gradient)},
                # Rows read and written, gradients read, dweight written once; a row read again comes from the cache.
                bytes=(weight.numel() + 2 * gradient.numel() + indices.unique().numel() * dim) * weight.element_size(),
                streaming=spread == "uniform",
            )
