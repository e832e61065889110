"""fullstride speak: text to a WAV file, by a voice that was trained here."""

import argparse
import io
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import number, positive
from .runs import check_which, warnings_alone
from .train import interrupts_held

if TYPE_CHECKING:
    from ..speaking import Speech, Voice

_factor = number("a number from 0.1 to 10", lambda x: 0.1 <= x <= 10)


def add(commands: Any) -> None:
    speak = commands.add_parser(
        "speak",
        help="speech from text, as a WAV file",
        description="Says a text with the voice of a run of recipe fastspeech2, or of an exported folder, and writes a"
        " WAV file. Several lines become one file, or one each if --out is a folder.",
    )
    speak.add_argument("source", metavar="RUN", type=Path, help="the run folder, or the folder of an exported voice")
    speak.add_argument("text", metavar="TEXT", nargs="?", help="what to say; - reads standard input, a line a sentence")
    speak.add_argument("--file", metavar="FILE", type=Path, help="says the lines of a text file instead")
    speak.add_argument("--out", metavar="WAV", type=Path, required=True, help="the file, or a folder for one a line")
    for name, of in (("speed", "speech"), ("pitch", "the voice's Hz"), ("energy", "its loudness")):
        speak.add_argument(f"--{name}", metavar="F", type=_factor, default=1.0, help=f"factor of {of} (default: 1)")
    speak.add_argument("--speaker", metavar="N", default="0", help="number or name, of several (default: 0)")
    speak.add_argument("--mels", metavar="DIR", type=Path, help="also save mels for another vocoder: NNN.npy (80, T)")
    speak.add_argument("--iterations", metavar="N", type=positive, default=32, help="of Griffin-Lim (default: 32)")
    speak.add_argument("--checkpoint", metavar="WHICH", help="of a run: best (the default), last, or a step")
    speak.set_defaults(command=_speak)


def _speak(options: argparse.Namespace) -> int:
    if options.checkpoint is not None:
        check_which(options.checkpoint)
    lines = _lines(options)
    _check_out(options.out)
    with warnings_alone():
        voice = _load(options.source, options.checkpoint)
    from ..machine import memory, threads
    from ..speaking import Manner

    memory.tune()
    threads.set_threads(None)
    manner = Manner(options.speed, options.pitch, options.energy, _speaker(voice, options.speaker))
    spoken = []
    for i, line in enumerate(lines, 1):
        try:
            speech = voice.say(line, manner, options.iterations)
        except ValueError as error:
            raise ValueError(f"line {i}: {error}" if len(lines) > 1 else str(error)) from None
        for note in speech.notes:
            print(f"fullstride: {note}", file=sys.stderr)
        spoken.append(speech)
    written = _write(spoken, options.out, options.mels)
    total, work = sum(s.seconds for s in spoken), sum(s.model_seconds + s.vocoder_seconds for s in spoken)
    model = sum(s.model_seconds for s in spoken)
    print(
        f"{written}: {total:.2f} s of speech in {work:.2f} s, {work / max(total, 1e-9):.2f} of real time"
        f" (model {model:.2f} s, Griffin-Lim {work - model:.2f} s)"
    )
    return 0


def _lines(options: argparse.Namespace) -> list[str]:
    if (options.text is None) == (options.file is None):
        raise ValueError('expected a text, as in `fullstride speak RUN "Hello." --out hello.wav`, or --file FILE')
    if options.file is None and options.text != "-":
        return [options.text]
    where = "standard input" if options.file is None else str(options.file)
    try:
        content = sys.stdin.buffer.read() if options.file is None else options.file.read_bytes()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: expected UTF-8, got {error.reason} at byte {error.start}") from None
    except IsADirectoryError:
        raise ValueError(f"{where}: expected a text file, got a folder") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{where}: expected lines of text, got none")
    return lines


def _check_out(out: Path) -> None:
    """Before a voice is loaded. A folder is made; that of a file must be there."""
    is_file = out.suffix.lower() == ".wav"
    if out.is_dir() if is_file else (out.exists() or out.suffix) and not out.is_dir():
        raise ValueError(f"--out: expected a name that ends with .wav, or a folder's without an ending, got {out}")
    if not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}; make it, or name another")


def _load(source: Path, which: str | None) -> "Voice":
    from ..recipes.fastspeech2 import files

    with interrupts_held():
        from ..train import evaluation
    if which is not None and files.is_exported(source):
        raise ValueError(f"--checkpoint: expected a run, got {source}, an exported voice, which has one; leave it out")
    return files.load_voice(source, lambda: evaluation.find(source, which or "best").tensors["model"])


def _speaker(voice: "Voice", wish: str) -> int:
    names = [speaker.name for speaker in voice.speakers]
    if wish in names:
        return names.index(wish)
    if wish.isdecimal() and int(wish) < len(names):
        return int(wish)
    known = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    raise ValueError(f"--speaker: expected one of {known}; got {wish}")


def _write(spoken: "list[Speech]", out: Path, mels: Path | None) -> str:
    import numpy as np

    from .. import durable
    from ..sound import wav
    from ..sound.mel import RATE
    from ..speaking import joined

    digits = max(3, math.ceil(math.log10(len(spoken) + 1)))
    if mels is not None:
        mels.mkdir(parents=True, exist_ok=True)
        for i, speech in enumerate(spoken, 1):
            content = io.BytesIO()
            np.save(content, speech.mel.T)
            durable.replace(mels / f"{i:0{digits}d}.npy", content.getvalue())
    if out.suffix.lower() == ".wav":
        wav.write(out, joined(spoken), RATE)
        return str(out)
    out.mkdir(parents=True, exist_ok=True)
    for i, speech in enumerate(spoken, 1):
        wav.write(out / f"{i:0{digits}d}.wav", speech.samples, RATE)
    return f"{out}{'' if len(spoken) == 1 else f', {len(spoken)} files'}"
