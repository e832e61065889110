"""fullstride train and resume in several processes: started here, or by torchrun."""

import argparse
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..distributed.launched import STORE_FILE, is_one_of_several, may_start_again
from ..run_folder.folder import RunFolder
from ..train.errors import PEER_LOST

if TYPE_CHECKING:
    from ..distributed.world import World
    from ..recipes.config import Distributed

_OWN = ("--nproc", "--restarts", "--run", "--folder")
"""Options that the processes are not given as they are."""


def launch(options: argparse.Namespace, run: Path) -> int:
    """The same command in options.nproc processes, with the run folder that they share."""
    from ..distributed.launching import launch  # loads torch

    words = ["fullstride", *_without(options.arguments)]
    is_new = options.command.__name__ == "_train"
    if is_new:
        words += ["--folder", str(run)]
    code, death = launch(words, options.nproc, options.restarts or 0, PEER_LOST)
    if code and is_new and options.run is None:
        with contextlib.suppress(OSError):  # something stands in it
            run.rmdir()
    if death:
        print(f"fullstride: {death}; go on with: fullstride resume {run}", file=sys.stderr)
    return code


def _without(arguments: list[str]) -> list[str]:
    words, rest = [], iter(arguments)
    for word in rest:
        if word in _OWN:
            next(rest, None)
        elif not word.startswith(tuple(f"{name}=" for name in _OWN)):
            words.append(word)
    return words


def check(options: argparse.Namespace) -> None:
    """ValueError for what makes no sense with one process, or in one of several."""
    if options.nproc is not None and is_one_of_several():
        raise ValueError(
            f"--nproc: expected none in one of {os.environ['WORLD_SIZE']} processes that a launcher has started, got"
            f" {options.nproc}; torchrun has --nproc-per-node"
        )
    if options.restarts is not None and options.nproc is None:
        raise ValueError("--restarts: expected --nproc with it, got it alone; torchrun has --max-restarts")


def pin() -> None:
    """This process to its own cores, before torch has threads."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if is_one_of_several() and local.isdecimal() and int(local) > 1:
        from ..machine import placement

        placement.pin(int(os.environ.get("LOCAL_RANK", "0")), int(local))


def place(run: Path | None, recipe: str) -> Path | None:
    """The run folder, where torch's agent may start processes anew: the same one in each attempt."""
    if run is not None or not may_start_again():
        return run
    agent = os.getppid()
    try:
        ticks = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[19]  # since boot, when it began
    except OSError:
        raise ValueError("--folder: expected one, as a restart could not find the run again here") from None
    return Path("runs") / f"{recipe}-{os.environ.get('TORCHELASTIC_RUN_ID', 'none')[:8]}-{agent}-{ticks}"


@contextlib.contextmanager
def joined(wish: "Distributed") -> Iterator["World"]:
    """All processes of this run: others than the first may have to ask it for the run."""
    from ..distributed.launching import end_with_launcher
    from ..distributed.world import joined
    from ..train.together import losses_named

    end_with_launcher()
    with joined(wish.backend, wish.timeout) as world, losses_named(world):
        yield world


def wish_of(run: Path) -> "Distributed":
    """That of a run which goes on, where it can be read: the first process's counts, and it says what is wrong."""
    from ..recipes import config_files
    from ..recipes.config import Distributed

    try:
        return config_files.read(run / "config.yaml").distributed
    except (ValueError, OSError):
        return Distributed()


def goes_on(world: "World", run: Path | None) -> bool:
    """Whether processes that were started anew have a run to go on with: one that this command began, as the first one
    knows. A folder with another run is refused by all attempts."""
    if world.is_alone and not may_start_again():
        return False
    from ..distributed import agreement, rendezvous  # load torch

    agreement.check_command(world, resumes=False)
    is_one = run is not None and RunFolder.is_one(run)
    return bool(world.from_first(world.is_first and not rendezvous.begins(not is_one) and is_one))


def is_first_to_say(line: str) -> bool:
    """Whether no other process that the same command started has said it: what ends all alike is told once."""
    if STORE_FILE not in os.environ:
        return True
    mark = f"{os.environ[STORE_FILE]}-{hashlib.sha256(line.encode()).hexdigest()}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:  # better twice than never
        return True
    return True
