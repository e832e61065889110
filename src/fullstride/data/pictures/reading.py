"""Bytes of a picture to its middle square, (size, size, 3) uint8, RGB; what is transparent becomes white."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

SMALLEST = 8  # pixels a side
MOST_PIXELS = 64_000_000
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_GAP = 2  # times the size a picture has before it is made smaller by averages
_ORIENTATION = 0x0112  # of EXIF
_SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")

TOO_SMALL = "picture is too small"
TOO_LARGE = "picture is too large"
BROKEN = "picture cannot be decoded"


class Unusable(ValueError):
    """One line; `reason` is what it is counted as."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


def decode(content: bytes, size: int) -> NDArray[np.uint8]:
    """Unusable if it cannot be. Threads may do so at the same time; one of all calls quiet() around it.

    MemoryError is none of the picture's faults: it passes.
    """
    pillow = image_module()
    try:
        image = pillow.open(io.BytesIO(content), formats=_FORMATS)
        _check(image)
        if image.format == "PNG":  # whose decoder does not look at checksums
            image.verify()
            image = pillow.open(io.BytesIO(content), formats=_FORMATS)
        return _square(image, size)
    except (Unusable, MemoryError):
        raise
    except pillow.DecompressionBombError:
        raise Unusable(TOO_LARGE, f"expected at most {MOST_PIXELS:,} pixels, got far more") from None
    except Exception as error:  # decoders raise whatever damaged bytes lead them to
        what = str(error).partition(" <_io.")[0] or type(error).__name__
        raise Unusable(BROKEN, " ".join(what.split())) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow warns of large pictures, which are refused here, and of damaged notes in them, which nobody reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def image_module() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ValueError("pillow is not installed; get it with: pip install 'fullstride[clip]'") from None
    return Image


def version() -> str:
    """Of Pillow: another one may decode otherwise."""
    image_module()  # or says that it is missing
    import PIL

    return PIL.__version__


def _check(image: "Image") -> None:
    """By the header: nothing is decoded yet."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise Unusable(TOO_LARGE, f"expected at most {MOST_PIXELS:,} pixels, got {width:,} x {height:,}")
    if min(width, height) < SMALLEST:
        raise Unusable(TOO_SMALL, f"expected at least {SMALLEST} pixels a side, got {width} x {height}")


def _square(image: "Image", size: int) -> NDArray[np.uint8]:
    pillow = image_module()
    turn = _turn(image)
    width, height = image.size
    wanted = _GAP * size / min(width, height)
    if wanted < 1:
        image.draft(None, (int(width * wanted) + 1, int(height * wanted) + 1))  # JPEG: decodes it smaller
    image = _rgb(image)
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    image = image.resize(
        (size, size), pillow.Resampling.BICUBIC, box=(left, top, left + side, top + side), reducing_gap=3.0
    )
    return np.array(image if turn is None else image.transpose(turn))


def _rgb(image: "Image") -> "Image":
    pillow = image_module()
    if image.mode in _SIXTEEN_BITS:
        return _rgb(pillow.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)))
    if "transparency" in image.info or image.mode in ("RGBA", "RGBa", "LA", "La", "PA"):
        white = pillow.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    converted: Image = image.convert("RGB")
    return converted


def _turn(image: "Image") -> "Transpose | None":
    """How a camera wants it to be turned: the middle square may be turned as well, which is less work."""
    way = image_module().Transpose
    turns = {
        2: way.FLIP_LEFT_RIGHT, 3: way.ROTATE_180, 4: way.FLIP_TOP_BOTTOM, 5: way.TRANSPOSE,
        6: way.ROTATE_270, 7: way.TRANSVERSE, 8: way.ROTATE_90,
    }  # fmt: skip
    try:
        return turns.get(image.getexif().get(_ORIENTATION, 1))
    except MemoryError:
        raise
    except Exception:  # damaged notes: the picture itself may be whole
        return None
