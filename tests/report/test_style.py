import pytest

from fullstride.report import style


def luminance(colour):
    """Relative luminance of sRGB as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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


def test_every_colour_has_a_dark_counterpart_and_its_own_value():
    assert style.LIGHT.keys() == style.DARK.keys()
    assert len(set(style.LIGHT.values())) == len(style.LIGHT)  # values in the SVG stand for names
