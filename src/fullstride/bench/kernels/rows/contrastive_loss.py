from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ....ops.contrastive_loss import contrastive_loss, contrastive_loss_reference
from ..row import PORTABLE, Row, counted, forward_backward

SHAPES = [(256, 256, 512), (1024, 1024, 512), (256, 1024, 512)]  # (images, texts, width)


def rows() -> Iterator[Row]:
    for images, texts, width in SHAPES:
        image, text = (F.normalize(torch.randn(rows, width), dim=-1).requires_grad_() for rows in (images, texts))
        scale = torch.tensor(14.3, requires_grad=True)
        yield Row(
            case=f"forward+backward fp32 {images} images, {texts} texts, {width} wide",
            ours=forward_backward(contrastive_loss, image, text, scale),
            peers={"torch": forward_backward(contrastive_loss_reference, image, text, scale)},
            flops=counted(contrastive_loss_reference, image, text, scale),
            left_out={PORTABLE: "the products are torch's"},
        )
