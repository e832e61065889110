"""Runs of several processes that are stopped, and go on with as many or with others."""

import os
import re
import signal

import pytest
import torch.distributed as dist

from fullstride.data.loader import DataEnded
from fullstride.distributed.world import World, current
from fullstride.run_folder.folder import RunFolder
from fullstride.run_folder.metrics import read
from fullstride.train.errors import Diverged, Interrupted, PeerLost
from fullstride.train.hooks import Hook
from fullstride.train.trainer import Trainer

from ..train.runs import assert_same_tensors, final, losses
from . import training
from .processes import together
from .training import assert_alike, goes_on, train


class StopOne(Hook):
    """A signal to one process, after a step."""

    def __init__(self, step, number=signal.SIGTERM):
        self.step, self.number = step, number

    def on_step(self, trainer, loss):
        if trainer.state.step == self.step:
            os.kill(os.getpid(), self.number)


def fit_until(world, config, run, step, rank):
    """What ended it, and where the process was."""
    trainer = Trainer(config, run, [StopOne(step)] if world.rank == rank else [])
    trainer.quiet = True
    try:
        trainer.fit()
    except Interrupted as error:
        return str(error), trainer.state.step
    return "done", trainer.state.step


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return train(1, training.mlp(), folder / "run")


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return train(2, training.mlp(), folder / "run")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_any_process_stops_all_after_the_same_step(rank, tmp_path):
    ends = together(2, fit_until, training.mlp(), tmp_path / "run", 12, rank)
    assert ends == [("stopped by SIGTERM", 13)] * 2  # the step under way is finished


@pytest.mark.parametrize("num", [2, 4])
def test_as_many_processes_go_on_to_the_same_bits(num, of_two, tmp_path):
    whole = of_two if num == 2 else train(num, training.mlp(), tmp_path / "whole")
    together(num, fit_until, training.mlp(), tmp_path / "run", 12, 1)
    goes_on(num, tmp_path / "run")
    (tensors, documents), (others, other_documents) = final(whole), final(tmp_path / "run")
    assert_same_tensors(tensors, others)
    assert documents == other_documents
    assert losses(whole) == losses(tmp_path / "run")


@pytest.mark.parametrize(("first", "then"), [(2, 4), (4, 2), (2, 1), (1, 2)])
def test_another_number_of_processes_goes_on_as_if_it_had_always_been_so(first, then, of_one, tmp_path):
    ends = together(first, fit_until, training.mlp(), tmp_path / "run", 12, 0)
    assert {said for said, _ in ends} == {"stopped by SIGTERM"}
    goes_on(then, tmp_path / "run")
    assert_alike(of_one, tmp_path / "run", 2e-5)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"not bit for bit the run as it was: processes was {first} and is {then}" in log


def test_a_run_is_one_folder_with_the_files_of_one_process(of_one, of_two):
    names = [sorted(path.name for path in run.iterdir()) for run in (of_one, of_two)]
    assert names[0] == names[1]
    saved = [sorted(file.relative_to(run) for file in run.glob("checkpoints/*/*")) for run in (of_one, of_two)]
    assert saved[0] == saved[1]
    assert RunFolder.read(of_one).config_yaml == RunFolder.read(of_two).config_yaml


def test_sharded_states_go_on_at_another_number_of_processes(of_one, tmp_path):
    sharded = training.mlp(distributed={"shard_optimizer": True})
    together(2, fit_until, sharded, tmp_path / "run", 12, 1)
    goes_on(4, tmp_path / "run")
    assert_alike(of_one, tmp_path / "run", 2e-5)


def test_sharded_states_are_saved_as_those_of_one_process(of_two, tmp_path):
    train(2, training.mlp(distributed={"shard_optimizer": True}), tmp_path / "run")
    (tensors, _), (others, _) = final(of_two), final(tmp_path / "run")
    assert_same_tensors(tensors, others)


@pytest.mark.parametrize(("wire", "every"), [("fp32", 10), ("bf16", 10), ("bf16", 1)])
def test_bf16_training_goes_on_to_the_same_bits(wire, every, tmp_path):
    config = training.mlp(precision="bf16", distributed={"gradients": wire}, checkpoints={"every": every})
    whole = train(2, config, tmp_path / "whole")
    run = tmp_path / "run"
    together(2, fit_until, config, run, 9, 0)  # the step that is saved sends all that waited
    goes_on(2, run)
    assert_same_tensors(final(whole)[0], final(run)[0])


def test_memory_is_measured_in_a_step_of_several_processes(of_two):
    assert "memory" in {row["event"] for row in read(of_two) if row["kind"] == "event"}


def test_islands_hear_of_a_signal_when_they_meet(tmp_path):
    config = training.mlp(distributed={"local_steps": 5}, evaluation={"every": 25}, accumulate=2)
    ends = together(2, fit_until, config, tmp_path / "run", 12, 1)
    assert ends == [("stopped by SIGTERM", 15)] * 2
    assert [step for step, row in training.rows(tmp_path / "run").items() if "ranks" in row] == [5, 10, 15]


def test_islands_meet_before_they_are_saved_and_go_on_with_their_velocity(tmp_path):
    """Of SGD without momentum, as states of the inner optimizer are each island's own."""
    config = training.mlp(
        distributed={"local_steps": 5}, evaluation={"every": 25}, accumulate=2, clip=None,
        optimizer={"name": "sgd", "momentum": 0.0, "lr": 0.05},
    )  # fmt: skip
    whole, run = train(2, config, tmp_path / "whole"), tmp_path / "run"
    together(2, fit_until, config, run, 12, 1)
    saved = final(run)[0]
    assert saved["outer"].keys() == saved["model"].keys()
    goes_on(2, run)
    assert_same_tensors(final(whole)[0], final(run)[0])


class Breaks(Hook):
    """The first micro-batch of the next step is computed, the second cannot be read."""

    def on_step(self, trainer, loss):
        if trainer.state.step == 12:
            own, batches = trainer.loader.next, iter([True])

            def read():
                if next(batches, False):
                    return own()
                raise OSError("the disk is gone")

            trainer.loader.next = read


def fit_until_it_breaks(world, config, run):
    trainer = Trainer(config, run, [Breaks()] if world.is_first else [])
    trainer.quiet = True
    with pytest.raises((OSError, PeerLost)) as caught:
        trainer.fit()
    return type(caught.value).__name__


@pytest.mark.parametrize("then", [1, 2])
def test_what_breaks_in_the_middle_of_a_step_of_two_leaves_whole_steps(then, of_one, tmp_path):
    assert together(2, fit_until_it_breaks, training.mlp(), tmp_path / "run") == ["OSError", "PeerLost"]
    assert final(tmp_path / "run")[1]["state"]["step"] == 12
    goes_on(then, tmp_path / "run")
    assert_alike(of_one, tmp_path / "run", 2e-5)


class SaveWhileItWaits(Hook):
    """SIGUSR1 comes when this process has told the others that there was none."""

    def on_step(self, trainer, loss):
        world = trainer.together.world
        if trainer.state.step == 7:
            own = world.sum

            def waits(*arguments):
                del world.sum
                os.kill(os.getpid(), signal.SIGUSR1)
                return own(*arguments)

            world.sum = waits


def fit_with(world, config, run, hooks, rank):
    trainer = Trainer(config, run, hooks if world.rank == rank else [])
    trainer.quiet = True
    trainer.fit()
    return trainer.together.world.timeout.total_seconds()


@pytest.mark.parametrize("hook", [StopOne(7, signal.SIGUSR1), SaveWhileItWaits()], ids=["between", "in a sum"])
def test_a_signal_to_save_counts_whichever_process_gets_it_and_when(hook, tmp_path):
    together(2, fit_with, training.mlp(steps=12), tmp_path / "run", [hook], 1)
    assert (tmp_path / "run" / "log.txt").read_text().count("SIGUSR1: saving") == 1


def test_groups_of_a_run_wait_as_long_as_its_config_says(tmp_path):
    config = training.mlp(steps=2, distributed={"timeout": 77.0})
    assert together(2, fit_with, config, tmp_path / "run", [], 0) == [77.0] * 2


def test_islands_that_meet_in_every_step_of_sgd_train_as_gradients_that_are_averaged(tmp_path):
    plain = {"optimizer": {"name": "sgd", "momentum": 0.0, "lr": 0.05}, "clip": None}
    averaged = train(2, training.mlp(**plain), tmp_path / "averaged")
    local = {"local_steps": 1, "outer_rate": 1.0, "outer_momentum": 0.0}
    islands = train(2, training.mlp(**plain, distributed=local), tmp_path / "islands")
    assert_alike(averaged, islands, 2e-5, of_norms=10.0)  # norms are of an island's own gradients


class ToTheEndOfData(Hook):
    """The data of a run that goes on has ended."""

    def on_start(self, trainer):
        def ended():
            raise DataEnded

        trainer.loader.next = ended


def resume_at_the_end_of_data(world, run):
    trainer = Trainer.resume(run, [ToTheEndOfData()])
    trainer.quiet = True
    trainer.fit()


def test_islands_that_find_no_more_data_do_not_meet_again(tmp_path):
    config = training.mlp(distributed={"local_steps": 5}, evaluation={"every": 25}, accumulate=2)
    together(2, fit_until, config, tmp_path / "run", 12, 1)
    before = final(tmp_path / "run")[0]["model"]
    together(2, resume_at_the_end_of_data, tmp_path / "run")
    assert_same_tensors({"model": before}, {"model": final(tmp_path / "run")[0]["model"]})


def goes_on_elsewhere(world: World, run):
    """The first process has the run; others have a folder of that name with other contents, or none."""
    os.chdir(run.parent if world.is_first else run.parents[1] / f"host-{world.rank}")
    trainer = Trainer.resume(run.name)
    trainer.quiet = True
    trainer.fit()


@pytest.mark.parametrize("recipe", ["mlp", "clip", "llama"])
def test_the_run_folder_is_needed_in_the_first_process_alone(recipe, tmp_path):
    """With the tokenizers of clip and, here, llama, which are files in it. Its name has a blank."""
    (tmp_path / "host-0").mkdir()
    (tmp_path / "host-1" / "my run").mkdir(parents=True)
    (tmp_path / "host-1" / "my run" / "characters.json").write_text("not one")
    whole, run = tmp_path / "whole", tmp_path / "host-0" / "my run"
    config = {"mlp": training.mlp, "clip": training.clip, "llama": lambda: training.llama(tmp_path)}[recipe]()
    if recipe == "llama":
        train(1, config.replace(steps=1), tmp_path / "first")
        config = config.replace(data={"tokenizer": str(tmp_path / "first" / "characters.json")})
    train(2, config, whole)
    together(2, fit_until, config, run, 12, 1)
    together(2, goes_on_elsewhere, run)
    assert_same_tensors(final(whole)[0], final(run)[0])


class Poisoned(Hook):
    """Losses of one process are not finite from some step on."""

    def on_start(self, trainer):
        loss = trainer.task.loss
        trainer.task.loss = lambda model, batch: loss(model, batch) * (float("nan") if trainer.state.step >= 6 else 1)


def diverge(world, config, run):
    trainer = Trainer(config, run, [Poisoned()] if world.rank == 1 else [])
    trainer.quiet = True
    with pytest.raises((Diverged, PeerLost)) as caught:
        trainer.fit()
    return type(caught.value).__name__, str(caught.value), caught.value.is_told_elsewhere


def test_all_diverge_alike_and_one_says_so(tmp_path):
    one, other = together(2, diverge, training.mlp(max_nonfinite=3), tmp_path / "run")
    assert one[0] == other[0] == "Diverged"
    assert "3 steps in a row had a gradient that is not finite; nothing was saved yet: check" in one[1]
    assert (one[2], other[2]) == (False, True)


def test_an_island_that_diverges_says_so_itself(tmp_path):
    config = training.mlp(max_nonfinite=3, distributed={"local_steps": 20}, accumulate=2)
    one, other = together(2, diverge, config, tmp_path / "run")
    assert one[0] == "PeerLost"
    assert other[0] == "Diverged"
    assert re.match("rank 1 on .*: 3 steps in a row had a gradient that is not finite", other[1])
    assert not other[2]


def lose_the_first(world, config, run):
    """Before the first step, when all know each other."""
    if world.is_first:
        current()
        return dist.destroy_process_group()
    with pytest.raises(PeerLost) as caught:
        Trainer(config, run).fit()
    return str(caught.value)


def test_who_loses_another_before_the_first_step_says_so(tmp_path):
    _, said = together(2, lose_the_first, training.mlp(), tmp_path / "run")
    assert "lost another process" in said
