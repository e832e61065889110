"""The fastest settings: one dimension after the other by successive halving, then default against best in turns.

In a dimension the best so far runs against all other values, short turns each; the better half of the others runs
again, twice as long, and so on. It ends early when the best part of no other reaches the leader's median. A value is
taken if it is more than 2 % faster. What all of that came to is measured once more: default and best take turns, and
the default stays unless the best was faster in every round.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...bench.measure import spread_of
from ...bench.step.process import SideFailed
from ...bench.study import as_time
from ...recipes import config_files
from ...recipes.config import Config
from ...report.words import significant
from . import plan, settings
from .child import Child, Children, Estimator, TooMuchMemory, too_much
from .plan import Session
from .settings import Ground, Settings

GAIN = 1.02  # below it a difference is taken for chance
_SETTLE_FIRST, _SETTLE = 3, 1  # steps: the first ones of a process, or after a rest, are slower
_FIRST_TURN = 0.02  # of the time, for the default

Part = dict[str, Any]


@dataclass
class Found:
    """What came out."""

    ground: Ground
    default: Settings
    best: Settings
    unit: str
    full_steps: int  # of the whole training
    startup: float  # seconds
    step_seconds: float  # of the default
    inter_op_started: bool
    left_out: dict[str, str] = field(default_factory=dict)
    rounds: list[Part] = field(default_factory=list)  # of the final; none: nothing was faster than the default

    @property
    def is_faster(self) -> bool:
        """In every round."""
        return bool(self.rounds) and min(part["ratio"] for part in self.rounds) > 1

    @property
    def taken(self) -> Settings:
        return self.best if self.is_faster else self.default

    def ratio(self) -> dict[str, float] | None:
        return spread_of(part["ratio"] for part in self.rounds) if self.rounds else None

    @property
    def taken_step_seconds(self) -> float:
        """Of what is taken, whose steps have as many samples: those of the default / the ratio of the final."""
        ratio = self.ratio() if self.is_faster else None
        return self.step_seconds / ratio["median"] if ratio else self.step_seconds


class Speed:
    """seconds: of the session, for all of this."""

    def __init__(
        self, session: Session, config: Config, children: Children, runs: Path, seconds: float,
        dimensions: Sequence[str] = settings.DIMENSIONS,
    ) -> None:  # fmt: skip
        self._session, self._config, self._children, self._seconds = session, config, children, seconds
        self._dimensions = dimensions
        self._run_folders = (runs / f"speed-{i}" for i in itertools.count())
        self._trials: dict[Settings, Child] = {}
        self._estimator = Estimator(children, config)

    def run(self) -> Found:
        session, default = self._session, settings.of(self._config)
        ground = self._look_around()
        first = session.part("default", lambda _: self._measure_default(default))
        self.found = Found(
            ground, default, default, first["unit"], first["full_steps"], first["startup"],
            first["seconds"] / first["steps"], first["inter_op_started"],
        )  # fmt: skip
        self._say_plan()
        for i, dimension in enumerate(self._dimensions):
            self._try(dimension, self._dimensions[i + 1 :])
        if self.found.best != default:
            self._final()
        return self.found

    # ---- before the search -------------------------------------------------------------------------------------------

    def _look_around(self) -> Ground:
        def look(name: str) -> tuple[Part, str]:
            limit = self._children.limit
            try:
                facts = self._estimator.facts
                size = self._estimate(settings.of(self._config))
                if limit is not None and size > limit:
                    raise TooMuchMemory(too_much("would hold about", size, limit))
            except TooMuchMemory as error:
                raise ValueError(f"the config as it is takes {error}; lower --micro-batch") from None
            return {**facts, "bytes": size}, f"{facts['cores']} cores, {facts['threads']} threads, {facts['precision']}"

        part = self._session.part("machine", look)
        return Ground(**{name: part[name] for name in Ground._fields})

    def _measure_default(self, default: Settings) -> tuple[Part, str]:
        patience = plan.first_patience(self._seconds)
        try:
            trial = self._trial(default, patience)
            turn = trial.ask(_request(min(plan.LONGEST, _FIRST_TURN * self._seconds), is_first=True), patience)
            inter_op = trial.ask({"inter_op": 1}, patience)["started"]
        except SideFailed as error:
            raise SideFailed(f"the config as it is cannot be measured: {error}") from None
        trial.rest()
        part = {**_speed(turn), "startup": trial.startup, "unit": trial.facts["unit"], "seconds": turn["seconds"]}
        part |= {"full_steps": trial.facts["steps"], "inter_op_started": inter_op, "settings": default.fields()}
        return part, f"{said(part, trial.facts['unit'])}, {trial.startup:.0f} s to start"

    def _say_plan(self) -> None:
        counts = {d: len(settings.others(d, self.found.best, self.found.ground)[0]) for d in self._dimensions}
        tried = ", ".join(f"{name} ({count})" for name, count in counts.items() if count)
        trials, final = (1 - plan.FINAL) * self._seconds, plan.FINAL * self._seconds
        self._session.study.say(
            f"planned: {as_time(trials)} to look at other values of {tried or 'nothing'}, {as_time(final)} for the best"
            " against the default in turns; a process that starts counts, too"
        )

    # ---- a dimension -------------------------------------------------------------------------------------------------

    def _try(self, dimension: str, later: Sequence[str]) -> None:
        found = self.found
        candidates, left_out = settings.others(dimension, found.best, found.ground)
        found.left_out |= left_out
        candidates = self._that_fit(dimension, candidates)
        if not candidates:
            return
        counts = [len(settings.others(d, found.best, found.ground)[0]) for d in later]
        left = (1 - plan.FINAL) * self._seconds - self._session.spent
        share = left * len(candidates) / (len(candidates) + sum(counts))
        share = min(left, max(share, plan.SLACK * (self._startup + 2 * self._least)))  # one other value at least
        rungs = plan.rungs(len(candidates), share, self._startup, self._least)
        num = rungs[0].num - 1 if rungs else 0
        for candidate in candidates[num:]:
            found.left_out[self._label(dimension, candidate)] = "no time; --minutes gives more"
        others = candidates[:num]
        for number, rung in enumerate(rungs, 1):
            others = self._rung(dimension, number, rung.seconds, others[: rung.num - 1])
            if not others or self._is_decided:
                break
        self._take(others[:1])

    @property
    def _least(self) -> float:
        return max(plan.SHORTEST, plan.LEAST_STEPS * self.found.step_seconds)

    @property
    def _startup(self) -> float:
        return self.found.startup + _SETTLE_FIRST * self.found.step_seconds

    def _that_fit(self, dimension: str, candidates: list[Settings]) -> list[Settings]:
        """Those whose training, as far as it can be told before, fits into the memory."""
        limit = self._children.limit
        if dimension not in settings.CHANGES_MEMORY:
            self._estimator.close()
        if dimension not in settings.CHANGES_MEMORY or limit is None or not candidates:
            return candidates

        def look(name: str) -> tuple[Part, str]:
            sizes: dict[str, int] = {}
            refused: dict[str, str] = {}
            for candidate in sorted(candidates, key=lambda c: c.micro_batch):
                label = self._label(dimension, candidate)
                if refused and dimension == "micro-batch":
                    refused[label] = "larger than one that is refused"
                    continue
                try:
                    sizes[label] = self._estimate(candidate)
                    if sizes[label] > limit:
                        refused[label] = too_much("would hold about", sizes[label], limit)
                except (SideFailed, ValueError) as error:
                    refused[label] = str(error)
            return {"bytes": sizes, "refused": refused}, f"{len(candidates) - len(refused)} of {len(candidates)} fit"

        refused = self._session.part(f"memory of {dimension}", look)["refused"]
        self.found.left_out |= refused
        return [candidate for candidate in candidates if self._label(dimension, candidate) not in refused]

    def _rung(self, dimension: str, number: int, seconds: float, others: list[Settings]) -> list[Settings]:
        """The others that worked, the fastest first. All take two turns, if these are long enough: A B C A B C."""
        candidates = [self.found.best, *others]
        num_turns = 2 if seconds >= 2 * self._least else 1
        found: dict[Settings, list[Part]] = {candidate: [] for candidate in candidates}
        for turn in range(num_turns):
            where = f"{dimension}, rung {number}" + ", again" * turn
            for candidate, part in zip(
                candidates, self._turns(where, dimension, number, seconds / num_turns, candidates), strict=True
            ):
                found[candidate].append(part)
        self.found.left_out |= {p["label"]: p["failed"] for parts in found.values() for p in parts if "failed" in p}
        rates = {
            candidate: spread_of(rate for part in parts for rate in part["rates"])
            for candidate, parts in found.items()
            if not any("failed" in part for part in parts)
        }
        self._medians = {candidate: rate["median"] for candidate, rate in rates.items()}
        leader = max(rates, key=self._medians.__getitem__, default=self.found.best)
        self._is_decided = all(rates[c]["highest"] < self._medians[leader] for c in rates if c != leader)
        return sorted((c for c in others if c in rates), key=lambda c: -self._medians[c])

    def _turns(self, where: str, dimension: str, number: int, seconds: float, candidates: list[Settings]) -> list[Part]:
        names = {f"{where}: {self._label(dimension, candidate)}": candidate for candidate in candidates}
        if any(name not in self._session.study.parts for name in names):
            self._session.study.say(f"{dimension}: {len(names)} values, {seconds:.3g} s each")

        def measure(name: str) -> tuple[Part, str]:
            candidate = names[name]
            facts = {
                "dimension": dimension, "rung": number, "label": self._label(dimension, candidate),
                "settings": candidate.fields(),
            }  # fmt: skip
            try:
                part = facts | _speed(self._turn(candidate, seconds))
            except (SideFailed, ValueError) as error:
                return facts | {"failed": str(error)}, str(error)
            return part, said(part, self.found.unit)

        return self._session.parts(list(names), measure)

    def _take(self, fastest: list[Settings]) -> None:
        best = self.found.best
        # Where the best so far failed there is nothing to compare with: it stays, and its failure is listed.
        if fastest and best in self._medians and self._medians[fastest[0]] > GAIN * self._medians[best]:
            self.found.best = fastest[0]
        for candidate, trial in self._trials.items():
            if candidate not in (self.found.best, self.found.default):
                trial.close()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _final(self) -> None:
        found = self.found
        rounds, seconds = plan.final(self._seconds - self._session.spent, self._least)

        def measure(name: str) -> tuple[Part, str]:
            try:
                turns = {who: self._turn(c, seconds) for who, c in (("default", found.default), ("best", found.best))}
            except SideFailed as error:
                raise SideFailed(f"{name}: {error}; the same command tries it again") from None
            rates = {who: turn["units"] / turn["seconds"] for who, turn in turns.items()}
            ratio = rates["best"] / rates["default"]
            return {**rates, "ratio": ratio, "seconds": seconds}, f"{ratio:.3f}x"

        names = [f"final {number}" for number in range(1, rounds + 1)]
        if any(name not in self._session.study.parts for name in names):
            words = settings.words(found.best, found.ground)
            self._session.study.say(f"final: {words} against the default, {rounds} rounds of {seconds:.3g} s each")
        found.rounds = self._session.parts(names, measure)

    def _estimate(self, candidate: Settings) -> int:
        return self._estimator.bytes_of(
            candidate.micro_batch, candidate.accumulate, candidate.precision, candidate.processes
        )

    # ---- trials ------------------------------------------------------------------------------------------------------

    def _turn(self, candidate: Settings, seconds: float) -> Part:
        is_first = candidate not in self._trials or not self._trials[candidate].is_open
        patience = plan.patience(seconds, self._startup)
        trial = self._trial(candidate, patience)
        if candidate.overlap and not (trial.facts["overlaps"] or self._config.overlap_weight_grads):
            raise SideFailed("prepare() has measured that it does not pay here, and left it off")
        turn = trial.ask(_request(seconds, is_first), patience)
        trial.rest()
        return turn

    def _trial(self, candidate: Settings, patience: float) -> Child:
        trial = self._trials.get(candidate)
        if trial is None or not trial.is_open:
            config = config_files.to_yaml(candidate.applied(self._config))
            wish: dict[str, Any] = {"config": config, "run": str(next(self._run_folders)), "seconds": None}
            wish |= {"processes": candidate.processes}
            trial = self._trials[candidate] = self._children.start("trial", wish, patience)
        return trial

    def _label(self, dimension: str, candidate: Settings) -> str:
        return settings.label(dimension, candidate, self.found.ground)


def _request(seconds: float, is_first: bool) -> dict[str, Any]:
    return {"train": seconds, "settle": _SETTLE_FIRST if is_first else _SETTLE, "least": plan.LEAST_STEPS}


def _speed(turn: Part) -> Part:
    return {
        "units_per_second": spread_of(turn["rates"]), "rates": turn["rates"], "steps": turn["steps"],
        "peak": turn["peak"],
    }  # fmt: skip


def said(part: Part, unit: str) -> str:
    """1,234 samples/s [1,200..1,260]."""
    median, lowest, highest = (significant(part["units_per_second"][n], 4) for n in ("median", "lowest", "highest"))
    return f"{median} {unit}/s [{lowest}..{highest}]"
