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
from torch import Tensor, nn

from ..data.loader import DataEnded
from ..preparation import explain, prepare, restore
from ..recipes import config_files, strict
from ..recipes.config import Config
from ..recipes.task import Task
from . import assembly, environment, evaluation, state
from .checkpoints.saver import Saver
from .checkpoints.store import Kind, NonFiniteWeights, Snapshot, Store
from .errors import Diverged, Interrupted, worker_deaths
from .hooks import Hook
from .progress.recorder import Recorder
from .progress.terminal import COMMON, set_up_logging
from .run_of_first import RunOfFirst
from .signals import Signals
from .together import Together, losses_named

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
        self._resumed: RunOfFirst | None = None
        self._outer: dict[str, Tensor] = {}  # what islands share between their meetings
        self._wish_to_stop = ""

    @classmethod
    def resume(
        cls, run: str | Path, hooks: Sequence[Hook] = (), base: Config | None = None, task: Task | None = None
    ) -> "Trainer":
        """The config is the run's own. `base` is what its recipe returns, for a recipe that is not in the package."""
        found = RunOfFirst(Path(run), base)
        trainer = cls(found.config, run, hooks, task)
        trainer._resumed = found
        if found.world.is_first:
            value = "its default" if base is None else "the value of this call"
            for name in config_files.missing(trainer.config, found.text):
                logger.warning("%s/config.yaml is older than the field %s, which takes %s", run, name, value)
        return trainer

    @property
    def _resumes(self) -> bool:
        return self._resumed is not None

    def stop(self, why: str) -> None:
        """Ends the run after the step under way, with a checkpoint; of several processes, all after the next one. For
        hooks."""
        self._wish_to_stop = why
        if self.together.is_alone:
            self.state.stopped = why

    # ---- the run -----------------------------------------------------------------------------------------------------

    def fit(self) -> Result:
        with contextlib.ExitStack() as stack:
            self.together = Together(stack, self.config, self._resumes)
            self._open(stack)
            if self._resumes:
                self._restore()
            else:
                self._build(self.config.precision, self.task.load_weights)
                self._resolve()
            self._start(stack)
            try:
                with losses_named(self.together.world):
                    self._train()
            except BaseException as error:  # sys.exit() in a hook, too
                self._save_what_is_left(error)
                self.recorder.broke_off(self.state, error)
                raise
            finally:
                self._call_hooks("on_end")
            return self._result()

    def _train(self) -> None:
        while True:
            if not self.together.is_alone:
                self._mind_signals()
            self._evaluate_if_due()
            self._write_last_row_if_due()
            self._save_if_due()
            if not self._is_over():
                self._train_step()
            elif self._saved == self._place():  # else a hook stopped the run while it was being saved
                break
        with self._refusal_as_divergence():
            self.saver.wait()

    def _train_step(self) -> None:
        """One optimizer step; a run that was interrupted in its middle goes on in its middle."""
        self.schedule.set(self.optimizer, self.state.step)
        if self.length.is_due(self.config.checkpoints.every, self.state.step + 1):
            self.replicas.before_saved_step()
        while self.state.micro < self.share.micros:
            self._mind_signals()
            try:
                self._train_micro_batch()
            except DataEnded:
                return self._end_with_data()
        step_loss = sum(self.state.micro_losses) / self.share.micros
        now = self.state.step + 1
        meets = self.replicas.meets(now, self._is_looked_at(now))
        island = None if meets else self.replicas.island
        step_loss, self.state.micro_samples, why = self.together.agree(
            self.signals, step_loss, self.state.micro_samples, self._wish_to_stop, island
        )
        self.state.stopped = self.state.stopped or why
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
                was_skipped = self.optimizer.skipped_steps > skipped
                self.replicas.after_step(now, self._is_looked_at(now), was_skipped)
            self.state.step += 1
            self.state.samples += self.state.micro_samples
            self.state.begin_step()
            self.state.step_losses.append(step_loss)
            self._mind_nonfinite(was_skipped, step_loss)
            if logs:
                self.recorder.trained(self.state, self.optimizer, norms, meets)
        self.recorder.step(self.state.step, self.optimizer)
        self._call_hooks("on_step", step_loss)

    def _train_micro_batch(self) -> None:
        began = time.perf_counter()
        torch.default_generator.manual_seed(self.share.seed(self.config.seed, self.loader.position))  # of dropout
        with self.clock("data"), worker_deaths():
            batch = self.loader.next()
        loaded = time.perf_counter()
        self._is_half = True
        with self.replicas.micro_batch(is_last=self.state.micro + 1 == self.share.micros):
            with self.clock("forward"), self.recorder.memory.forward(self.state.step, self.state.micro):
                loss = self.task.loss(self.replicas.model, batch)
            with self.clock("backward"), self.recorder.memory.backward(loss):
                (loss / self.replicas.divisor if self.replicas.divisor > 1 else loss).backward()
        self.state.micro_losses.append(loss.item())
        self.state.micro_samples += self.task.num_samples(batch, self.config)
        self.state.micro += 1
        self._is_half = False
        self.loader.observe(loaded - began, time.perf_counter() - loaded)

    def _end_with_data(self) -> None:
        """A step of which there is only a part is not taken."""
        self.optimizer.zero_grad()
        self.state.begin_step()
        self.state.stopped = "the data ended"
        self.replicas.after_step(self.state.step, shows=True)
        logger.info("stopping: the data ended at step %d of %d", self.state.step, self.length.steps)

    def _is_looked_at(self, step: int) -> bool:
        """Whether weights are evaluated or saved after so many steps."""
        often = (self.config.evaluation.every, self.config.checkpoints.every)
        is_last = step >= self.length.steps or bool(self.state.stopped) or self.together.stop is not None
        is_last = is_last or self.together.save
        return is_last or any(self.length.is_due(every, step) for every in often)

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
        self.together.take_part(self.task)
        self.share = self.together.share
        self.folder = self.together.folder(stack, self._run, self._resumes)
        stack.callback(self.folder.close)
        if not self._resumes:
            self.task.write_files(self.folder.path)
        quiet = self.quiet or not self.together.writes
        stack.callback(set_up_logging(self.folder.log, quiet, self.together.name))
        assembly.mind_warmup(self.config, self.length)
        if not self.together.is_alone:
            assembly.mind_islands(self.config, self.length)
        self.signals = stack.enter_context(Signals())
        self.recorder = Recorder(self.folder, self.config, self.task, self.length, began, quiet, self.together.world)
        self.clock = self.recorder.clock
        self.store = Store(self.folder.checkpoints, self.config.checkpoints.keep)
        self.saver = Saver(self.store, self.config.checkpoints.background)
        stack.callback(self.saver.close)

    def _build(
        self, precision: str, load_weights: Callable[[nn.Module], None] = lambda model: None, is_again: bool = False
    ) -> None:
        """Data, model and optimizer, as every process of this run makes them; the first one may load weights. is_again:
        others may not be here."""
        config = self.config
        self.state, self._saved, self._is_half = state.State(), None, False  # fit() may be called again
        self._wish_to_stop = ""
        torch.manual_seed(config.seed)
        model = self.task.build_model()
        load_weights(model)
        world = self.together.world
        optimizer: Any = self.task.build_optimizer(model) or assembly.build_optimizer(config, model, world)
        self.flops = self.task.flops(model)
        # What it measures of the machine is kept for the others.
        with contextlib.nullcontext() if is_again else world.first_goes_first():
            self.model, stepped = prepare(
                model, getattr(optimizer, "optim", optimizer), precision=precision, activations=config.activations,
                clip=config.clip, skip_nonfinite=True, threads=config.threads,
                overlap_weight_grads=config.overlap_weight_grads, loss_scaler=assembly.build_scaler(config, precision),
            )  # fmt: skip
        own = explain(self.model).precision
        agreed = self.together.precision(own) if precision == "auto" else own
        if agreed != own:
            restore(self.model)
            return self._build(agreed, load_weights, is_again=True)
        self.optimizer = optimizer if hasattr(optimizer, "optim") else stepped
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
        newest = self.store.newest() if self.together.writes else None
        wish, snapshot = self.config.precision, self.together.newest(newest)
        if snapshot is None:
            logger.warning("no checkpoint in %s: starting from the first step", self.folder.path, extra=COMMON)
            self._build(wish, self.task.load_weights)
            return
        saved = snapshot.documents["state"]["environment"]
        self._build(saved["precision"] if wish == "auto" else wish)  # auto is measured: it may mean another one today
        environment.use_products(saved["products"])
        self.environment = environment.describe(self.task, self.model)
        if "gradients" in saved:  # of a process alone there are none to send, which `processes` tells
            self.environment["gradients"] = saved["gradients"]
        for line in environment.differences(saved, self.environment):
            logger.warning("not bit for bit the run as it was: %s", line)
        precision = self.environment["precision"]
        self.state = state.restore(snapshot, precision, self.model, self.optimizer, self.freezer)
        if not self.together.is_alone:  # gradients of a step under way are of another process's micro-batches
            self.state.begin_step()
            self.optimizer.zero_grad()
        self._outer = snapshot.tensors.get("outer", {})
        if not self.state.samples and self.state.step:  # of a version that did not count them
            position = self.state.step * self.config.accumulate + self.state.micro
            self.state.samples = position * self.config.micro_batch
        self._saved = self._place()

    def _start(self, stack: contextlib.ExitStack) -> None:
        config = self.config
        self._is_sound = True
        self.replicas = self.together.replicas(self.task, self.model, self.optimizer, self.environment)
        self.replicas.go_on(self.state.step, self._outer)
        position = self.state.step * self.share.micros + self.state.micro
        with worker_deaths():
            self.loader = self.task.train_batches(config, position, self.state.data)
        stack.callback(self.loader.close)
        self.recorder.start(stack, self.state, self.model, self.flops, self.environment, self.freezer, self.replicas)
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
            between = self._mind_signals if self.together.is_alone else _nothing  # all stop at the same place
            row = evaluation.run(self.model, self.task, wish.batch, between, seed, self.together.world)
            shows = self.together.writes or not self.task.shows_alone
            finite = all(math.isfinite(row[name]) for name in self.task.metrics)  # else there is nothing to show
            shown = self.task.show(self.model, self.folder.path, step, between) if finite and shows else []
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
            self.replicas.before_weights()
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
        self.replicas.before_weights()
        snapshot = state.take(self.state, self.environment, self.model, self.optimizer, self.freezer)
        if self.replicas.local is not None:
            snapshot.tensors["outer"] = self.replicas.local.tensors()
        self._submit(snapshot, "step", at_once)
        self._saved = self._place()
        self._call_hooks("on_checkpoint", self.folder.checkpoints)

    def _place(self) -> tuple[int, int, int, bool]:
        return self.state.step, self.state.micro, self.state.evaluated, self._is_over()

    def _submit(self, snapshot: Snapshot, kind: Kind, at_once: bool = False) -> None:
        if not self.together.writes:
            return
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
        stop, save = self.together.poll(self.signals)
        if save:
            logger.info("SIGUSR1: saving")
            self._save()
        if stop is not None:
            raise Interrupted(stop)

    def _save_what_is_left(self, error: BaseException) -> None:
        """Before the run ends by an error: where its state is sound, it is saved."""
        if not self._is_sound or isinstance(error, Diverged) or not self._can_save(error):
            return
        if self._is_half or not self.together.is_alone:  # the step begins again: others have a part of it
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

    def _can_save(self, error: BaseException) -> bool:
        """Of several processes the first one can by itself, unless others have what is needed and may be gone."""
        if self.together.is_alone or isinstance(error, Interrupted):
            return True
        needs_others = self.config.distributed.shard_optimizer or self.replicas.local is not None
        return self.together.writes and not needs_others

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
        who = COMMON if self.replicas.local is None else {}  # an island skips its own
        logger.warning("step %d skipped: its gradient is not finite (loss %g)", self.state.step, loss, extra=who)
        if self.state.nonfinite >= self.config.max_nonfinite:
            text = f"{self.state.nonfinite} steps in a row had a gradient that is not finite; {self._way_back()}"
            error = Diverged(f"{self.together.name}: " * bool(self.together.name) + text)
            error.is_told_elsewhere = bool(who) and not self.together.writes
            raise error

    def _way_back(self) -> str:
        kept = "the checkpoints are those of the first process"
        if self.together.writes:
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


def _nothing() -> None:
    """Between two batches of an evaluation."""
