from itertools import combinations

import numpy as np
import pytest

from fullstride.report import style

# Linear sRGB as people without one kind of cone see it (Machado, Oliveira, Fernandes 2009, severity 1).
SEEN = {
    "all cones": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    """Relative luminance of sRGB as WCAG 2 defines it."""
    return TO_XYZ[1] @ linear(colour)


def lab(rgb):
    """CIELAB, in which 2.3 is a difference that can just be noticed."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("surface", ["paper", "card"])
def test_contrast_is_enough_to_read(colours, surface):
    for name in ("ink", "muted", "blue", "green", "vermilion"):  # text; the last three: links, status, mistakes
        assert contrast(colours[name], colours[surface]) >= 4.5, name
    for name in style.SERIES:
        assert contrast(colours[name], colours[surface]) >= 3, name


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_white_numbers_can_be_read_on_strong_cells(colours):
    assert contrast("#ffffff", colours["strong"]) >= 4.5


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN)
def test_series_can_be_told_apart_with_any_eyes(colours, eyes):
    seen = {name: lab(SEEN[eyes] @ linear(colours[name])) for name in style.SERIES}
    for one, other in combinations(style.SERIES, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)


def test_every_colour_has_a_dark_counterpart_and_its_own_value():
    assert style.LIGHT.keys() == style.DARK.keys()
    assert len(set(style.LIGHT.values())) == len(style.LIGHT)  # values in the SVG stand for names
