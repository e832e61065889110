"""The guard against slowing down: `make bench-check`, or

    python -m benchmarks.check [--only NAME ...] [--rounds N] [--anew] [--to FOLDER]

Measures again, quickly, what is committed of this kind of CPU: every kernel against its peers, as `fullstride bench
kernels` does, and every step against stock default, each side a process of its own (finding stock's best takes too
long). What seems to have fallen is measured once more with more rounds (check_ratios.py says what counts). Exit code 1
if anything fell or our side of a step failed; where stock's alone failed, that is a note. Runs from any tree, also a
changed one; leave the machine alone meanwhile. Stopped by Ctrl-C or SIGTERM it goes on with the next call, if neither
the code nor the machine have changed; --anew begins again.
"""

import argparse
import contextlib
import hashlib
import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fullstride.bench import conditions, study
from fullstride.bench.kernels import rows as kernel_rows
from fullstride.bench.measure import Timing
from fullstride.bench.step import benchmark as step
from fullstride.bench.step.cases import CASES, Case
from fullstride.bench.step.process import SideFailed
from fullstride.cli.arguments import positive
from fullstride.train.errors import RunEnded

from . import check_ratios, result_files
from .cells import ratio
from .check_ratios import KERNEL_SUITES, Key, Ratios
from .result_files import ROOT, spread
from .step_rows import OURS, STOCK_DEFAULT
from .suites import gone, name_of_step
from .take import check_as_it_comes

FOLDER = Path("build") / "bench-check"
_MORE = 3  # times as many rounds when it is looked at again, and 7 at least
_SAME = ("cpu", "usable_cores", "isa", "torch", "python", "commit")  # of the conditions, to go on
_MOST_STEPS = 50  # of a turn
Part = tuple[str, str]  # suite, and an op or a step


class OursFailed(SideFailed):
    """Our side of a step could not go on, and maybe stock's, too."""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> None:
    parser = argparse.ArgumentParser(prog="bench-check", description="Names what has become slower.")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="kernels and models, adam and mlp say")
    parser.add_argument("--rounds", metavar="N", type=positive, default=3, help="turns of each side (default: 3)")
    parser.add_argument("--anew", action="store_true", help="do not go on with a check that was stopped")
    parser.add_argument("--to", metavar="FOLDER", type=Path, default=root / FOLDER, help="where it keeps its parts")
    options = parser.parse_args(arguments)
    try:
        sys.exit(check(options.only, options.rounds, options.to, options.anew, root))
    except RunEnded as error:
        parser.exit(error.code, f"bench-check: {error}\n")
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        parser.exit(2, f"bench-check: {error}\n")


def check(only: Sequence[str], rounds: int, folder: Path, anew: bool, root: Path) -> int:
    """The exit code."""
    check_as_it_comes()
    facts = conditions.conditions()
    machine = result_files.machine_of(facts)
    old, notes = check_ratios.committed(result_files.load_all(root), machine, facts["usable_cores"], facts["torch"])
    if not old:
        why = f" ({next(iter(notes.values()))})" if notes else ""
        print(f"bench-check: no results of this kind of CPU, {machine}, to compare with{why}; `make bench` takes them")
        return 0
    without = [] if only else [*(f"{key}: {why}" for key, why in notes.items()), *_never_taken({*old, *notes})]
    old, lost = _still_there(_chosen(old, only))
    if facts["load"] > 0.5 * facts["usable_cores"]:
        print(f"note: load {facts['load']} on {facts['usable_cores']} cores: others are measured, too")
    with _opened(folder, only, rounds, facts, anew) as opened:
        new = _measure(opened, _parts(old), rounds, "")
        seem = [key for key in old if key in new and check_ratios.fell(old[key], new[key])]
        again = _measure(opened, _parts(seem), max(7, _MORE * rounds), "again: ") if seem else {}
        failed, noted = (_failed(opened, ours) for ours in (True, False))
        outcome = check_ratios.compare(old, new, again, [*without, *lost, *noted], failed)
        last = check_ratios.verdict(outcome, old, new, again)
        print("\n".join(["", f"{machine}, ratios with the lowest and the highest round:", *outcome.lines, "", *last]))
        opened.finish({"fell": [str(key) for key in outcome.fell], "failed": failed})
    return 1 if outcome.fell or failed else 0


def _failed(opened: study.Study, ours: bool) -> list[str]:
    """Steps whose side of ours, or of stock alone, could not go on."""
    found = {name: part for name, part in opened.parts.items() if "failed" in part}
    return [f"{name}: {part['failed']}" for name, part in found.items() if part["ours"] is ours]


def _chosen(old: Ratios, only: Sequence[str]) -> Ratios:
    """Ops by their name, steps by that of the model or their own."""
    names = {key.what for key in old} | {key.what.partition(" ")[0] for key in old}
    unknown = [name for name in only if name not in names]
    if unknown:
        there_are = ", ".join(sorted(names))
        raise ValueError(f"--only: expected names with committed results, got {unknown[0]!r}; there are: {there_are}")
    return {key: value for key, value in old.items() if not only or {key.what, key.what.partition(" ")[0]} & {*only}}


def _still_there(old: Ratios) -> tuple[Ratios, list[str]]:
    """(those that can be measured, and the others in words)."""
    lost = {key.what for key in old if key.suite in KERNEL_SUITES and gone(key.what, ROOT)}
    lost |= {key.what for key in old if key.suite == "steps" and key.what not in _cases()}
    told = [f"{what}: committed, and there is no such thing any more" for what in sorted(lost)]
    return {key: value for key, value in old.items() if key.what not in lost}, told


def _never_taken(known: set[Key]) -> list[str]:
    """What nobody has taken on this kind of CPU."""
    names = {key.what for key in known}
    return [f"{name}: nothing is committed" for name in (*kernel_rows.ops(), *_cases()) if name not in names]


def _cases() -> dict[str, Case]:
    return {
        name_of_step({"model": case.model, "batch": case.batch, "accumulate": case.accumulate}): case for case in CASES
    }


# ---- parts, which are kept ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(
    folder: Path, only: Sequence[str], rounds: int, facts: Mapping[str, Any], anew: bool
) -> Iterator[study.Study]:
    """What was stopped, if it is of the same code on the same machine; else a new one."""
    wish = {"only": sorted(only), "rounds": rounds, "sources": _digest()}
    before = study.check(folder)
    if before is not None:
        is_same = before["wish"] == wish and all(before["conditions"].get(name) == facts[name] for name in _SAME)
        if anew or before["outcome"] is not None or not is_same:
            (folder / study.FILE).unlink()
            if before["outcome"] is None and not anew:
                print("the check that was stopped is of other code, another machine or other wishes: beginning again")
    with study.opened(folder, "bench-check", wish, facts) as found:
        yield found


def _digest() -> str:
    """Of the code that is measured: parts of two states of it must not mix."""
    state = hashlib.sha256()
    for path in sorted([*(ROOT / "csrc").rglob("*.*"), *(ROOT / "src" / "fullstride").rglob("*.py")]):
        state.update(str(path.relative_to(ROOT)).encode())
        state.update(path.read_bytes())
    return state.hexdigest()[:12]


def _parts(keys: Iterable[Key]) -> list[Part]:
    return list(dict.fromkeys((key.suite, key.what) for key in keys))


def _measure(opened: study.Study, parts: Sequence[Part], rounds: int, prefix: str) -> Ratios:
    """The ratios of these parts, of which some may be done already."""
    names = {f"{prefix}{suite} {what}": (suite, what) for suite, what in parts}
    for name in opened.left(list(names)):
        suite, what = names[name]
        try:
            found = _step(what, rounds) if suite == "steps" else _kernel(suite, what, rounds)
        except SideFailed as error:
            ours = isinstance(error, OursFailed)
            said = f"FAILED: {error}" if ours else str(error)
            opened.record(name, {"ratios": [], "failed": str(error), "ours": ours}, said=said)
            continue
        kept = [[*key, value._asdict()] for key, value in found.items()]
        said = ratio(next(iter(found.values()))) if len(found) == 1 else f"{len(found)} ratios"
        opened.record(name, {"ratios": kept}, said=said)
    rows = [row for name in names for row in opened.parts[name]["ratios"]]
    return {Key(*row[:4]): spread(row[4]) for row in rows}


def _kernel(suite: str, op: str, rounds: int) -> Ratios:
    """By the command that the committed results are of, in a process of its own: malloc cannot be told twice."""
    kept = ["--keep-heap"] if suite == "kernels_heap_kept" else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = ["bench", "kernels", "--only", op, *kept, "--rounds", str(rounds), "--json", str(path)]
        _run([sys.executable, "-m", "fullstride", *command])
        return check_ratios.kernel_ratios(suite, json.loads(path.read_text())["results"])


def _run(command: Sequence[str]) -> None:
    """As subprocess.run(), which leaves its process alone where a signal comes while that is being started."""
    process = None
    try:
        with _signals_wait():
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        code = process.wait()
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Until its end."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _step(name: str, rounds: int) -> Ratios:
    """Ours against stock default alone; a turn has as many steps as in `fullstride bench step`."""
    case, failed = _cases()[name], dict[str, str]()
    wishes = {OURS: case.config(fullstride="auto"), STOCK_DEFAULT: case.config()}
    turns: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        started = [step.try_start(side, config, stack, failed) for side, config in wishes.items()]
        sides = [side for side in started if side is not None]
        # Ours goes on where stock's has died: it may die, too. SideFailed says that none is left.
        with contextlib.suppress(SideFailed):
            first = step.take_turns(sides, 1, failed)
            steps = min(_MOST_STEPS, math.ceil(step.TURN / min(answer["seconds"][0] for answer in first.values())))
            turns += [step.take_turns(sides, steps, failed) for _ in range(rounds)]
    if failed:
        why = "; ".join(f"{side}: {reason}" for side, reason in failed.items())
        raise OursFailed(why) if OURS in failed else SideFailed(why)
    ours, stock = (Timing(tuple(sum(turn[side]["seconds"]) for turn in turns)) for side in (OURS, STOCK_DEFAULT))
    return {Key("steps", name, "", STOCK_DEFAULT): spread(ours.ratio_to(stock)._asdict())}


if __name__ == "__main__":
    main()
