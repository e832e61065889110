import sys

import numpy as np
import pytest
from PIL import Image

from fullstride.data.pictures import reading

from .making import encoded, picture, plain, png_header


def mean_of(image, form="PNG", **options):
    return reading.decode(encoded(image, form, **options), 8).reshape(-1, 3).mean(0)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP", "JPEG"])
def test_every_form_becomes_a_square_of_bytes(form):
    options = {"quality": 100} if form in ("JPEG", "WEBP") else {}
    found = reading.decode(encoded(plain((200, 40, 90)), form, **options), 12)
    assert found.shape == (12, 12, 3)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found.reshape(-1, 3).mean(0), (200, 40, 90), atol=6)


def test_the_middle_square_is_taken():
    image = plain("blue", width=40, height=20)
    image.paste(plain("red", width=20, height=20), (10, 0))
    assert (reading.decode(encoded(image), 20) == (255, 0, 0)).all()


def test_a_picture_of_the_size_stays_as_it_is():
    image = picture(width=16, height=16)
    assert np.array_equal(reading.decode(encoded(image), 16), np.asarray(image))


def test_a_large_jpeg_is_the_same_picture():
    image = plain("blue", width=1200, height=900)
    image.paste(plain("red", width=600, height=900), (0, 0))
    found = reading.decode(encoded(image, "JPEG", quality=95), 16).astype(int)
    assert abs(found[:, :7] - (254, 0, 0)).max() < 12
    assert abs(found[:, 9:] - (0, 0, 254)).max() < 12


def test_what_is_transparent_is_white():
    clear, half = plain((0, 0, 0, 0), "RGBA"), plain((0, 0, 0, 128), "RGBA")
    assert (mean_of(clear) == 255).all()
    np.testing.assert_allclose(mean_of(half), 127, atol=1)
    assert (mean_of(plain((0, 0), "LA")) == 255).all()
    assert (mean_of(plain((0, 0, 0, 0), "RGBA"), "WEBP", lossless=True) == 255).all()


def test_a_palette_with_transparency_is_on_white():
    image = plain(1, "P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.paste(0, (0, 0, 24, 8))
    found = reading.decode(encoded(image, "PNG", transparency=0), 16)
    assert (found[:7] == 255).all()
    assert (found[9:] == (255, 0, 0)).all()


def test_a_palette_with_a_transparency_for_each_colour_is_on_white():
    image = plain(1, "P")
    image.putpalette([0, 0, 0, 255, 0, 0])
    np.testing.assert_allclose(mean_of(image, "PNG", transparency=bytes([255, 0])), 255)


def test_cmyk_becomes_rgb():
    np.testing.assert_allclose(mean_of(plain((0, 255, 255, 0), "CMYK"), "JPEG", quality=100), (255, 0, 0), atol=3)


def test_sixteen_bits_of_grey_become_eight():
    grey = Image.fromarray(np.full((16, 16), 0x8034, np.uint16))
    assert (mean_of(grey) == 0x80).all()


def test_black_and_white_become_rgb():
    assert (mean_of(plain(1, "1")) == 255).all()
    assert (mean_of(plain(77, "L")) == 77).all()


@pytest.mark.parametrize(("orientation", "corner"), [
    (1, "top left"), (2, "top right"), (3, "bottom right"), (4, "bottom left"),
    (5, "top left"), (6, "top right"), (7, "bottom right"), (8, "bottom left"),
])  # fmt: skip
def test_a_picture_is_turned_as_the_camera_says(orientation, corner):
    image = plain("blue", width=32, height=32)
    image.paste(plain("red", width=16, height=16), (0, 0))
    notes = Image.Exif()
    notes[0x0112] = orientation
    found = reading.decode(encoded(image, "JPEG", quality=95, subsampling=0, exif=notes.tobytes()), 32)
    y, x = (4 if "top" in corner else 28), (4 if "left" in corner else 28)
    assert found[y, x, 0] > 200
    assert (found[..., 0] > 128).sum() == pytest.approx(256, abs=16)


def test_turning_and_cutting_commute_for_a_picture_that_is_not_square():
    image = picture(width=48, height=32)
    notes = Image.Exif()
    notes[0x0112] = 8
    turned = encoded(image.transpose(Image.Transpose.ROTATE_90))
    found = reading.decode(encoded(image, "PNG", exif=notes.tobytes()), 16).astype(int)
    assert abs(found - reading.decode(turned, 16)).max() <= 1


def test_damaged_notes_of_a_camera_do_no_harm(recwarn):
    content = encoded(plain("red"), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01")
    with reading.quiet():
        assert reading.decode(content, 8).shape == (8, 8, 3)
    assert not recwarn.list


def test_an_animation_is_its_first_picture():
    frames = [plain("red"), plain("blue")]
    assert (mean_of(frames[0], "GIF", save_all=True, append_images=frames[1:]) == (255, 0, 0)).all()


@pytest.mark.parametrize(("content", "reason"), [
    (encoded(picture(width=200, height=200), "JPEG")[:-300], reading.BROKEN),
    (encoded(picture(width=200, height=200), "PNG")[:-300], reading.BROKEN),
    (b"no picture at all", reading.BROKEN),
    (b"", reading.BROKEN),
    (encoded(plain("red", width=1, height=1)), reading.TOO_SMALL),
    (encoded(plain("red", width=100, height=7)), reading.TOO_SMALL),
    (png_header(8_001, 8_000), reading.TOO_LARGE),
    (png_header(10_000, 10_000), reading.TOO_LARGE),
    (png_header(20_000, 20_000), reading.TOO_LARGE),
])  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_line(content, reason, recwarn):
    with reading.quiet(), pytest.raises(reading.Unusable) as caught:
        reading.decode(content, 8)
    assert caught.value.reason == reason
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert "0x" not in str(caught.value)
    assert not recwarn.list


def test_a_png_of_which_one_bit_is_wrong_is_refused():
    good = encoded(picture(width=64, height=64))
    middle = len(good) // 2
    bad = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    with pytest.raises(reading.Unusable, match="PNG"):
        reading.decode(bad, 8)


def test_without_pillow_one_line_tells_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"^pillow is not installed; get it with: pip install 'fullstride\[clip\]'$"):
        reading.decode(b"", 8)


def test_too_little_memory_is_no_fault_of_a_picture(monkeypatch):
    def fails(*_):
        raise MemoryError

    content = encoded(picture())
    for step in ("_square", "_check"):
        with monkeypatch.context() as patch:
            patch.setattr(reading, step, fails)
            with pytest.raises(MemoryError):
                reading.decode(content, 8)
    monkeypatch.setattr(Image.Image, "getexif", fails)
    with pytest.raises(MemoryError):
        reading.decode(content, 8)
