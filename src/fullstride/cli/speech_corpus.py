"""fullstride data speech: a corpus to learn speaking from, synthesised or from a folder of recordings."""

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import number, positive, seed

if TYPE_CHECKING:
    from ..data.speech.corpus import Corpus
    from ..data.speech.plans import Plan

_SHOWN = 5  # lines of what was skipped
_SECONDS_BETWEEN_LINES = 20.0


def add(data: argparse.ArgumentParser) -> None:
    """The options of `fullstride data speech`."""
    group = data.add_argument_group("speech", "A corpus for recipe fastspeech2; interrupted, the same command goes on.")
    above_0 = number("a number above 0", lambda x: 0 < x < math.inf)
    of_speech = [
        group.add_argument("--hours", metavar="H", type=above_0, help="of speech (default: 2; of --recordings: all)"),
        group.add_argument("--seed", metavar="S", type=seed, default=0, help="others: other sentences (default: 0)"),
        group.add_argument(
            "--voice", metavar="NAME", action="append", dest="voices",
            help="slt (the default), rms, awb or kal16 of flite; en-us, en-gb of eSpeak NG; several: give it again",
        ),
        group.add_argument("--engine", choices=("flite", "espeak"), help="default: flite if it is installed"),
        group.add_argument(
            "--text", metavar="PATH", action="append", dest="texts",
            help="sentences of .txt files or a folder of them, or of `shakespeare`; default: generated ones",
        ),
        group.add_argument(
            "--recordings", metavar="DIR", type=Path,
            help="recordings instead: metadata.csv, wavs/, and TextGrid/ of the Montreal Forced Aligner",
        ),
        group.add_argument(
            "--longest", metavar="SECONDS", type=above_0, default=20.0, help="the most of a sentence (default: 20)"
        ),
        group.add_argument(
            "--bad", choices=("skip", "refuse"), default="skip",
            help="what cannot be used is skipped and counted (the default), or ends the preparation",
        ),
        group.add_argument("--processes", metavar="N", type=positive, help="default: one a core"),
    ]  # fmt: skip
    data.set_defaults(of_speech=of_speech)


def refuse_options(options: argparse.Namespace) -> None:
    """Those of speech, where another data set was asked for."""
    for action in options.of_speech:
        if getattr(options, action.dest) != action.default:
            given = f"got {options.name}" if options.name else "got no name"
            raise ValueError(f"{action.option_strings[0]}: expected with `fullstride data speech` alone, {given}")


def run(options: argparse.Namespace) -> int:
    from ..data import sources
    from ..data.speech import preparation

    if options.full:
        raise ValueError("--full: expected with `fullstride data mnist` alone, got speech; say how much by --hours")
    folder = options.path or sources.default_folder("speech")
    plan = _plan(options)
    hours = options.hours if options.hours is not None or options.recordings else 2.0
    with _progress(hours) as progress:
        wish = preparation.Wish(hours, options.longest, options.bad)
        corpus = preparation.prepare(folder, plan, wish, options.processes, progress)
    print("\n".join(_ending(corpus, hours)))
    return 0


def _plan(options: argparse.Namespace) -> "Plan":
    from ..data.speech import plans
    from ..sound import pitch
    from ..speech.front_end import SYNTHESISERS

    line = pitch.missing()
    if line is not None:
        raise ValueError(line)
    if options.recordings is not None:
        for name in ("voices", "engine", "texts"):
            if getattr(options, name):
                raise ValueError(f"--{name.removesuffix('s')} is of a synthesised corpus: leave it or --recordings out")
        return plans.FolderPlan(options.recordings.absolute(), options.seed)
    engine = plans.engine_here(options.engine)
    known = SYNTHESISERS[engine].VOICES
    voices = tuple(dict.fromkeys(options.voices or known[:1]))
    for voice in voices:
        if voice not in known:
            raise ValueError(f"--voice: expected one of {', '.join(known)}, which {engine} has, got {voice}")
    texts = None
    if options.texts:
        from ..data.speech.texts.text_sentences import from_text

        texts = tuple(from_text([Path(text) for text in options.texts], options.seed))
    return plans.SynthesisPlan(engine, voices, options.seed, texts)


def _ending(corpus: "Corpus", hours: float | None) -> list[str]:
    valid = sum(map(len, corpus.valid))
    lines = [
        f"speech: {corpus.seconds / 3600:.2f} hours, {corpus.num_train:,} sentences by {', '.join(corpus.speakers)} to"
        f" train on, {valid} held out, in {corpus.folder}"
    ]
    if hours is not None and corpus.seconds < 3600 * hours:
        lines.append(f"that is all there is: {corpus.seconds / 3600:.2f} of {hours:g} hours")
    if corpus.notes:
        lines.append("recordings " + ", ".join(f"{note}: {count:,}" for note, count in sorted(corpus.notes.items())))
    if corpus.skipped:
        lines.append(f"skipped {len(corpus.skipped)}:")
        lines += [f"  {line}" for line in corpus.skipped[:_SHOWN]]
        if len(corpus.skipped) > _SHOWN:
            lines.append(f"  ... and {len(corpus.skipped) - _SHOWN} more")
    return lines


@contextlib.contextmanager
def _progress(hours: float | None) -> Iterator[Callable[[float, int], Any]]:
    """A bar on a terminal, now and then a line elsewhere; both to standard error."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        words = TextColumn("{task.description}")
        with Progress(words, BarColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task("0.00 h of speech", total=None if hours is None else 3600 * hours)
            yield lambda seconds, skipped: bar.update(task, completed=seconds, description=_line(seconds, skipped))
        return
    last = time.monotonic()

    def tell(seconds: float, skipped: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(_line(seconds, skipped) + (f" of {hours:g} h" if hours else ""), file=sys.stderr, flush=True)

    yield tell


def _line(seconds: float, skipped: int) -> str:
    return f"{seconds / 3600:.2f} h of speech" + (f", {skipped} skipped" if skipped else "")
