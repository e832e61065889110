"""fullstride.fit(): one's own model and loader in several processes, which take batches in turn."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import fullstride
from fullstride.data.synthetic import SyntheticDataset
from fullstride.distributed.world import World
from fullstride.train.errors import Interrupted
from fullstride.train.hooks import Hook

from ..train.runs import losses
from . import training
from .processes import together
from .test_resume import StopOne

DATA, VALID = SyntheticDataset(48, 12, 5, noise=1.0), SyntheticDataset(40, 12, 5, noise=1.0, first=48)
EPOCHS = 4
TOLERANCE = 2e-5


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def fit(world: World, run, valid_batch=8, **options):
    """The weights, and whether there is a report."""
    model = network()
    given = {
        "epochs": EPOCHS, "accumulate": 2, "precision": "fp32", "threads": 1, "optimizer": {"lr": 1e-2},
        "report": False, "logging": {"every": 1}, "metrics": {"accuracy": accuracy}, **options,
    }  # fmt: skip
    train, valid = DataLoader(DATA, 8, shuffle=True), DataLoader(VALID, valid_batch)
    result = fullstride.fit(model, train, nn.CrossEntropyLoss(), valid_loader=valid, run=run, quiet=True, **given)
    return {name: x.clone() for name, x in model.state_dict().items()}, result.steps


def refused(world: World, run):
    with pytest.raises(ValueError, match="accumulate") as caught:
        fit(world, run, accumulate=1)
    return str(caught.value)


def evaluations(run):
    return {step: (row["loss"], row["accuracy"]) for step, row in training.rows(run, "eval").items()}


def fit_with_dropout(world: World, run):
    model = nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 5))
    torch.manual_seed(3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    fullstride.fit(
        model, DataLoader(DATA, 8), nn.CrossEntropyLoss(), epochs=2, accumulate=2, precision="fp32", threads=1, run=run,
        report=False, quiet=True, logging={"every": 1},
    )  # fmt: skip


def test_dropout_is_that_of_one_process(tmp_path):
    for num in (1, 2):
        together(num, fit_with_dropout, tmp_path / str(num))
    one, two = (losses(tmp_path / str(num)) for num in (1, 2))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], abs=TOLERANCE)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head, self.unused = nn.Linear(12, 16), nn.Linear(16, 5), nn.Linear(5, 5)


def loss_of_halves(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model.head(torch.relu(model.body(x))), y)


def fit_halves(world: World, run):
    fullstride.fit(
        Halves(), DataLoader(DATA, 8), batch_loss=loss_of_halves, epochs=2, accumulate=2, precision="fp32", threads=1,
        run=run, report=False, quiet=True, logging={"every": 1},
    )  # fmt: skip


def test_a_loss_may_call_parts_of_a_model(tmp_path):
    for num in (1, 2):
        together(num, fit_halves, tmp_path / str(num))
    one, two = (losses(tmp_path / str(num)) for num in (1, 2))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], abs=TOLERANCE)


def fit_a_head(world: World, run):
    model = Halves()
    fullstride.fit(
        model, DataLoader(DATA, 8), batch_loss=loss_of_halves, optimizer=torch.optim.AdamW(model.head.parameters()),
        epochs=2, accumulate=2, precision="bf16", threads=1, run=run, report=False, quiet=True, logging={"every": 1},
        distributed={"gradients": "fp32"},
    )  # fmt: skip


def test_an_optimizer_may_have_a_part_of_the_parameters(tmp_path):
    """The others, which nobody froze, have gradients of bf16."""
    for num in (1, 2):
        together(num, fit_a_head, tmp_path / str(num))
    one, two = (losses(tmp_path / str(num)) for num in (1, 2))
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], abs=1e-3)


def fit_a_shared_loader(world: World, run, which):
    sampler: DistributedSampler[object] = DistributedSampler(DATA, world.size, world.rank)
    loaders = {name: DataLoader(DATA, 8, sampler=sampler if name == which else None) for name in ("train", "valid")}
    with pytest.raises(ValueError, match="DistributedSampler") as caught:
        fullstride.fit(
            network(), loaders["train"], nn.CrossEntropyLoss(), valid_loader=loaders["valid"], epochs=1, accumulate=2,
            run=run, report=False, quiet=True,
        )  # fmt: skip
    return str(caught.value)


@pytest.mark.parametrize("which", ["train", "valid"])
def test_a_loader_that_is_shared_out_already_is_refused(which, tmp_path):
    for line in together(2, fit_a_shared_loader, tmp_path / "run", which):
        assert line.startswith(f"{which}_loader: expected one that gives all processes the same batches")
    assert not (tmp_path / "run").exists()


def fit_sharded(world: World, run):
    model = network()
    with pytest.raises(ValueError, match="shard_optimizer: expected fields of an optimizer") as caught:
        fullstride.fit(
            model, DataLoader(DATA, 8), nn.CrossEntropyLoss(), epochs=1, run=run, quiet=True,
            optimizer=torch.optim.AdamW(model.parameters()), distributed={"shard_optimizer": True},
        )  # fmt: skip
    return str(caught.value)


def test_an_optimizer_that_is_there_cannot_be_sharded(tmp_path):
    assert "\n" not in together(1, fit_sharded, tmp_path / "run")[0]


class StopAt(Hook):
    def on_step(self, trainer, loss):
        if trainer.state.step == 3:
            trainer.stop("seen enough")


def fit_until_a_hook_stops_one(world: World, run):
    result = fullstride.fit(
        network(), DataLoader(DATA, 8), nn.CrossEntropyLoss(), epochs=9, accumulate=2, precision="fp32", threads=1,
        run=run, report=False, quiet=True, hooks=[StopAt()] if world.rank == 1 else [],
    )  # fmt: skip
    return result.steps, result.stopped


def test_a_hook_that_stops_one_process_stops_all_after_the_next_step(tmp_path):
    ends = together(2, fit_until_a_hook_stops_one, tmp_path / "run")
    assert ends == [(4, "another process wished to"), (4, "seen enough")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    return run, together(1, fit, run)[0]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    run = tmp_path_factory.mktemp("two") / "run"
    return run, together(2, fit, run)


def test_two_processes_fit_as_one(alone, of_two):
    (run, (weights, steps)), (other, results) = alone, of_two
    assert [step for step, _ in losses(run)] == list(range(1, steps + 1))
    for (_, loss), (_, others) in zip(losses(run), losses(other), strict=True):
        assert others == pytest.approx(loss, abs=TOLERANCE)
    for found, others_steps in results:
        assert others_steps == steps
        for name, x in weights.items():
            torch.testing.assert_close(found[name], x, rtol=0, atol=100 * TOLERANCE)  # Adam divides by small roots


def test_both_processes_end_with_the_same_weights(of_two):
    (first, _), (second, _) = of_two[1]
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("valid_batch", [8, 40])
def test_held_out_losses_are_those_of_one_process(valid_batch, alone, of_two, tmp_path):
    """Batches of 8 are five: one process has one more. Of 40 there is one: the other process has none."""
    run = of_two[0]
    if valid_batch == 40:
        run = tmp_path / "run"
        together(2, fit, run, 40)
    expected, found = evaluations(alone[0]), evaluations(run)
    assert expected.keys() == found.keys()
    for step, (loss, share) in expected.items():
        assert found[step] == (pytest.approx(loss, abs=TOLERANCE), pytest.approx(share, abs=1e-6))


def test_one_micro_batch_for_two_processes_is_refused_and_what_to_do_is_said(tmp_path):
    line = "accumulate: expected a multiple of the 2 processes, as batches of a loader are not cut; got 1"
    assert together(2, refused, tmp_path / "run") == [line] * 2
    assert not (tmp_path / "run").exists()


def fit_here_or_there(world: World, folder, options):
    """Each in a folder of its own, as on two hosts: only the first one's has a run in the end."""
    own = folder / str(world.rank)
    own.mkdir(exist_ok=True)
    os.chdir(own)
    try:
        return fit(world, "run", **options)
    except Interrupted as error:
        return str(error)


def test_a_run_goes_on_though_only_the_first_host_has_its_folder(of_two, tmp_path):
    ends = together(2, fit_here_or_there, tmp_path, {"hooks": [StopOne(5)]})
    assert ends == ["stopped by SIGTERM"] * 2
    assert len(list(tmp_path.glob("*/run"))) == 1
    together(2, fit_here_or_there, tmp_path, {"resume": True})
    assert losses(tmp_path / "0" / "run") == losses(of_two[0])


def test_the_best_weights_are_loaded_in_all(tmp_path):
    options = {"load_best": True, "evaluation": {"every": 1}, "optimizer": {"lr": 0.5}}
    (first, _), (second, _) = together(2, fit_here_or_there, tmp_path, options)
    assert all(torch.equal(first[name], second[name]) for name in first)
    best = training.Store(tmp_path / "0" / "run" / "checkpoints").best()
    assert best is not None
    assert best.step < 3 * EPOCHS  # else it would be the last one anyway
    assert all(torch.equal(first[name], x) for name, x in best.tensors["model"].items())


def test_one_report_is_written(tmp_path):
    together(2, fit_here_or_there, tmp_path, {"report": True})
    assert len(list(tmp_path.glob("*/run/report.html"))) == 1
