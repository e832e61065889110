"""WAV files (RIFF/WAVE): samples in and out, other rates, and what makes a sound unfit to be trained on.

Read are PCM of 8, 16, 24 and 32 bits and floats of 32 and 64, plain or as WAVE_FORMAT_EXTENSIBLE; the module `wave` of
Python refuses floats. Nothing in a header is believed before the file's size agrees with it.
"""

import functools
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from .. import durable

MOST_BYTES = 1 << 30  # of samples in a file: more than an hour in any format
RATES = (1000, 768_000)  # Hz, of files that are read

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_EXTENSIBLE_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # of the GUID whose first two bytes are the format
_STREAMED = 0x7FFFF000  # sizes from here on are those of writers to a pipe, who did not know: to the end of the file
_NAMES = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x55: "MP3"}
_FIX = "write it as 16-bit PCM, by `sox IN -b 16 OUT.wav`, say"

_PIECE = 1 << 20  # samples of all channels that are decoded at once
_ZEROS = 64  # zero crossings of the sinc on each side
_BETA = 10.0  # Kaiser's: about 100 dB
_PASS = 0.96  # of the lower Nyquist frequency: where the filter has fallen by half


@dataclass(frozen=True)
class Sound:
    samples: NDArray[np.float32]  # mono, -1 to 1
    rate: int  # samples a second
    channels: int  # in the file; they are averaged


def read(path: Path) -> Sound:
    """The sound of a WAV file; whatever is wrong with the file is a ValueError that names it."""
    try:
        with open(path, "rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise ValueError(f"{path}: expected a WAV file, got {error.strerror or error}; see if it is readable") from None
    except _BadFileError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: Path, samples: NDArray[np.floating], rate: int) -> Path:
    """16-bit PCM, whole or not at all."""
    return durable.replace(path, as_bytes(samples, rate))


def as_bytes(samples: NDArray[np.floating], rate: int) -> bytes:
    """(N,) samples as a WAV file of 16-bit PCM; what is beyond -1 ... 1 is clipped."""
    if samples.ndim != 1:
        raise ValueError(f"expected one channel of samples (N,), got {samples.shape}; mix channels to one")
    if not np.isfinite(samples).all():
        raise ValueError("expected finite samples, got NaN or infinity; look for where the sound was made")
    data = np.clip(np.rint(samples.astype(np.float64) * 32768.0), -32768, 32767).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, _PCM, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", 4 + len(form) + 8 + len(data), b"WAVE") + form + struct.pack(
        "<4sI", b"data", len(data)
    ) + data  # fmt: skip


def resample(samples: NDArray[np.floating], source: int, target: int) -> NDArray[np.float32]:
    """(N,) samples at rate `source` to (ceil(N target / source),) at `target`, without aliases.

    Polyphase: with target / source = up / down in lowest terms, outputs n = phase + k up share their taps, a sinc
    at the lower of both Nyquist frequencies under a Kaiser window, and read inputs that lie `down` apart.
    """
    if source < 1 or target < 1:
        raise ValueError(f"expected rates from 1 on, got {source} and {target}; give both in samples a second")
    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if source == target or not len(samples):
        return samples.copy()
    common = math.gcd(source, target)
    up, down = target // common, source // common
    half = _half(up, down)
    padded = np.pad(samples, (half, half + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)  # row i is centred at input i
    found = np.empty(-(-len(samples) * up // down), dtype=np.float32)
    for phase in range(min(up, len(found))):
        num = len(found[phase::up])
        first = phase * down // up
        found[phase::up] = windows[first : first + (num - 1) * down + 1 : down] @ _taps(phase * down % up, up, down)
    return found


def problem(
    samples: NDArray[np.floating], rate: int, shortest: float = 0.1, longest: float = 20.0, quietest: float = -60.0
) -> str | None:
    """Why nobody should train on this sound, in a phrase. Lengths are in seconds, `quietest` is in dBFS (RMS)."""
    if not len(samples):
        return "no samples"
    seconds = len(samples) / rate
    if seconds < shortest:
        return f"{seconds:.3f} s, shorter than {shortest:g} s"
    if seconds > longest:
        return f"{seconds:.1f} s, longer than {longest:g} s"
    if not np.isfinite(samples).all():
        return "NaN or infinity among the samples"
    root_mean_square = math.sqrt(np.square(samples, dtype=np.float64).mean())
    if root_mean_square < 10.0 ** (quietest / 20.0):
        return f"silence: RMS under {quietest:g} dBFS"
    full = np.abs(samples) >= 0.999
    runs = full[:-2] & full[1:-1] & full[2:]  # where three at full scale begin
    share = np.count_nonzero(np.pad(runs, (0, 2)) | np.pad(runs, 1) | np.pad(runs, (2, 0))) / len(samples)
    return f"clipped: {share:.1%} of the samples are at full scale" if share > 0.001 else None


class _BadFileError(Exception):
    """What was expected, what came, what to do."""


@dataclass(frozen=True)
class _Format:
    kind: int
    channels: int
    rate: int
    bits: int


def _read(file: BinaryIO, size: int) -> Sound:
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        came = f"{head[:4]!r} and {size} bytes" if size else "an empty file"
        raise _BadFileError(f"expected a WAV file (RIFF ... WAVE), got {came}; {_FIX}")
    form = None
    while True:
        header = file.read(8)
        if len(header) < 8:
            missing = "`data`" if form else "`fmt `"
            raise _BadFileError(f"expected a chunk {missing}, got the end of the file; make the file anew")
        name, declared = header[:4], int.from_bytes(header[4:], "little")
        left = size - file.tell()
        if name == b"data":
            if form is None:
                raise _BadFileError("expected the chunk `fmt ` first, got `data`; make the file anew")
            return _sound(file, form, left if declared >= _STREAMED else declared, left)
        if declared > left:
            raise _BadFileError(f"expected {declared} bytes of chunk {name!r}, got {left}: cut off; make the file anew")
        if name == b"fmt ":
            form = _format(file.read(min(declared, 40)), declared)
            file.seek(max(declared - 40, 0), os.SEEK_CUR)
        else:
            file.seek(declared, os.SEEK_CUR)
        file.seek(declared % 2, os.SEEK_CUR)  # chunks begin at even places


def _format(data: bytes, declared: int) -> _Format:
    if declared < 16:
        raise _BadFileError(f"expected 16 bytes of `fmt `, got {declared}; make the file anew")
    kind, channels, rate, _, block, bits = struct.unpack("<HHIIHH", data[:16])
    if kind == _EXTENSIBLE:
        if len(data) < 40 or data[26:40] != _EXTENSIBLE_TAIL:
            raise _BadFileError(f"expected PCM or floats, got an unknown extensible format; {_FIX}")
        kind = int.from_bytes(data[24:26], "little")
    if (kind, bits) not in _CODES:
        came = _NAMES.get(kind, {_PCM: "PCM", _FLOAT: "floats"}.get(kind, f"format {kind:#x}"))
        raise _BadFileError(f"expected PCM of 8, 16, 24, 32 bits or floats of 32, 64, got {bits} of {came}; {_FIX}")
    if not 1 <= channels <= 64 or not RATES[0] <= rate <= RATES[1] or block != channels * bits // 8:
        raise _BadFileError(
            f"expected 1 to 64 channels at {RATES[0]} to {RATES[1]} Hz, got {channels} channels at {rate} Hz "
            f"in blocks of {block} bytes: a damaged header; make the file anew"
        )
    return _Format(kind, channels, rate, bits)


def _sound(file: BinaryIO, form: _Format, size: int, left: int) -> Sound:
    if size > left:
        raise _BadFileError(f"expected {size} bytes of samples, got {left}: cut off; make the file anew")
    if size > MOST_BYTES:
        raise _BadFileError(f"expected at most {MOST_BYTES} bytes of samples, got {size}; split it into sentences")
    block = form.channels * form.bits // 8
    if size < block or size % block:
        raise _BadFileError(f"expected samples in blocks of {block} bytes, got {size} bytes; make the file anew")
    data = file.read(size)
    if len(data) != size:
        raise _BadFileError(f"expected {size} bytes of samples, got {len(data)}: it shrank; make the file anew")
    step = _PIECE * block
    pieces = [_mixed(data[first : first + step], form) for first in range(0, size, step)]
    return Sound(np.concatenate(pieces), form.rate, form.channels)


def _mixed(data: bytes, form: _Format) -> NDArray[np.float32]:
    """The mean of the channels. Of a piece: an hour at once would be gigabytes in fp64."""
    code, offset, scale = _CODES[form.kind, form.bits]
    if form.bits == 24:  # becomes the upper three bytes of 32
        wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(data, dtype=np.uint8).reshape(-1, 3)
        values = wide.reshape(-1).view(code)
    else:
        values = np.frombuffer(data, dtype=code)
    with np.errstate(over="ignore", invalid="ignore"):  # floats may be anything: `problem` says so
        mono = ((values.reshape(-1, form.channels).astype(np.float64) - offset) / scale).mean(axis=1)
        return mono.astype(np.float32)


_CODES = {  # numpy's code, what silence is, full scale
    (_PCM, 8): ("u1", 128.0, 2.0**7),
    (_PCM, 16): ("<i2", 0.0, 2.0**15),
    (_PCM, 24): ("<i4", 0.0, 2.0**31),
    (_PCM, 32): ("<i4", 0.0, 2.0**31),
    (_FLOAT, 32): ("<f4", 0.0, 1.0),
    (_FLOAT, 64): ("<f8", 0.0, 1.0),
}


def _half(up: int, down: int) -> int:
    """Inputs on each side of an output: more of them if the output's band is the narrower one."""
    return math.ceil(_ZEROS * max(1.0, down / up))


@functools.lru_cache(maxsize=4096)  # 441 for 16 kHz to 22.05
def _taps(remainder: int, up: int, down: int) -> NDArray[np.float32]:
    """The filter for outputs that lie remainder / up after an input."""
    half, cutoff = _half(up, down), _PASS * min(1.0, up / down)
    distances = np.arange(-half, half + 1) - remainder / up
    inside = np.sqrt(np.clip(1.0 - (distances / half) ** 2, 0.0, None))
    taps = np.sinc(cutoff * distances) * np.i0(_BETA * inside)
    return (taps / taps.sum()).astype(np.float32)  # a constant stays what it is
