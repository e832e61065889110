"""The training run. Read fit() first, then _train_step(): everything else is what they call."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.loader import DataEnded
from ..data.order import seed_of
from ..preparation import prepare
from ..recipes import config_files, strict
from ..recipes.config import Config
from ..recipes.task import Task
from ..run_folder.folder import RunFolder
from . import assembly, environment, evaluation, state
from .checkpoints.saver import Saver
from .checkpoints.store import Kind, NonFiniteWeights, Snapshot, Store
from .errors import Diverged, Interrupted, worker_deaths
from .hooks import Hook
from .progress.recorder import Recorder
from .progress.terminal import set_up_logging
from .signals import Signals

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    run: Path
    steps: int  # done in the whole run
    best: dict[str, Any] | None  # the row of the best evaluation
    seconds: float  # of this process
    stopped: str  # why before the last step, if so


class Trainer:
    """`Trainer(config).fit()` trains; `Trainer.resume(run).fit()` goes on where a run was left.

    run: the folder for everything; None: a new one under runs/.
    task: the model, the data and the loss, instead of what the config says; fullstride.fit() brings one.
    """

    def __init__(
        self, config: Config, run: str | Path | None = None, hooks: Sequence[Hook] = (), task: Task | None = None
    ) -> None:
        if not isinstance(config, Config):
            raise TypeError(f"config: expected what a recipe returns, such as fullstride.recipes.mlp(), got {config!r}")
        if isinstance(hooks, Hook):
            raise TypeError(f"hooks: expected a list of hooks, got {hooks!r} alone; give [it]")
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise TypeError(f"hooks: expected objects of subclasses of fullstride.Hook, got {hook!r}")
        self.config, self.hooks = strict.checked(config).located(), list(hooks)
        self.state = state.State()
        self._saved: tuple[int, int, int, bool] | None = None  # the place of the last checkpoint
        self._is_half = False  # a micro-batch is in the gradients in part, maybe
        self.quiet = False  # warnings alone on the console
        self._run, self._task = None if run is None else Path(run), task
        self._resumes = False

    @classmethod
    def resume(
        cls, run: str | Path, hooks: Sequence[Hook] = (), base: Config | None = None, task: Task | None = None
    ) -> "Trainer":
        """The config is the run's own. `base` is what its recipe returns, for a recipe that is not in the package."""
        text = RunFolder.read(Path(run)).config_yaml
        trainer = cls(config_files.from_yaml(text, f"{run}/config.yaml", base).of_run(Path(run)), run, hooks, task)
        trainer._resumes = True
        for name in config_files.missing(trainer.config, text):
            value = "its default" if base is None else "the value of this call"
            logger.warning("%s/config.yaml is older than the field %s, which takes %s", run, name, value)
        return trainer

    def stop(self, why: str) -> None:
        """Ends the run after the step under way, with a checkpoint. For hooks."""
        self.state.stopped = why

    # ---- the run -----------------------------------------------------------------------------------------------------

    def fit(self) -> Result:
        with contextlib.ExitStack() as stack:
            self._open(stack)
            if self._resumes:
                self._restore()
            else:
                self._build(self.config.precision, self.task.load_weights)
                self._resolve()
            self._start(stack)
            try:
                while True:
                    self._evaluate_if_due()
                    self._write_last_row_if_due()
                    self._save_if_due()
                    if not self._is_over():
                        self._train_step()
                    elif self._saved == self._place():  # else a hook stopped the run while it was being saved
                        break
                with self._refusal_as_divergence():
                    self.saver.wait()
            except BaseException as error:  # sys.exit() in a hook, too
                self._save_what_is_left(error)
                self.recorder.broke_off(self.state, error)
                raise
            finally:
                self._call_hooks("on_end")
            return self._result()

    def _train_step(self) -> None:
        """One optimizer step; a run that was interrupted in its middle goes on in its middle."""
        self.schedule.set(self.optimizer, self.state.step)
        while self.state.micro < self.config.accumulate:
            self._mind_signals()
            try:
                self._train_micro_batch()
            except DataEnded:
                return self._end_with_data()
        step_loss = sum(self.state.micro_losses) / self.config.accumulate
        now = self.state.step + 1
        logs = self.length.is_due(self.config.logging.every, now) or now == self.length.steps
        norms = self.recorder.layer_norms(self.optimizer) if logs else {}
        with self._whole_or_unsound():  # else: weights of two steps, or a step without its row
            with self.clock("optimizer"):
                if self.freezer is not None:
                    self.freezer.step(step_loss)
                    self.recorder.mind_freezing(self.state.step + 1)
                skipped = self.optimizer.skipped_steps
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.state.step += 1
            self.state.samples += self.state.micro_samples
            self.state.begin_step()
            self.state.step_losses.append(step_loss)
            self._mind_nonfinite(self.optimizer.skipped_steps > skipped, step_loss)
            if logs:
                self.recorder.trained(self.state, self.optimizer, norms)
        self.recorder.step(self.state.step, self.optimizer)
        self._call_hooks("on_step", step_loss)

    def _train_micro_batch(self) -> None:
        began = time.perf_counter()
        torch.default_generator.manual_seed(seed_of(self.config.seed, self.loader.position))  # of dropout
        with self.clock("data"), worker_deaths():
            batch = self.loader.next()
        loaded = time.perf_counter()
        self._is_half = True
        with self.clock("forward"), self.recorder.memory.forward(self.state.step, self.state.micro):
            loss = self.task.loss(self.model, batch)
        with self.clock("backward"), self.recorder.memory.backward(loss):
            (loss / self.config.accumulate if self.config.accumulate > 1 else loss).backward()
        self.state.micro_losses.append(loss.item())
        self.state.micro_samples += self.task.num_samples(batch, self.config)
        self.state.micro += 1
        self._is_half = False
        self.loader.observe(loaded - began, time.perf_counter() - loaded)

    def _end_with_data(self) -> None:
        """A step of which there is only a part is not taken."""
        self.optimizer.zero_grad()
        self.state.begin_step()
        self.stop("the data ended")
        logger.info("stopping: the data ended at step %d of %d", self.state.step, self.length.steps)

    def _is_over(self) -> bool:
        return self.state.step >= self.length.steps or bool(self.state.stopped)

    # ---- before the first step ---------------------------------------------------------------------------------------

    def _open(self, stack: contextlib.ExitStack) -> None:
        """The folder, its log, and the signals: from here on nothing that happens goes unseen."""
        began = time.perf_counter()
        self.task = self._task or self.config.task()  # before a folder is made: data may be missing
        metric = self.config.evaluation.metric
        if metric not in self.task.metrics:
            raise ValueError(f"evaluation.metric: expected one of {', '.join(self.task.metrics)}, got {metric}")
        self.length = self.task.length(self.config)
        for section in ("evaluation", "checkpoints", "logging"):
            self.length.check(f"{section}.every", getattr(self.config, section).every)
        self.schedule = assembly.build_schedule(self.config, self.length)
        if self._resumes:
            assert self._run is not None
            self.folder = RunFolder.open(self._run)
        else:
            self.folder = RunFolder.create(self._run, config_files.to_yaml(self.config), self.config.recipe)
        stack.callback(self.folder.close)
        if not self._resumes:
            self.task.write_files(self.folder.path)
        stack.callback(set_up_logging(self.folder.log, self.quiet))
        assembly.mind_warmup(self.config, self.length)
        self.signals = stack.enter_context(Signals())
        self.recorder = Recorder(self.folder, self.config, self.task, self.length, began, self.quiet)
        self.clock = self.recorder.clock
        self.store = Store(self.folder.checkpoints, self.config.checkpoints.keep)
        self.saver = Saver(self.store, self.config.checkpoints.background)
        stack.callback(self.saver.close)

    def _build(self, precision: str, load_weights: Callable[[nn.Module], None] = lambda model: None) -> None:
        """Data, model and optimizer, as every process of this run makes them; the first one may load weights."""
        config = self.config
        self.state, self._saved, self._is_half = state.State(), None, False  # fit() may be called again
        torch.manual_seed(config.seed)
        model = self.task.build_model()
        load_weights(model)
        optimizer = self.task.build_optimizer(model) or assembly.build_optimizer(config, model)
        self.flops = self.task.flops(model)
        self.model, self.optimizer = prepare(
            model, optimizer, precision=precision, activations=config.activations, clip=config.clip,
            skip_nonfinite=True, threads=config.threads,
            overlap_weight_grads=config.overlap_weight_grads, loss_scaler=assembly.build_scaler(config, precision),
        )  # fmt: skip
        self.model.train()
        self.freezer = assembly.build_freezer(config, self.model)
        self.environment = environment.describe(self.task, self.model)

    def _resolve(self) -> None:
        """What auto came to goes into the config, so that the file in the folder trains the same again."""
        if self.config.precision == "auto":
            self.config = self.config.replace(precision=self.environment["precision"])
            self.folder.write("config.yaml", config_files.to_yaml(self.config))

    def _restore(self) -> None:
        """The newest checkpoint that is whole; a run that was killed before its first one starts again."""
        wish, snapshot = self.config.precision, self.store.newest()
        if snapshot is None:
            logger.warning("no checkpoint in %s: starting from the first step", self.folder.path)
            self._build(wish, self.task.load_weights)
            return
        saved = snapshot.documents["state"]["environment"]
        self._build(saved["precision"] if wish == "auto" else wish)  # auto is measured: it may mean another one today
        environment.use_products(saved["products"])
        self.environment = environment.describe(self.task, self.model)
        for line in environment.differences(saved, self.environment):
            logger.warning("not bit for bit the run as it was: %s", line)
        precision = self.environment["precision"]
        self.state = state.restore(snapshot, precision, self.model, self.optimizer, self.freezer)
        if not self.state.samples and self.state.step:  # of a version that did not count them
            position = self.state.step * self.config.accumulate + self.state.micro
            self.state.samples = position * self.config.micro_batch
        self._saved = self._place()

    def _start(self, stack: contextlib.ExitStack) -> None:
        config = self.config
        self._is_sound = True
        position = self.state.step * config.accumulate + self.state.micro
        with worker_deaths():
            self.loader = self.task.train_batches(config, position, self.state.data)
        stack.callback(self.loader.close)
        self.recorder.start(stack, self.state, self.model, self.flops, self.environment, self.freezer)
        self._call_hooks("on_start")
        self.clock.take()

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        wish, step = self.config.evaluation, self.state.step
        due = self._is_over() or self.length.is_due(wish.every, step)
        if not due or step == self.state.evaluated or self.task.num_valid == 0:
            return
        began = time.perf_counter()
        with self.clock("evaluate"):
            seed = evaluation.seed_at(self.config.seed, step)
            row = evaluation.run(self.model, self.task, wish.batch, self._mind_signals, seed)
            finite = all(math.isfinite(row[name]) for name in self.task.metrics)  # else there is nothing to show
            shown = self.task.show(self.model, self.folder.path, step, self._mind_signals) if finite else []
        row |= {"step": step, "seconds": time.perf_counter() - began}
        with self._whole_or_unsound():
            self.state.evaluated = step
            self._judge(row)
            self.recorder.evaluated(row)
            for event in shown:
                self.recorder.shown(step, event)
        if row["best"]:
            self._call_hooks("on_checkpoint", self.folder.checkpoints)
        self._call_hooks("on_evaluate", row)

    def _judge(self, row: dict[str, Any]) -> None:
        """Keeps the weights if they are the best so far, and stops early if there were none for too long."""
        name, best = self.config.evaluation.metric, self.state.best
        sign = -1 if name in self.task.higher_is_better else 1
        row["best"] = math.isfinite(row[name]) and (best is None or sign * row[name] < sign * best[name])
        if row["best"]:
            self.state.best, self.state.since_best = dict(row), 0
            self._submit(state.take_weights(self.state, self.model), "best")
        else:
            self.state.since_best += 1
        patience = self.config.evaluation.patience
        if patience and self.state.since_best >= patience and self.state.step < self.length.steps:
            self.state.stopped = f"{name} was not better in {patience} evaluations"
            logger.info("stopping early: %s", self.state.stopped)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        if self._is_over():
            self._save(at_once=True)
        elif self.length.is_due(self.config.checkpoints.every, self.state.step):
            self._save()

    def _save(self, at_once: bool = False) -> None:
        """`at_once`: with nothing to train meanwhile, or no time to lose, there is no reason for the background."""
        if self._saved == self._place():
            return
        self.state.data = self.loader.state()
        snapshot = state.take(self.state, self.environment, self.model, self.optimizer, self.freezer)
        self._submit(snapshot, "step", at_once)
        self._saved = self._place()
        self._call_hooks("on_checkpoint", self.folder.checkpoints)

    def _place(self) -> tuple[int, int, int, bool]:
        return self.state.step, self.state.micro, self.state.evaluated, self._is_over()

    def _submit(self, snapshot: Snapshot, kind: Kind, at_once: bool = False) -> None:
        with self.clock("checkpoint"), self._refusal_as_divergence():
            if at_once:
                self.saver.wait()
                self.store.save(snapshot, kind)
            else:
                self.saver.submit(snapshot, kind)

    @contextlib.contextmanager
    def _refusal_as_divergence(self) -> Iterator[None]:
        try:
            yield
        except NonFiniteWeights as error:
            raise Diverged(f"{error}; {self._way_back()}") from None

    def _mind_signals(self) -> None:
        """Between two micro-batches, and between two batches of an evaluation."""
        if self.signals.save:
            self.signals.save = False
            logger.info("SIGUSR1: saving")
            self._save()
        if self.signals.stop is not None:
            raise Interrupted(self.signals.stop)

    def _save_what_is_left(self, error: BaseException) -> None:
        """Before the run ends by an error: where its state is sound, it is saved."""
        if not self._is_sound or isinstance(error, Diverged):
            return
        if self._is_half:  # the step begins again
            self.state.begin_step()
        try:
            self.saver.wait()
        except (NonFiniteWeights, OSError) as of_the_last:  # which is no reason not to try again
            logger.error("could not save: %s", of_the_last)
            self._saved = None
        try:
            self._save(at_once=True)
        except Exception as second:  # the first one is why the run ends, and says its exit code
            what = "after saving" if self._saved == self._place() else "could not save"
            logger.error("%s: %s", what, second)
        if self._saved == self._place():
            way = self.config.way_to_resume(self.folder.path)
            logger.info("saved at step %d; go on with: %s", self.state.step, way)

    @contextlib.contextmanager
    def _whole_or_unsound(self) -> Iterator[None]:
        """What an error interrupts in here may not be saved: resumed, it would be another run."""
        self._is_sound = False
        yield
        self._is_sound = True

    # ---- what goes wrong ---------------------------------------------------------------------------------------------

    def _mind_nonfinite(self, skipped: bool, loss: float) -> None:
        self.state.nonfinite = self.state.nonfinite + 1 if skipped else 0
        if not skipped:
            return
        logger.warning("step %d skipped: its gradient is not finite (loss %g)", self.state.step, loss)
        if self.state.nonfinite >= self.config.max_nonfinite:
            raise Diverged(
                f"{self.state.nonfinite} steps in a row had a gradient that is not finite; {self._way_back()}"
            )

    def _way_back(self) -> str:
        kept = f"the checkpoints in {self.folder.path} are good" if self.store.steps() else "nothing was saved yet"
        return f"{kept}: check the data, or start anew with a lower optimizer.lr or precision fp32"

    # ---- metrics -----------------------------------------------------------------------------------------------------

    def _write_last_row_if_due(self) -> None:
        """Of a run that was stopped between two rows. The gradients are gone by then."""
        if self._is_over() and self.state.step_losses:
            with self._whole_or_unsound():
                self.recorder.trained(self.state, self.optimizer, {})

    def _result(self) -> Result:
        now = self.state
        self.recorder.ended(now, self.loader.choice)
        return Result(self.folder.path, now.step, now.best, self.recorder.seconds, now.stopped)

    def _call_hooks(self, name: str, *arguments: Any) -> None:
        for hook in self.hooks:
            getattr(hook, name)(self, *arguments)
