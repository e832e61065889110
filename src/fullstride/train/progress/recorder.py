"""What a run tells while it goes on: rows of metrics, progress, and what it runs on."""

import contextlib
import json
import logging
import time
from typing import Any

from torch import nn

from ... import info
from ...backends import choosing
from ...data.sharing import Share
from ...distributed.replicas import Replicas
from ...distributed.world import World
from ...machine import energy, memory
from ...machine.core_use import CoreUse
from ...optim import DynamicFreezer
from ...preparation import Preparation, explain
from ...recipes.config import Config
from ...recipes.length import Length
from ...recipes.task import Task
from ...run_folder import gradient_verdicts
from ...run_folder.folder import RunFolder
from ...run_folder.metrics import Metrics, last_attempt, read
from ..errors import Diverged, Interrupted
from ..state import State
from .bar import Progress
from .clock import Clock
from .frozen_layers import FrozenLayers
from .layer_gradients import LayerNorms, Norms
from .memory_use import MemoryUse
from .ranks import Ranks
from .terminal import COMMON

logger = logging.getLogger(__name__)


class Recorder:
    """Of one process, which began with the run at `began`, by perf_counter(). quiet: no bar."""

    def __init__(
        self, folder: RunFolder, config: Config, task: Task, length: Length, began: float, quiet: bool = False,
        world: World | None = None,
    ) -> None:  # fmt: skip
        self._began = began
        self._folder, self._config, self._task, self._quiet = folder, config, task, quiet
        self._length, self._world = length, world or World()
        self.clock = Clock("data", "forward", "backward", "optimizer", "evaluate", "checkpoint", "metrics")
        self._energy = energy.Meter()

    def start(
        self, stack: contextlib.ExitStack, state: State, model: nn.Module, flops: float | None,
        environment: dict[str, Any], freezer: DynamicFreezer | None = None, replicas: Replicas | None = None,
    ) -> None:  # fmt: skip
        """The model is prepared, the state restored; flops: of a sample, if known. The stack closes what is opened."""
        precision = environment["precision"]
        peak = choosing.choose(precision).peak(precision)  # measured by prepare(), and cached
        self._peak = self._world.sum([peak])[0]
        self._ranks = Ranks(self._world, replicas) if replicas is not None and not self._world.is_alone else None
        self._flops, self._model = flops, model
        self._frozen = FrozenLayers(freezer)
        self._layers = LayerNorms(model) if self._config.logging.grad_norms else None
        self._row_step, self._row_micro = state.step, state.micro  # where the next row begins
        self._row_samples = state.samples + state.micro_samples
        size = sum(p.numel() for p in model.parameters())
        self._write_machine(explain(model), size, environment)
        attempt = last_attempt(self._folder.path) + 1  # one that was killed before it saved counts, too
        self.metrics = Metrics(self._folder, attempt, self._config.logging.tensorboard)
        stack.callback(self.metrics.close)
        layers = {} if self._layers is None else {"layers": self._layers.sizes}
        self.metrics.write("event", {"step": state.step, "event": "start", "environment": environment, **layers})
        micros = Share(self._world.size, self._world.rank, self._config.accumulate).micros
        self.memory = MemoryUse(model, state.step, self._length.steps, micros)
        self._progress = Progress(self._length.steps, state.step, self._task.unit, self._quiet)
        stack.callback(self._progress.close)
        self._announce(state, size)
        self._core_use = CoreUse()

    @property
    def seconds(self) -> float:
        """Since then."""
        return time.perf_counter() - self._began

    def step(self, step: int, optimizer: Any) -> None:
        """One is done."""
        used = self.memory.take(optimizer)
        if used is not None:
            self.metrics.write("event", {"step": step, "event": "memory", **used})
        self._progress.step(step)
        self._energy.read()  # its counters start again every few minutes, so they must be looked at

    def mind_freezing(self, step: int) -> None:
        """The freezer has looked at this step."""
        change = self._frozen.change(step)
        if change is not None:
            self.metrics.write("event", change)

    def layer_norms(self, optimizer: Any) -> dict[str, Norms]:
        """Before the step of the optimizer."""
        with self.clock("metrics"):
            return {} if self._layers is None else self._layers.row(optimizer)

    def trained(self, state: State, optimizer: Any, norms: dict[str, Norms], meets: bool = True) -> None:
        """The row of the steps since the last one. meets: all processes are at this step, to tell what they did."""
        row = {
            "step": state.step,
            "epoch": self._length.epochs(state.step),
            "samples": state.samples,
            "loss": sum(state.step_losses) / len(state.step_losses),
            "lr": float(optimizer.param_groups[0]["lr"]),
            "grad_norm": optimizer.last_grad_norm,
            "skipped": optimizer.skipped_steps,
            "seconds": self.seconds,
            **self._speed(state),
            "resident_mb": _megabytes(memory.resident_bytes()),
            **({} if self._ranks is None or not meets else {"ranks": self._ranks.row()}),
            **self._use(),
            "joules": self._energy.read(),
            **self._task.watch(self._model),
            **self._frozen.row(),
            **{"grad_norms": {}, "weight_norms": {}} | norms,
        }
        self._row_step, self._row_micro, self._row_samples, state.step_losses = state.step, 0, state.samples, []
        self.metrics.write("train", row)
        self._progress.train(row)

    def _speed(self, state: State) -> dict[str, Any]:
        """None where no step since the last row was in this process."""
        parts = self.clock.take()
        wall = parts.pop("wall")
        computing = max(1e-9, wall - parts["evaluate"] - parts["checkpoint"])
        micro = (state.step - self._row_step) * self._config.accumulate - self._row_micro
        samples = (state.samples - self._row_samples) / computing if micro > 0 else None
        work = self._frozen.work(micro / self._config.accumulate)
        gflops = samples * self._flops * work / 1e9 if samples and self._flops is not None else None
        return {
            "step_ms": 1e3 * computing * self._config.accumulate / micro if micro > 0 else None,
            "per_second": samples * self._task.units_per_sample if samples else None,
            "gflops": gflops,
            "share_of_peak": gflops / self._peak if gflops and self._peak else None,
            "time": parts,
        }

    def _use(self) -> dict[str, Any]:
        """Of all time since the last row that has it: one that comes too soon after another has none."""
        use = self._core_use.read()
        cores = {} if use is None else {str(cpu): round(share, 3) for cpu, share in use.cores.items()}
        return {"cores": cores, "own_cores": None if use is None else round(use.own, 3)}

    def evaluated(self, row: dict[str, Any]) -> None:
        self.metrics.write("eval", row)
        self._progress.evaluated(row)

    def shown(self, step: int, event: dict[str, Any]) -> None:
        """What the task shows of its model after an evaluation."""
        self.metrics.write("event", {"step": step, **event})

    def ended(self, state: State, data: str) -> None:
        """data: how it was loaded."""
        end = {"event": "end", "seconds": self.seconds, "stopped": state.stopped, "data": data}
        self.metrics.write("event", {"step": state.step, **end})
        verdicts = gradient_verdicts.judge(read(self._folder.path))  # rows of earlier processes, too
        if any(verdict.word in ("vanishing", "exploding") for verdict in verdicts):
            logger.warning("%s", gradient_verdicts.summary(verdicts).rstrip("."), extra=COMMON)

    def broke_off(self, state: State, error: BaseException) -> None:
        """The run ends by an error, which counts more than whether this can be written."""
        stopped = isinstance(error, Interrupted | KeyboardInterrupt | SystemExit)
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        event: dict[str, Any] = {"event": "interrupted" if stopped else "failed", "why": why, "seconds": self.seconds}
        if isinstance(error, Diverged) and state.nonfinite:
            event["nonfinite"] = state.nonfinite  # steps in a row
        with contextlib.suppress(OSError):
            self.metrics.write("event", {"step": state.step, **event})

    def _announce(self, state: State, size: int) -> None:
        config = self._config
        batch = f"{config.accumulate} x " * (config.accumulate > 1) + str(config.micro_batch)
        size_of_each = f" x {self._task.units_per_sample}" * (self._task.units_per_sample > 1)
        to_do = f"steps {state.step + 1} to {self._length.steps} of {batch}{size_of_each} {self._task.unit}"
        if state.step >= self._length.steps or state.stopped:
            to_do = f"done at step {state.step}"
        what = f"{config.recipe}: {size:,} parameters, {to_do}"
        logger.info("%s; everything goes to %s", what, self._folder.path)
        if self._ranks is not None:
            logger.info("%s", self._ranks.how)
        described = self._task.describe()
        if described is not None:
            logger.info("%s", described)

    def _write_machine(self, preparation: Preparation, size: int, environment: dict[str, Any]) -> None:
        facts = info.collect(measure=False) | {
            "environment": environment,
            "peak_gflops": self._peak,
            "unit": self._task.unit,
            "prepared": str(preparation).splitlines(),
            "energy": self._energy.label,
            "parameters": size,
            "steps": self._length.steps,
            **({} if self._ranks is None else {"hosts": self._world.hosts, "processes": self._ranks.how}),
        }
        self._folder.write("machine.json", json.dumps(facts, indent=2) + "\n")


def _megabytes(size: int | None) -> float | None:
    return None if size is None else round(size / 1e6, 1)
