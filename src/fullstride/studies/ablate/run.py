"""`fullstride ablate RECIPE`: every technique switched on alone over stock PyTorch, and left out alone of all of them.

Each is a process of its own against a reference, in turns (measuring.py). What was found stands in a study, part by
part: a stopped one goes on (bench/study.py).
"""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench import study as studies
from . import outcome as outcomes
from . import table
from .switching import ALL, ALONE, STOCK, Subject, Trial, of_all
from .techniques import TECHNIQUES, check_names
from .timing import Plan, Turns

if TYPE_CHECKING:
    from ...recipes.config import Config

MINUTES = 20.0
PLAN = "what there is to switch"
_COMPILE_SHARE, _COMPILE_LEAST = 0.25, 60.0  # of all the time, that torch.compile may take; seconds


def run(
    config: "Config",
    only: Sequence[str] = (),
    minutes: float = MINUTES,
    to: Path | None = None,
    anew: bool = False,
    say: studies.Say = studies.say_now,
) -> dict[str, Any]:
    """Measures what is not measured yet, writes the report, and returns the outcome.

    only: names of techniques; none: all. minutes: about as long as it takes, if that is enough for three rounds of all.
    """
    check(only, minutes)
    folder = studies.folder_of("ablate", config.recipe, to)
    studies.check(folder)

    from ...bench import conditions  # these load torch, which bad input need not wait for
    from ...recipes.strict import as_mapping

    facts = conditions.conditions() | {"heap": "as the technique has it"}
    names = [name for name in TECHNIQUES if name in only or not only]
    wish = {"config": as_mapping(config), "only": names if only else [], "minutes": minutes}
    with studies.opened(folder, f"ablate {config.recipe}", wish, facts, anew, say) as study:
        say(conditions.as_text(facts))
        with tempfile.TemporaryDirectory(prefix="fullstride-ablate-") as path:
            skipped = _Measurement(study, config, names, 60 * minutes).run(Path(path))
        found = outcomes.outcome(study.parts, skipped, is_all=not only)
        study.finish(found)
        say("\n" + "\n".join(table.lines(study.parts, found)))
        _write_report(study, config, found)
    return found


def check(only: Sequence[str], minutes: float) -> None:
    """ValueError for what cannot be measured. No torch."""
    check_names(list(only))
    if not 0 < minutes < math.inf:
        raise ValueError(f"--minutes: expected a time above 0, got {minutes:g}")


class _Measurement:
    """The parts of a study, in the order in which they share a reference."""

    def __init__(self, study: studies.Study, config: "Config", names: Sequence[str], seconds: float) -> None:
        self._study, self._config, self._names, self._seconds = study, config, names, seconds

    def run(self, path: Path) -> dict[str, str]:
        """Measures what is left. Returns what was not measured, and why."""
        from .measuring import Bench

        compile_limit = max(_COMPILE_LEAST, _COMPILE_SHARE * self._seconds)
        with contextlib.closing(Bench(path, self._config, compile_limit)) as bench:
            if PLAN not in self._study.parts:
                began = time.monotonic()
                found = bench.find_out().as_json()
                self._study.record(PLAN, found | {"took": time.monotonic() - began})
            plan = Plan.read(self._study.parts[PLAN])
            trials, skipped = choose(subject_of(self._config, plan), self._names)
            self._measure(bench, plan, trials)
        return skipped

    def _measure(self, bench: Any, plan: Plan, trials: dict[str, Trial]) -> None:
        every = [(trial.reference, trial.is_compiled) for trial in trials.values()]
        most = plan.most_turns(every, self._seconds - self._study.parts[PLAN]["took"])
        todo = [trials[name] for name in trials if name not in self._study.parts]
        if todo:
            coming = [(trial.reference, trial.is_compiled) for trial in todo]
            self._study.say("\n".join(plan.lines(coming, most, self._left())))
        for name in self._study.left(list(trials)):
            trial, began = trials[name], time.monotonic()
            num_left = sum(other not in self._study.parts for other in trials)
            turns = plan.turns_now(trial.reference, trial.is_compiled, self._left() / num_left, most[trial.reference])
            found = self._measured(bench, name, trial, turns, most[trial.reference])
            self._study.record(name, found | {"took": time.monotonic() - began}, said=_said(found))

    def _measured(self, bench: Any, name: str, trial: Trial, turns: Turns, most: Turns) -> dict[str, Any]:
        from .measuring import Failed

        technique = name.partition(",")[0]
        about = {
            "technique": technique, "way": trial.way, "reference": trial.reference, "has_it": trial.has_it,
            "note": trial.note,
        }  # fmt: skip
        try:
            found = bench.measure(trial, turns, most)
        except Failed as error:
            return about | {"failed": str(error)}
        if technique == "freezing" and not found["frozen"]:
            about["note"] = "; ".join(filter(None, [trial.note, f"nothing froze in {found['memory']['step']} steps"]))
        return about | found

    def _left(self) -> float:
        """Seconds of those that were asked for."""
        return self._seconds - sum(part["took"] for part in self._study.parts.values())


def subject_of(config: "Config", plan: Plan) -> Subject:
    kept = os.environ.get("FULLSTRIDE_HEAP", "1") != "0"
    used, functions = frozenset(plan.used), frozenset(plan.functions)
    return Subject(config, plan.precision, used, functions, plan.threads, kept, plan.micro_batch_matters)


def choose(subject: Subject, names: Sequence[str]) -> tuple[dict[str, Trial], dict[str, str]]:
    """The parts to measure by name, those against the same reference one after the other, and why others are not."""
    trials = {outcomes.TOGETHER: Trial(ALONE, STOCK, True, of_all(subject))}
    skipped: dict[str, str] = {}
    for name in names:
        answers = {ALONE: TECHNIQUES[name].alone(subject), "in all": TECHNIQUES[name].within(subject)}
        is_hopeless = len(set(map(str, answers.values()))) == 1  # the same words for both
        for way, answer in answers.items():
            if isinstance(answer, Trial):
                trials[outcomes.part_name(name, answer.way)] = answer
            else:
                skipped[name if is_hopeless else outcomes.part_name(name, way)] = answer
    order = {name: number for number, name in enumerate((STOCK, ALL))}
    return dict(sorted(trials.items(), key=lambda item: order.get(item[1].reference, len(order)))), skipped


def _said(found: dict[str, Any]) -> str:
    return f"failed: {found['failed']}" if "failed" in found else table.said(found)


def _write_report(study: studies.Study, config: "Config", found: dict[str, Any]) -> None:
    from . import page

    for path in page.write(study, config, found):
        study.say(f"{path}")
