"""Images shifted, turned, scaled, sheared, mirrored: each as a function of (seed, epoch, index).

An output pixel at p, from the centre of the image, shows the input at q = A p + t; outside of the input is black:

    A = [[cos a, -sin a], [sin a, cos a]] [[1, shear], [0, 1]] / scale, its first column negated in a mirrored image

All images of a batch go through one torch grid_sample. The coordinates are made of single multiplications and
additions, which are exact to the bit wherever they run; a matrix product (as in torch's affine_grid) may add in another
order for another number of images. So an image has the same bits in any batch, with any number of threads.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from . import _random

_STREAM = 1  # of the seed: the order of the samples and synthetic data use others
_MAX_ANGLE = 45.0


@dataclass(frozen=True)
class Augment:
    """What may happen to an image; each number is drawn evenly from minus to plus the one given."""

    seed: int = 0
    shift: float = 0.0  # pixels, along each axis
    rotate: float = 0.0  # degrees
    scale: float = 0.0  # 0.1: from 0.9 to 1.1 of the size
    shear: float = 0.0  # pixels to the side a pixel of height
    crop: int = 0  # whole pixels along each axis, as when a margin is added and the size is cut out of it
    flip: bool = False  # left and right are exchanged in half of the images

    def __post_init__(self) -> None:
        for name, most in (("shift", 1e4), ("rotate", _MAX_ANGLE), ("scale", 0.9), ("shear", 1.0), ("crop", 1e4)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: expected a number from 0 to {most:g}, got {getattr(self, name)}")

    def __call__(self, images: Tensor, indices: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """New images for float images (N, C, H, W), which are samples `indices` in epochs `epochs`."""
        height, width = images.shape[-2:]
        draws = _random.uniform(self.seed, _STREAM, 8, epochs, indices).T
        xx, xy, yx, yy, tx, ty = (torch.from_numpy(part.astype(np.float32)[:, None, None]) for part in self._map(draws))
        x = torch.arange(width, dtype=torch.float32) - (width - 1) / 2
        y = (torch.arange(height, dtype=torch.float32) - (height - 1) / 2)[:, None]
        grid = torch.empty(len(images), height, width, 2, dtype=torch.float32)
        torch.mul((xx * x + tx) + xy * y, 2 / width, out=grid[..., 0])
        torch.mul((yx * x + ty) + yy * y, 2 / height, out=grid[..., 1])
        between_pixels = self.shift or self.rotate or self.scale or self.shear
        mode = "bilinear" if between_pixels else "nearest"
        return F.grid_sample(images, grid, mode, padding_mode="zeros", align_corners=False)

    def _map(self, draws: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """The four numbers of A and the two of t, one for each image."""
        angle, scale, shear, shift_x, shift_y, crop_x, crop_y, flip = draws
        cos, sin = _cos_sin(_between(angle, np.radians(self.rotate)))
        zoom = 1 / (1 + _between(scale, self.scale))
        shear = _between(shear, self.shear)
        mirror = np.where(flip < 0.5, -1.0, 1.0) if self.flip else np.ones_like(flip)
        tx = _between(shift_x, self.shift) + np.floor(crop_x * (2 * self.crop + 1)) - self.crop
        ty = _between(shift_y, self.shift) + np.floor(crop_y * (2 * self.crop + 1)) - self.crop
        xx, yx = zoom * cos, zoom * sin
        return mirror * xx, shear * xx - yx, mirror * yx, shear * yx + xx, tx, ty


DIGITS = Augment(shift=2.0, rotate=12.0, scale=0.12, shear=0.2)
PHOTOS = Augment(crop=4, flip=True)  # as is usual for CIFAR


def _between(draw: NDArray[np.float64], most: float) -> NDArray[np.float64]:
    return (2 * draw - 1) * most


def _cos_sin(angle: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of angles up to 45 degrees, to 2e-9, by multiplications and additions.

    numpy's own differ in the last bit between the vector loop and what is left over at its end (on some CPUs), that is,
    with an image's place in the batch.
    """
    square = angle * angle
    cos, sin = np.ones_like(angle), np.ones_like(angle)
    for i in range(5, 0, -1):  # Horner, of the Taylor series
        cos = 1 - square / ((2 * i - 1) * (2 * i)) * cos
        sin = 1 - square / ((2 * i) * (2 * i + 1)) * sin
    return cos, angle * sin
