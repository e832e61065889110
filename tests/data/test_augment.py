from dataclasses import replace

import numpy as np
import pytest
import torch

from fullstride.data.augment import DIGITS, PHOTOS, Augment, _cos_sin

INDICES = np.array([5, 0, 7, 123456789, 7, 64, 3, 2, 1])
EPOCHS = np.array([0, 0, 0, 9, 1, 0, 2, 2, 2])


def images(num=9, channels=1, height=28, width=28):
    return torch.rand(num, channels, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("augment", [DIGITS, PHOTOS])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 32, 32), (2, 9, 13)])
def test_image_has_the_same_bits_in_any_batch(augment, channels, height, width, num_threads):
    x = images(len(INDICES), channels, height, width)
    together = augment(x, INDICES, EPOCHS)
    num_threads(1)
    for i in range(len(x)):
        alone = augment(x[i : i + 1], INDICES[i : i + 1], EPOCHS[i : i + 1])
        assert torch.equal(alone[0], together[i])
    backwards = augment(x.flip(0), INDICES[::-1], EPOCHS[::-1])
    assert torch.equal(backwards.flip(0), together)


def test_image_changes_with_epoch_index_and_seed():
    x = images(1).expand(4, -1, -1, -1)
    one, other_epoch, other_index, same = DIGITS(x, np.array([3, 3, 4, 3]), np.array([0, 1, 0, 0]))
    other_seed = replace(DIGITS, seed=1)(x[:1], np.array([3]), np.array([0]))[0]
    assert torch.equal(one, same)
    assert all(not torch.equal(one, other) for other in (other_epoch, other_index, other_seed))


def test_nothing_asked_for_is_nothing_done():
    assert torch.equal(Augment()(images(), INDICES, EPOCHS), images())


def test_half_of_the_images_are_mirrored():
    x = images(1).expand(1000, -1, -1, -1)
    out = Augment(flip=True)(x, np.arange(1000), np.zeros(1000, np.int64))
    mirrored = [torch.equal(image, x[0].flip(-1)) for image in out]
    assert all(torch.equal(image, x[0]) for image, is_mirrored in zip(out, mirrored, strict=True) if not is_mirrored)
    assert 430 < sum(mirrored) < 570  # 4.4 standard deviations


def test_crop_cuts_the_image_out_of_one_with_a_margin():
    x = images(1, 3, 6, 8)
    cuts = [torch.nn.functional.pad(x[0], (2, 2, 2, 2))[:, i : i + 6, j : j + 8] for i in range(5) for j in range(5)]
    out = Augment(crop=2)(x.expand(300, -1, -1, -1), np.arange(300), np.zeros(300, np.int64))
    found = {[torch.equal(image, cut) for cut in cuts].index(True) for image in out}
    assert found == set(range(25))


def bar(height=29):
    """A white line of one pixel from the top to the bottom, through the centre."""
    x = torch.zeros(1, 1, height, height)
    x[..., height // 2] = 1
    return x


def directions(augment, num=200):
    """dx / dy of the line after each of many augmentations, measured by its centre in two rows."""
    out = augment(bar().expand(num, -1, -1, -1), np.arange(num), np.zeros(num, np.int64))[:, 0]
    columns = torch.arange(29.0)
    top, bottom = ((out[:, row] * columns).sum(1) / out[:, row].sum(1) for row in (9, 19))
    return (bottom - top) / 10


@pytest.mark.parametrize(
    ("augment", "most"), [(Augment(rotate=20), np.tan(np.radians(20))), (Augment(shear=0.3), 0.3)]
)
def test_lines_lean_both_ways_up_to_the_most_allowed(augment, most):
    lean = directions(augment)
    assert 0.9 * most < lean.max() < 1.02 * most
    assert -1.02 * most < lean.min() < -0.9 * most


def test_shift_moves_by_parts_of_pixels_up_to_the_most_allowed():
    out = Augment(shift=3)(bar().expand(200, -1, -1, -1), np.arange(200), np.zeros(200, np.int64))[:, 0, 14]
    moved = (out * torch.arange(29.0)).sum(1) - 14
    assert 2.8 < moved.max() <= 3
    assert -3 <= moved.min() < -2.8
    assert (moved - moved.round()).abs().max() > 0.4


def test_scale_grows_and_shrinks():
    x = torch.zeros(1, 1, 40, 40)
    x[..., 10:30, 10:30] = 1  # area 400
    out = Augment(scale=0.2)(x.expand(300, -1, -1, -1), np.arange(300), np.zeros(300, np.int64))
    side = out.sum((1, 2, 3)).sqrt() / 20
    assert 0.78 < side.min() < 0.83
    assert 1.17 < side.max() < 1.22


def test_cos_and_sin_are_those_of_the_angle():
    angles = np.radians(np.linspace(-45, 45, 91))
    cos, sin = _cos_sin(angles)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=2e-9)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=2e-9)


@pytest.mark.parametrize(("name", "value"), [("rotate", 90), ("scale", 1.0), ("shift", -1), ("shear", float("nan"))])
def test_impossible_augmentation_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected a number from 0 to .*, got {value}$"):
        Augment(**{name: value})
