"""Makes a corpus of speech from a plan: in parallel, shard by shard, and from where it stopped if it was interrupted.

    settings.json             of the plan; a folder takes no other plan
    train-00000.safetensors   64 utterances each, written whole when they are done; a killed preparation leaves these
    valid-00000.safetensors   the held-out ones, with their sounds
    manifest.json             written last: which shards make up the corpus, their checksums, symbols, statistics

With the same plan a longer corpus begins with the shorter one, so that `--hours` can be raised later. A shard that is
damaged, or whose recordings have changed since, is made anew.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ... import durable
from ...machine import cpu, pool_process
from ...sound import mel
from . import corpus, shards
from .plans import Plan
from .shards import Shard
from .utterance import LONGEST, Utterance, analyse

PER_SHARD = 64
_SETTINGS = "settings.json"

Progress = Callable[[float, int], object]
"""Told the seconds of speech that are there, and how many utterances were skipped."""


@dataclass(frozen=True)
class Wish:
    hours: float | None = None
    """None: all there is."""
    longest: float = LONGEST
    """Seconds of an utterance."""
    bad: str = "skip"
    """What cannot be used is skipped and counted, or ends the preparation: refuse."""


def prepare(
    folder: Path, plan: Plan, wish: Wish, processes: int | None = None, progress: Progress = lambda *_: None
) -> corpus.Corpus:
    """The corpus in the folder, made as far as it is not there yet."""
    _claim(folder, plan, wish)
    _remove_leavings(folder)
    valid = [("valid", i) for i in range(-(-plan.num_valid // PER_SHARD))]
    count = processes or cpu.describe().num_usable_cores
    with _workers(count) as pool:
        made = partial(_made, folder, plan, wish, pool, count)
        held_out = list(made(iter(valid)))
        if not any(map(len, held_out)):
            raise corpus.too_few(folder, [], held_out)
        chosen, seconds, skipped = [], 0.0, sum(len(shard.skipped) for shard in held_out)
        most = None if wish.hours is None else 3600 * wish.hours
        for shard in made(_train_shards(plan)):
            chosen.append(shard)
            seconds += float(shard.frames.sum()) * mel.HOP / mel.RATE
            skipped += len(shard.skipped)
            progress(seconds, skipped)
            if plan.num_train is None and not len(shard):  # sentences without an end, none of which can be used
                raise corpus.too_few(folder, chosen, held_out)
            if most is not None and seconds >= most:
                break
    return corpus.seal(folder, chosen, held_out, plan.settings)


def _train_shards(plan: Plan) -> Iterator[tuple[str, int]]:
    number = 0
    while plan.num_train is None or number * PER_SHARD < plan.num_train:
        yield "train", number
        number += 1


def _made(
    folder: Path, plan: Plan, wish: Wish, pool: ProcessPoolExecutor, most: int, wanted: Iterator[tuple[str, int]]
) -> Iterator[Shard]:
    """The shards in their order, as far as wished for without bad ones; `most` that come next are made meanwhile."""
    ahead: list[tuple[Path, Future[None] | None]] = []
    try:
        while True:
            for split, number in wanted:
                path = folder / f"{split}-{number:05d}.safetensors"
                numbers = _numbers(plan, split, number)
                there = Shard(path).is_whole(plan.sources(split == "valid", numbers))
                task = None if there else pool.submit(make_shard, path, plan, wish, split, numbers)
                ahead.append((path, task))
                if len(ahead) > most:
                    break
            if not ahead:
                return
            path, future = ahead.pop(0)
            if future is not None:
                future.result()
            shard = Shard(path)
            if wish.bad == "refuse" and shard.skipped:  # by an earlier call that was to skip
                raise _refused(shard.skipped[0])
            yield shard
    except BrokenProcessPool:
        raise OSError(
            f"a process that prepared speech died before its shard was written (was memory short?); what is in {folder}"
            " is whole, and the same command goes on there"
        ) from None
    finally:
        for _, future in ahead:
            if future is not None:
                future.cancel()


def _numbers(plan: Plan, split: str, shard: int) -> range:
    """Of the utterances in a shard."""
    total = plan.num_valid if split == "valid" else plan.num_train
    end = (shard + 1) * PER_SHARD
    return range(shard * PER_SHARD, end if total is None else min(end, total))


def make_shard(path: Path, plan: Plan, wish: Wish, split: str, numbers: range) -> None:
    """In a process of its own."""
    held_out = split == "valid"
    sources = plan.sources(held_out, numbers)  # before they are read: what changes meanwhile is read again next time
    utterances: list[Utterance] = []
    skipped: list[str] = []
    notes: list[str] = []
    for number in numbers:
        try:
            name, text, speaker, spoken, remarks = plan.make(held_out, number)
            utterances.append(analyse(name, text, speaker, spoken, keep_sound=held_out, longest=wish.longest))
            notes += remarks
        except ValueError as error:
            line = " ".join(str(error).split())
            if wish.bad == "refuse":
                raise _refused(line) from None
            skipped.append(line)
    shards.write(path, utterances, skipped, notes, sources)


def _refused(line: str) -> ValueError:
    return ValueError(f"{line} (--bad skip would leave it out)")


def _claim(folder: Path, plan: Plan, wish: Wish) -> None:
    """Says whose corpus this folder is; another plan would mix two."""
    content: dict[str, Any] = {
        "version": shards.VERSION, "per_shard": PER_SHARD, "longest": wish.longest, **plan.settings
    }  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}; give one by --path") from None
    path = folder / _SETTINGS
    if path.exists():
        with contextlib.suppress(ValueError):
            if json.loads(path.read_bytes()) == json.loads(json.dumps(content)):
                return
        raise ValueError(
            f"{folder} holds a corpus of other settings (voices, seed, texts, --longest, names of recordings, version):"
            " give another --path, or remove that folder"
        )
    durable.replace(path, json.dumps(content).encode())


def _remove_leavings(folder: Path) -> None:
    """Of processes that were killed while they wrote. Those that live are at work here, too."""
    for path in folder.glob(".*.partial"):
        pid = path.name.split(".")[-2]
        if pid.isdecimal() and not _lives(int(pid)):
            path.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


@contextlib.contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    pool = pool_process.executor(count, _one_thread)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
