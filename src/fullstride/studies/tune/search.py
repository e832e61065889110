"""Hyper-parameters on validation loss at equal wall-clock time: optuna suggests, trials train with the tuned settings,
in as many processes.

Each trial trains for the same seconds, its schedule among them (trial.py), and is evaluated after a quarter, a half and
all of them; successive halving ends those that are behind. Evaluations do not count as training. The first trial has
the recipe's own values. The best one is trained again with two other seeds, against the recipe's own: these stay
unless it is better with both.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...bench.step.process import SideFailed
from ...recipes import config_files
from ...recipes.config import Config
from . import plan, spaces
from .child import Child, Children, Estimator, TooMuchMemory, too_much
from .plan import Session
from .speed import Found as Speed

if TYPE_CHECKING:
    import optuna

_RUNGS = ((1, 0.25), (2, 0.25), (4, 0.5))  # what optuna calls a step, and the share of the time that leads to it
_SHARE_OF_TRIAL = 0.5  # of its time a trial takes on average, if half of them end at each rung
_EVALUATIONS_OF_TRIAL = 1.75
_WISHED_TRIALS = (16, 12, 8, 6, 4)
MOST_TRIALS = 100
_LEAST_STEPS = 20  # of a trial, or there is nothing to learn from it
_SEEDS = (1, 2)  # added to the config's, for the final
_NOT_FINITE = "its loss is not finite"
_SAY_FROM = 10.0  # seconds of a trial: then its rungs are told, too
_RANDOM = 4  # trials before TPE believes what it has seen

Part = dict[str, Any]


@dataclass
class Found:
    names: tuple[str, ...]
    seconds: float = 0.0  # of training, of each trial
    is_whole: bool = False  # as long as the whole training
    trials: list[Part] = field(default_factory=list)
    finals: list[Part] = field(default_factory=list)
    best: int = 0  # number of the trial
    stopped: str = ""  # why there is nothing, if so

    @property
    def is_better(self) -> bool:
        """With every seed."""
        pairs = [(part["default"], part["best"]) for part in self.finals]
        return bool(pairs) and all(best is not None and (own is None or best < own) for own, best in pairs)


def require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ValueError("--search needs optuna, which is not there: pip install 'fullstride[tune]'") from None


class Search:
    """config: with the settings that speed.py has found. runs: a folder for temporary run folders."""

    def __init__(
        self, session: Session, config: Config, names: Sequence[str], speed: Speed, children: Children, runs: Path
    ) -> None:
        self._session, self._config, self._speed, self._children = session, config, speed, children
        self._run_folders = (runs / f"search-{i}" for i in itertools.count())
        self._estimator = Estimator(children, config)
        self._evaluation = 0.0  # seconds of one
        self.found = Found(tuple(names))

    def run(self) -> Found:
        found, session = self.found, self._session
        timed = session.part("evaluation", lambda _: self._time_evaluation())
        if "failed" in timed:
            return self._stopped(f"its evaluation cannot be timed: {timed['failed']}")
        evaluation = self._evaluation = timed["seconds"]
        found.seconds, num = self._plan(evaluation)
        found.is_whole = found.seconds >= self._whole
        if not num:
            cost = plan.SLACK * self._cost(_WISHED_TRIALS[-1], self._least, evaluation)
            minutes = math.ceil(max(session.spent + cost, cost / (1 - plan.SPEED)) / 60)
            return self._stopped(f"no time for it; --minutes {minutes} might do")
        session.study.say(f"search: about {num} trials, each at most {found.seconds:.3g} s of training")
        study = self._new_study()
        full = found.seconds + self._speed.startup + len(_RUNGS) * evaluation
        final = self._cost(0, found.seconds, evaluation)
        while not found.trials or (session.left - final >= full and len(found.trials) < MOST_TRIALS):
            self._trial(study, len(found.trials))
        self._judge()
        return found

    def _stopped(self, why: str) -> Found:
        self.found.stopped = why
        self._session.study.say(f"search: {why}")
        return self.found

    def config_of(self, number: int) -> Config:
        """Of a trial."""
        return self._with(self.found.trials[number]["parameters"], number)

    def _plan(self, evaluation: float) -> tuple[float, int]:
        """The seconds of a trial, at most those of the whole training, and about how many there is time for.

        More of them if they can be long enough.
        """
        whole = self._whole
        for num in _WISHED_TRIALS:
            rest = self._session.left - self._cost(num, 0.0, evaluation)
            seconds = min(whole, rest / self._cost(num, 1.0, 0.0, startup=0.0))
            if seconds >= min(whole, max(self._least, self._speed.startup)):
                return seconds, num
        return (seconds, num) if seconds >= self._least else (0.0, 0)

    def _cost(self, num: int, seconds: float, evaluation: float, startup: float | None = None) -> float:
        """Seconds that so many trials and the final take, if a trial is so many seconds of training."""
        startup, finals = self._speed.startup if startup is None else startup, 2 * len(_SEEDS)
        trial = startup + _SHARE_OF_TRIAL * seconds + _EVALUATIONS_OF_TRIAL * evaluation
        return num * trial + finals * (startup + seconds + len(_RUNGS) * evaluation)

    @property
    def _processes(self) -> int:
        return self._speed.taken.processes

    @property
    def _whole(self) -> float:
        """Seconds of the whole training."""
        return self._speed.full_steps * self._speed.taken_step_seconds

    @property
    def _least(self) -> float:
        return _LEAST_STEPS * self._speed.taken_step_seconds

    def _patience(self, seconds: float) -> float:
        return plan.patience(seconds, self._speed.startup)

    def _time_evaluation(self) -> tuple[Part, str]:
        try:
            trial = self._start(self._config, 1.0)
            answer = trial.ask({"evaluate": 1}, plan.first_patience(self._session.left))
        except SideFailed as error:
            return {"failed": str(error)}, str(error)
        trial.close()
        return {"seconds": answer["seconds"]}, f"takes {answer['seconds']:.2g} s"

    # ---- trials ------------------------------------------------------------------------------------------------------

    def _new_study(self) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
        study = optuna.create_study(pruner=pruner)
        self._space = spaces.space(self.found.names, self._config, self._speed.full_steps)
        return study

    def _trial(self, study: "optuna.Study", number: int) -> None:
        """Measured now; or before, and given back to optuna as it was."""
        import optuna

        name = f"trial {number}"
        was_done = name in self._session.study.parts
        part = self._session.part(name, lambda _: self._measure(study, number))
        self.found.trials.append(part)
        if was_done:
            last = part["points"][-1][1] if part["points"] else None
            study.add_trial(
                optuna.trial.create_trial(
                    state=_state(part["state"]), value=last if part["state"] == "complete" else None,
                    params=part["parameters"], distributions=self._space, system_attrs=part["optuna"],
                    intermediate_values={step: _number(loss) for step, loss in _reported(part)},
                )
            )  # fmt: skip

    def _measure(self, study: "optuna.Study", number: int) -> tuple[Part, str]:
        import optuna

        # A sampler for each trial: a continued search draws what the uninterrupted one would.
        study.sampler = optuna.samplers.TPESampler(seed=self._config.seed + number, n_startup_trials=_RANDOM)
        if number == 0:
            study.enqueue_trial(spaces.own(self.found.names, self._config, self._speed.full_steps))
        asked = study.ask(self._space)
        config = self._with(asked.params, number)

        def goes_on(step: int, loss: float | None) -> bool:
            asked.report(_number(loss), step)
            return loss is not None and (step == _RUNGS[-1][0] or not asked.should_prune())

        part: Part = {"parameters": dict(asked.params), "values": spaces.values(self.found.names, config)}
        part |= self._train(config, goes_on)
        is_whole = part["state"] == "complete"
        study.tell(asked, part["points"][-1][1] if is_whole else None, _state(part["state"]))
        return part | {"optuna": study.trials[number].system_attrs}, _said(part)

    def _train(self, config: Config, goes_on: Callable[[int, float | None], bool]) -> Part:
        """points: seconds of training, and the loss of the held-out data then."""
        points: list[list[float | None]] = []
        trained, until, steps = 0.0, 0.0, 0
        try:
            self._check_memory(config)
            trial = self._start(config, self.found.seconds)
            for step, share in _RUNGS:
                until += share * self.found.seconds
                answer = trial.ask({"train": until - trained}, self._patience(until - trained))
                trained, steps = trained + answer["seconds"], steps + answer["steps"]
                loss = trial.ask({"evaluate": 1}, self._patience(self._evaluation))["loss"]
                points.append([trained, loss])
                self._say_rung(step, trained, loss)
                if not goes_on(step, loss):
                    break
            trial.close()
        except (SideFailed, ValueError) as error:
            return {"state": "failed", "why": str(error), "points": points, "steps": steps}
        state = "failed" if points[-1][1] is None else "complete" if len(points) == len(_RUNGS) else "pruned"
        return {"state": state, "why": _NOT_FINITE * (state == "failed"), "points": points, "steps": steps}

    def _say_rung(self, step: int, trained: float, loss: float | None) -> None:
        """Of the last one the trial's own line tells."""
        if self.found.seconds >= _SAY_FROM and step != _RUNGS[-1][0] and loss is not None:
            self._session.study.say(f"  after {trained:.3g} of {self.found.seconds:.3g} s: loss {loss:.4g}")

    def _check_memory(self, config: Config) -> None:
        """Only a larger micro-batch holds more than what speed.py has tried."""
        limit = self._children.limit
        if limit is not None and config.micro_batch > self._config.micro_batch:
            size = self._estimator.bytes_of(config.micro_batch, config.accumulate, config.precision, self._processes)
            if size > limit:
                raise TooMuchMemory(too_much("would hold about", size, limit))

    def _with(self, parameters: dict[str, Any], number: int) -> Config:
        """The first trial has the recipe's own values, not rounded ones."""
        matters = self._speed.ground.micro_batch_matters is not None
        return spaces.applied(self._config, parameters, matters) if number else self._config

    def _start(self, config: Config, seconds: float) -> Child:
        wish = {"config": config_files.to_yaml(config), "run": str(next(self._run_folders)), "seconds": seconds}
        wish |= {"processes": self._processes}
        return self._children.start("trial", wish, self._patience(0.0))

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """The best trial against the first one, with other seeds."""
        found = self.found
        losses = {i: part["points"][-1][1] for i, part in enumerate(found.trials) if part["state"] == "complete"}
        found.best = min(losses, key=losses.__getitem__, default=0)
        if found.best == 0:
            return
        for add in _SEEDS:
            pair: Part = {"seed": self._config.seed + add}
            for who, number in (("default", 0), ("best", found.best)):
                config = self.config_of(number).replace(seed=pair["seed"])
                name = f"search final, seed {pair['seed']}: {who}"
                part = self._session.part(name, lambda _, config=config: self._measure_final(config))  # type: ignore[misc]
                pair[who] = part["points"][-1][1] if part["points"] else None
            found.finals.append(pair)

    def _measure_final(self, config: Config) -> tuple[Part, str]:
        part = self._train(config, lambda step, loss: loss is not None)
        return part, _said(part)


def _said(part: Part) -> str:
    loss = part["points"][-1][1] if part["points"] else None
    values = ", ".join(f"{name} {value:g}" for name, value in part.get("values", {}).items())
    outcome = part["why"] if part["state"] == "failed" else f"loss {loss:.4g}"
    ended = f", ended at {part['points'][-1][0]:.3g} s" if part["state"] == "pruned" else ""
    return f"{outcome}{ended}, {part['steps']} steps" + (f"; {values}" if values else "")


def _reported(part: Part) -> list[tuple[int, float | None]]:
    return [(step, loss) for (step, _), (_, loss) in zip(_RUNGS, part["points"], strict=False)]


def _number(loss: float | None) -> float:
    return math.inf if loss is None else loss


def _state(name: str) -> "optuna.trial.TrialState":
    """What failed is worse than everything, which optuna learns from; its own FAIL would be left out."""
    import optuna

    return optuna.trial.TrialState.COMPLETE if name == "complete" else optuna.trial.TrialState.PRUNED
