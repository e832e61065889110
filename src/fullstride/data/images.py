"""Images that are kept as bytes and become floats when their batch is asked for."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .augment import Augment


@dataclass(frozen=True)
class ImageDataset:
    """Batches of (images, labels): float32 (N, C, H, W), or (N, C * H * W) if flat, and int64 (N).

    The images have the mean subtracted and are divided by std.
    """

    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N)
    mean: tuple[float, ...]  # of a channel whose values go from 0 to 1
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    augment: Augment | None = None
    flat: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(indices)
        pixels = self.images[chosen].float()
        if self.augment is not None:
            pixels = self.augment(pixels, indices, epochs)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        pixels.mul_(1 / (255 * std)).sub_(mean / std)
        return pixels.flatten(1) if self.flat else pixels, self.labels[chosen]
