"""What the way from WAV to mel and back to WAV costs, with no network in between: copy synthesis.

    python -m benchmarks.copy_synthesis FOLDER [--most 30] [--iterations 32] [--out FOLDER]

Each recording is brought to 22.05 kHz, analysed, made into sound by Griffin-Lim and analysed again. Mel L1 is in nats,
frame by frame; MCD is in dB (fullstride.sound.distortion); "of real time" is Griffin-Lim's time over the sound's. A
network's speech through the same vocoder can hardly be nearer to the recording than these figures.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from fullstride.sound import mel, wav
from fullstride.sound.distortion import mel_cepstral_distortion
from fullstride.sound.griffin_lim import griffin_lim


@dataclass(frozen=True)
class Row:
    name: str
    seconds: float
    mel_l1: float  # nats
    distortion: float  # dB
    of_real_time: float


def measure(path: Path, iterations: int = 32, out: Path | None = None) -> Row:
    """One recording there and back; a ValueError says why it is unfit. out: a folder for the sound that came back."""
    sound = wav.read(path)
    if reason := wav.problem(sound.samples, sound.rate):
        raise ValueError(f"{path}: {reason}")
    samples = torch.from_numpy(wav.resample(sound.samples, sound.rate, mel.RATE))
    before, _ = mel.mel_and_energy(samples)
    begin = time.perf_counter()
    copy = griffin_lim(before, iterations)
    taken = time.perf_counter() - begin
    if out:
        wav.write(out / path.name, copy.numpy(), mel.RATE)
    after, _ = mel.mel_and_energy(copy)
    seconds = len(samples) / mel.RATE
    apart = float((before - after).abs().mean())
    return Row(path.stem, seconds, apart, mel_cepstral_distortion(before, after), taken / seconds)


def chosen(folder: Path, most: int) -> list[Path]:
    """At most that many WAVs of a folder, spread evenly over their names."""
    paths = sorted(folder.rglob("*.wav"))
    if len(paths) <= most:
        return paths
    return [paths[i * len(paths) // most] for i in range(most)]


def table(rows: Sequence[Row]) -> str:
    """A line for each recording; then means and medians, for one hiccup of the machine is seen in a mean of times."""
    summary = [
        Row(name, *(average(column) for column in zip(*(astuple(row)[1:] for row in rows), strict=True)))
        for name, average in (("mean", statistics.fmean), ("median", statistics.median))
    ]
    width = max(len(row.name) for row in (*rows, *summary))
    lines = [f"{'':{width}}  seconds  mel L1  MCD dB  of real time"]
    lines += [
        f"{row.name:{width}}  {row.seconds:7.2f}  {row.mel_l1:6.3f}  {row.distortion:6.2f}  {row.of_real_time:12.3f}"
        for row in (*rows, *summary)
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="WAVs, also in folders within")
    parser.add_argument("--most", type=int, default=30, help="take at most so many, spread evenly (30)")
    parser.add_argument("--iterations", type=int, default=32, help="of Griffin-Lim (32)")
    parser.add_argument("--out", type=Path, help="keep what came back in this folder")
    options = parser.parse_args(arguments)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in chosen(options.folder, options.most):
        try:
            rows.append(measure(path, options.iterations, options.out))
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)
    if not rows:
        print(f"{options.folder}: expected WAVs (*.wav) of speech, got none that can be used", file=sys.stderr)
        return 1
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
