"""Folders of recordings, as people record them and the Montreal Forced Aligner aligns them."""

from pathlib import Path

import numpy as np

from fullstride.sound import wav
from fullstride.speech import espeak
from fullstride.speech.spoken import Spoken

TEXTS = {"one": "Good morning.", "two": "Where is the door?", "three": "It rains again.", "four": "Please come in."}


def spoken() -> dict[str, Spoken]:
    return {name: espeak.speak(text, "en-us") for name, text in TEXTS.items()}


def write(folder: Path, sounds: dict[str, Spoken]) -> Path:
    for name in ("wavs", "TextGrid"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata.csv").write_text("".join(f"{name}|{TEXTS[name]}\n" for name in sounds))
    for name, sound in sounds.items():
        wav.write(folder / "wavs" / f"{name}.wav", sound.samples, sound.rate)
        (folder / "TextGrid" / f"{name}.TextGrid").write_text(text_grid(sound))
    return folder


def text_grid(sound: Spoken, short: bool = False, stretch: float = 1.0) -> str:
    """One word that is the whole sentence, and its phonemes. short: the form without names of what the numbers are."""
    ends = [float(end) * stretch for end in sound.ends]
    phones = list(zip([0.0, *ends[:-1]], ends, sound.phonemes, strict=True))
    tiers = {"words": [(0.0, ends[-1], "sentence")], "phones": phones}
    if short:
        lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", str(ends[-1]), "<exists>", "2"]
        for name, intervals in tiers.items():
            lines += ['"IntervalTier"', f'"{name}"', "0", str(ends[-1]), str(len(intervals))]
            lines += [word for begin, end, text in intervals for word in (str(begin), str(end), f'"{text}"')]
        return "\n".join(lines) + "\n"
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {ends[-1]}",
        "tiers? <exists>", "size = 2", "item []:",
    ]  # fmt: skip
    for number, (name, intervals) in enumerate(tiers.items(), 1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"']
        lines += ["        xmin = 0", f"        xmax = {ends[-1]}", f"        intervals: size = {len(intervals)}"]
        for i, (begin, end, text) in enumerate(intervals, 1):
            lines += [f"        intervals [{i}]:", f"            xmin = {begin}", f"            xmax = {end}"]
            lines.append(f'            text = "{text}"')
    return "\n".join(lines) + "\n"


def stereo(samples: np.ndarray, rate: int) -> bytes:
    """Two channels of 16 bits, the second one silent."""
    both = np.stack([np.rint(samples * 32767), np.zeros(len(samples))], 1).astype("<i2").tobytes()
    one = wav.as_bytes(np.zeros(1, np.float32), rate)
    head = bytearray(one[:44])
    head[4:8] = (36 + len(both)).to_bytes(4, "little")
    head[22:24] = (2).to_bytes(2, "little")
    head[28:32] = (4 * rate).to_bytes(4, "little")
    head[32:34] = (4).to_bytes(2, "little")
    head[40:44] = len(both).to_bytes(4, "little")
    return bytes(head) + both
