"""fullstride.fit(): anybody's model and loader, with all that the recipes' trainer gives."""

import multiprocessing
import os
import random
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import fullstride
from fullstride.data.synthetic import SyntheticDataset
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store
from fullstride.train.errors import DataWorkerDied, Interrupted

from ..patience import PATIENCE
from .runs import Signal, assert_same_run, assert_same_tensors, evaluations, losses

DATA = SyntheticDataset(50, 12, 5, noise=1.0)
VALID = SyntheticDataset(20, 12, 5, noise=1.0, first=50)
QUICK = {"precision": "fp32", "threads": 1, "checkpoints": {"background": False}, "logging": {"every": 1}}


def network(dropout=0.1):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 5))


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def loaders(**options):
    return DataLoader(DATA, 8, shuffle=True, **options), DataLoader(VALID, 8)


def fit(run, model=None, train=None, **options):
    source, valid = loaders()
    common = {"epochs": 4, "valid_loader": valid, "accumulate": 2, "metrics": {"accuracy": accuracy}, "report": False}
    given = {"optimizer": {"lr": 1e-2}, **QUICK, **common, **options}
    source = source if train is None else train
    return fullstride.fit(model or network(), source, nn.CrossEntropyLoss(), run=run, **given)


def test_a_run_leaves_all_that_a_recipes_run_leaves(tmp_path):
    model = network()
    result = fit(tmp_path / "run", model, report=True)
    assert result.steps == 14  # 4 epochs of 7 batches, 2 a step
    assert [row["step"] for row in read(tmp_path / "run") if row["kind"] == "eval"] == [4, 7, 11, 14]
    assert losses(tmp_path / "run")[-1][1] < 0.8 * losses(tmp_path / "run")[0][1]
    assert result.best["accuracy"] > 0.5
    names = {"checkpoints", "config.yaml", "log.txt", "machine.json", "metrics.jsonl", "metrics.csv", "report.html"}
    assert names <= {path.name for path in (tmp_path / "run").iterdir()}
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "data: a DataLoader of 7 batches; after a stop it goes on at the very sample, bit for bit" in log


def test_it_is_the_plain_loop_to_rounding(tmp_path):
    """Constant rate, no limit of the norm: what a script without this package would compute."""
    fit(tmp_path / "run", network(dropout=0.0), train=DataLoader(DATA, 8), accumulate=1)
    model = network(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    expected = []
    for _ in range(4):
        for x, labels in DataLoader(DATA, 8):
            loss = nn.functional.cross_entropy(model(x), labels)
            expected.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [loss for _, loss in losses(tmp_path / "run")] == pytest.approx(expected, rel=1e-5)


def test_the_model_ends_as_an_ordinary_one_with_the_last_weights(tmp_path):
    model = network().eval()
    fit(tmp_path / "run", model, precision="bf16")
    assert type(model[0]) is nn.Linear
    assert model[0].weight.dtype is torch.float32
    assert not model.training
    last = Store(tmp_path / "run" / "checkpoints").newest()
    assert_same_tensors({"": dict(model.state_dict())}, {"": last.tensors["model"]})


def test_or_with_the_best_weights(tmp_path):
    model = network()
    result = fit(tmp_path / "run", model, optimizer={"lr": 0.3}, evaluation={"metric": "accuracy"}, load_best=True)
    best = Store(tmp_path / "run" / "checkpoints").best()
    assert best.step == result.best["step"]
    assert_same_tensors({"": dict(model.state_dict())}, {"": best.tensors["model"]})


OPTIMIZERS = {
    "torch's": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    "with groups": lambda model: torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[3].parameters()}], lr=0.1, momentum=0.9
    ),
    "Lookahead": lambda model: fullstride.optim.Lookahead(fullstride.optim.Lamb(model.parameters()), k=3),
    "fields": lambda model: {"name": "lamb", "state_precision": "bf16"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resuming_is_bitwise_the_run_that_was_not_interrupted(tmp_path, name, precision):
    def run(folder, **options):
        model = network()
        optimizer = OPTIMIZERS[name](model)
        return fit(tmp_path / folder, model, optimizer=optimizer, precision=precision, **options)

    run("whole")
    with pytest.raises(Interrupted):  # in the middle of a step and of an epoch
        run("parts", hooks=[Signal(signal.SIGTERM, step=5, micro=0)])
    assert run("parts", resume=True).steps == 14
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    log = (tmp_path / "parts" / "log.txt").read_text()
    assert f"go on with: fullstride.fit(..., run={str(tmp_path / 'parts')!r}, resume=True)" in log
    assert "the last batch before the stop came again as it was" in log
    assert "not bit for bit" not in log


class Kill(fullstride.Hook):
    def __init__(self, step):
        self.step = step

    def on_step(self, trainer, loss):
        if trainer.state.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(run, step, workers):
    train = DataLoader(DATA, 8, shuffle=True, num_workers=workers)
    fit(run, train=train, resume=True, hooks=[Kill(step)], checkpoints={"every": 3})


@pytest.mark.parametrize("workers", [0, 1])
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(tmp_path, workers):
    train = DataLoader(DATA, 8, shuffle=True, num_workers=workers)
    fit(tmp_path / "whole", train=train, checkpoints={"every": 3})
    for step in (2, 4, 8, 13):
        child = multiprocessing.get_context("spawn").Process(target=killed, args=(tmp_path / "run", step, workers))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == -signal.SIGKILL
    fit(tmp_path / "run", train=train, resume=True, checkpoints={"every": 3})
    assert_same_run(tmp_path / "whole", tmp_path / "run")


class Replies(nn.Module):
    """A model that computes its loss itself, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x, labels):
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.inner(x), labels))


class Named(Dataset):
    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        x, label = DATA[index]
        return {"x": x, "labels": label}


def test_a_model_may_compute_its_loss_itself(tmp_path):
    result = fullstride.fit(
        Replies(), DataLoader(Named(), 8), epochs=3, valid_loader=DataLoader(Named(), 8),
        optimizer={"lr": 1e-2}, run=tmp_path, report=False, **QUICK,
    )  # fmt: skip
    assert result.best["loss"] < 1.5


def test_a_function_of_model_and_batch_may_do_everything(tmp_path):
    def batch_loss(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["labels"]) + 0.1

    batches = [{"x": x, "labels": labels} for x, labels in DataLoader(DATA, 8)]
    result = fullstride.fit(
        network(), batches, batch_loss=batch_loss, steps=9, run=tmp_path, report=False, **QUICK
    )  # fmt: skip
    assert (result.steps, result.best) == (9, None)


def test_a_generator_that_ends_ends_the_run_with_whole_steps(tmp_path):
    result = fit(tmp_path, train=iter(list(loaders()[0])), epochs=None, steps=99)
    assert (result.steps, result.stopped) == (3, "the data ended")
    assert Store(tmp_path / "checkpoints").newest().step == 3


def test_early_stopping(tmp_path):
    result = fit(tmp_path, epochs=50, optimizer={"lr": 0.5}, evaluation={"every": 1, "patience": 2})
    assert result.stopped == "loss was not better in 2 evaluations"


def test_what_the_call_says_otherwise_than_the_run_is_said(tmp_path, caplog):
    fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True, optimizer={"lr": 0.5})
    assert "optimizer.lr: the run goes on with 0.01, not with 0.5 of this call" in caplog.text


def test_a_field_that_the_run_is_older_than_is_that_of_the_call(tmp_path, caplog):
    fit(tmp_path / "run", epochs=1)
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("max_nonfinite: 10\n", ""))
    fit(tmp_path / "run", epochs=1, max_nonfinite=7, resume=True)
    assert "is older than the field max_nonfinite, which takes the value of this call" in caplog.text


def test_the_commands_tell_that_such_a_run_goes_on_in_python(tmp_path):
    fit(tmp_path / "run")
    with pytest.raises(ValueError, match=r"go on there, by fit\(\.\.\., run=\.\.\., resume=True\)"):
        fullstride.Trainer.resume(tmp_path / "run")


WITHOUT_VALID: dict[str, Any] = {"valid_loader": None, "metrics": {}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": None}, "fit: expected epochs= or steps=, got neither"),
        ({"steps": 3}, "fit: expected epochs= or steps=, got both"),
        ({"train": 7}, "train_loader: expected a DataLoader or an iterable of batches, got int"),
        ({"train": []}, "train_loader: expected at least one batch an epoch, got none"),
        ({"train": iter([(torch.zeros(2, 12), torch.zeros(2).long())])}, "epochs: expected steps, as the data has"),
        ({"valid_loader": iter([1])}, "valid_loader: expected one that can be gone over again, got an iterator"),
        ({"valid_loader": []}, "valid_loader: expected at least one batch, got none; leave it out to train without"),
        ({"batch_loss": len}, "fit: expected loss or batch_loss, got both"),
        ({"metrics": {"accuracy": 1}}, "accuracy: expected a function, got int"),
        ({"micro_batch": 3}, "fit: the size of a batch is the loader's; give accumulate="),
        ({"accumulat": 3}, "unknown field 'accumulat'; did you mean 'accumulate'?"),
        ({"resume": True, "run": None}, "resume: expected a run folder to go on with, got none; give run="),
        ({"model": len}, "model: expected an nn.Module, got builtin_function_or_method"),
        ({"train": [{"x": torch.zeros(2, 12)}]}, r"train_loader: expected batches .*, got a dictionary; give batch"),
        ({"train": [torch.zeros(2, 12)]}, r"train_loader: expected batches .*, got one part; give batch_loss="),
        ({"train": lambda: []}, "train_loader: expected .*, got function; give what it returns"),
        ({"train": DATA}, r"train_loader: expected .*, got SyntheticDataset; give DataLoader\(it, batch_size\)"),
        ({"model": nn.Identity()}, "model: expected parameters to train, got none that requires a gradient"),
        ({"epochs": "ten"}, "epochs: expected a number or null, got 'ten'"),
        ({"metrics": [accuracy]}, "metrics: expected a dictionary of names and functions, got list"),
        ({"metrics": {"count": accuracy}}, "metrics: expected names besides loss, count, .*, got 'count'"),
        ({"metrics": {"loss": accuracy}}, "metrics: expected names besides loss, .*, got 'loss'"),
        ({"metrics": {"time": accuracy}}, "metrics: expected names besides .*, got 'time'; give it another"),
        ({"valid_loader": None}, "metrics: expected valid_loader= with them, on which they are computed, got none"),
        ({**WITHOUT_VALID, "load_best": True}, "load_best: expected valid_loader= with it"),
        ({**WITHOUT_VALID, "evaluation": {"patience": 2}}, "evaluation.patience: expected valid_loader= with it"),
        ({"higher_is_better": "accuracy"}, r"higher_is_better: expected a list .*, got 'accuracy'; give \['acc"),
        ({"higher_is_better": ["f1"]}, r"higher_is_better: expected names of metrics \(loss, accuracy\), got 'f1'"),
        ({"hooks": fullstride.Hook()}, r"hooks: expected a list of hooks, got .* alone; give \[it\]"),
    ],
)
def test_bad_input_is_one_line(tmp_path, options, message):
    with pytest.raises((TypeError, ValueError), match=f"^{message}") as caught:
        fit(**{"run": tmp_path / "run", **options})
    assert "\n" not in str(caught.value)
    assert "run" not in options or not (tmp_path / "run").exists()


def test_held_out_data_that_turns_out_to_be_empty_is_one_line(tmp_path):
    class Nothing:
        def __iter__(self):
            return iter([])

    with pytest.raises(ValueError, match=r"^evaluation: expected at least one batch of held-out data, got none$"):
        fit(tmp_path / "run", valid_loader=Nothing())


@pytest.mark.parametrize("section", ["evaluation", "checkpoints", "logging"])
def test_epochs_of_data_without_a_length_are_refused_before_there_is_a_run(tmp_path, section):
    wish = {"epochs": None, "steps": 3, **WITHOUT_VALID, section: {"every": "1 epoch"}}
    with pytest.raises(ValueError, match=rf"^{section}\.every: expected a number of steps, as the data has no length"):
        fit(tmp_path / "run", train=iter(list(loaders()[0])), **wish)
    assert not (tmp_path / "run").exists()


def test_a_class_of_losses_is_no_loss(tmp_path):
    with pytest.raises(TypeError, match=r"^loss: expected a function, got the class CrossEntropyLoss; give CrossE"):
        fullstride.fit(network(), loaders()[0], nn.CrossEntropyLoss, epochs=1, run=tmp_path / "run")


def test_a_folder_with_a_run_is_refused_with_the_way_to_go_on(tmp_path):
    fit(tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match=r"holds a run already: go on with it by resume=True, or give another folder"):
        fit(tmp_path / "run", epochs=1)


def test_quiet_is_quiet(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("FULLSTRIDE_QUIET", raising=False)
    fit(tmp_path / "run", epochs=1, quiet=True)
    assert capfd.readouterr() == ("", "")


def test_numpy_arrays_train_as_tensors_do(tmp_path):
    batches = list(DataLoader(DATA, 8))
    fit(tmp_path / "tensors", train=batches)
    fit(tmp_path / "arrays", train=[(x.numpy(), labels.numpy()) for x, labels in batches])
    assert losses(tmp_path / "tensors") == losses(tmp_path / "arrays")


def test_a_generator_is_called_one(tmp_path):
    fit(tmp_path / "run", train=(batch for batch in loaders()[0]), epochs=None, steps=2)
    assert "data: a generator; after a stop give a new one" in (tmp_path / "run" / "log.txt").read_text()


class Dies(Dataset):
    """Whoever reads a sample of the fourth batch is gone."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        if index == 30:
            os._exit(7)
        return DATA[index]


def test_a_worker_that_dies_ends_the_run_with_a_checkpoint(tmp_path):
    with pytest.raises(DataWorkerDied, match="worker"):
        fit(tmp_path / "run", train=DataLoader(Dies(), 8, num_workers=1), accumulate=1)
    assert Store(tmp_path / "run" / "checkpoints").newest().step <= 3


def test_a_loss_that_is_no_number_is_one_line(tmp_path):
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(ValueError, match=r"^fit: expected one number from loss as a tensor, got a tensor of shape"):
        fullstride.fit(network(), loaders()[0], loss, epochs=1, run=tmp_path, report=False, **QUICK)


def test_an_optimizer_without_a_fast_form_is_refused_before_anything_happens(tmp_path):
    model = network()
    with pytest.raises(TypeError, match=r"^expected torch\.optim's AdamW, Adam or SGD, got .*Adagrad"):
        fit(tmp_path / "run", model, optimizer=torch.optim.Adagrad(model.parameters()))
    assert not (tmp_path / "run").exists()


def test_a_prepared_model_is_refused(tmp_path):
    model, _ = fullstride.prepare(network(), precision="fp32", threads=1)
    with pytest.raises(ValueError, match=r"^model: expected one that is not prepared, got a prepared one"):
        fit(tmp_path / "run", model)


# ---- FLOPs


def flops_a_sample(run):
    """By the last row of a run."""
    row = [row for row in read(run) if row["kind"] == "train"][-1]
    return row["gflops"] and row["gflops"] * 1e9 / row["per_second"]


class Picture(nn.Module):
    """Convolution, norm over the batch, attention, and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 5)

    def forward(self, inputs, labels):
        x = self.norm(self.convolution(inputs.unsqueeze(1))).transpose(1, 2)
        x, _ = self.attention(x, x, x, need_weights=False)
        return {"loss": nn.functional.cross_entropy(self.head(x.mean(1)), labels)}


def test_a_run_counts_convolutions_and_attention_of_dictionaries(tmp_path):
    torch.manual_seed(0)
    model = Picture()
    batches = [{"inputs": torch.randn(8, 12), "labels": torch.randint(5, (8,))} for _ in range(3)]

    def loss(model, batch):
        return model(**batch)["loss"]

    fullstride.fit(model, batches, batch_loss=loss, epochs=1, run=tmp_path / "run", report=False, **QUICK)
    convolution, attention, linear = 12 * 4 * 3, 12 * 12 * 4 * 2, 12 * 4 * 16 + 4 * 5
    assert flops_a_sample(tmp_path / "run") == pytest.approx(2 * (2 * convolution + 3 * attention + 3 * linear))
    assert model.norm.num_batches_tracked == 3


def test_a_model_that_cannot_be_counted_trains_and_says_so_in_one_line(tmp_path):
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def __deepcopy__(self, memo):
            raise TypeError("there is one of me")

        def forward(self, x):
            return self.inner(x)

    fit(tmp_path / "run", Stubborn())
    rows = [row for row in read(tmp_path / "run") if row["kind"] == "train"]
    assert rows[-1]["per_second"] > 0
    assert rows[-1]["gflops"] is rows[-1]["share_of_peak"] is None
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("no GFLOP/s and no share of the peak will be shown") == 1
    assert "TypeError: there is one of me" in log


def test_counting_changes_no_bit_of_a_run(tmp_path, monkeypatch):
    fit(tmp_path / "counted", network())
    from fullstride.recipes.task import Task

    monkeypatch.setattr(Task, "flops", lambda self, model: None)
    fit(tmp_path / "not counted", network())
    assert_same_run(tmp_path / "counted", tmp_path / "not counted")


class DeathInMidStep(fullstride.Hook):
    """A worker is killed while weights change, where torch's handler would raise."""

    def on_start(self, trainer):
        step = trainer.optimizer.step

        def step_and_kill():
            step()
            if trainer.state.step == 2:
                worker = multiprocessing.active_children()[0]
                worker.kill()
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # the signal has come; torch's to reap

        trainer.optimizer.step = step_and_kill


def test_a_worker_that_dies_in_mid_step_does_not_take_the_step_along(tmp_path):
    train = DataLoader(DATA, 8, num_workers=1, shuffle=True)
    fit(tmp_path / "whole", train=train, accumulate=1)
    with pytest.raises(DataWorkerDied, match="worker"):
        fit(tmp_path / "parts", train=train, accumulate=1, hooks=[DeathInMidStep()])
    assert Store(tmp_path / "parts" / "checkpoints").newest().step >= 3
    fit(tmp_path / "parts", train=train, accumulate=1, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def noisy():
    """A generator that draws, its first batch, too."""
    for _ in range(9):
        for x, labels in DataLoader(DATA, 8):
            yield x + torch.randn(x.shape), labels


OF_THE_SAME_BATCHES = {
    "a sampler within a batch_sampler": lambda: DataLoader(
        DATA, batch_sampler=BatchSampler(RandomSampler(DATA, generator=torch.Generator().manual_seed(7)), 8, False)
    ),
    "a generator that draws": noisy,
}


@pytest.mark.parametrize("name", OF_THE_SAME_BATCHES)
def test_what_draws_by_itself_gives_the_same_batches_after_a_stop(tmp_path, name):
    def run(folder, **options):
        torch.manual_seed(len(folder))  # no process begins with the numbers of another one
        return fit(tmp_path / folder, train=OF_THE_SAME_BATCHES[name](), epochs=None, steps=14, **options)

    run("whole")
    with pytest.raises(Interrupted):
        run("in-parts", hooks=[Signal(signal.SIGTERM, step=8, micro=0)])
    run("in-parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "in-parts")


class Blurred(nn.Module):
    """Draws in evaluation, too, from all three sources of random numbers."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        noise = torch.randn(x.shape) + random.random() + np.random.rand()  # noqa: NPY002
        return self.inner(x + noise)


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["torch's generator", "one of its own"])
def test_an_evaluation_that_draws_comes_out_the_same_after_a_stop_in_it(tmp_path, generator):
    def run(folder, **options):
        valid = DataLoader(VALID, 6, shuffle=True, generator=generator)
        fit(tmp_path / folder, Blurred(), valid_loader=valid, **options)

    run("whole")
    with pytest.raises(Interrupted):
        run("parts", hooks=[Signal(signal.SIGTERM, step=4, evaluating=True)])
    run("parts", resume=True)
    assert len({row["loss"] for row in evaluations(tmp_path / "whole")}) == 4
    assert evaluations(tmp_path / "parts") == evaluations(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_samples_are_counted_as_they_come_a_short_last_batch_too(tmp_path):
    def run(folder, **options):
        return fit(tmp_path / folder, valid_loader=DataLoader(VALID, 20), accumulate=1, epochs=2, **options)

    run("whole")
    with pytest.raises(Interrupted):
        run("parts", hooks=[Signal(signal.SIGTERM, step=9, micro=0)])
    run("parts", resume=True)
    for folder in ("whole", "parts"):
        rows = [row for row in read(tmp_path / folder) if row["kind"] == "train"]
        assert [row["samples"] for row in rows] == [8, 16, 24, 32, 40, 48, 50, 58, 66, 74, 82, 90, 98, 100]
        assert rows[6]["per_second"] == pytest.approx(2 * 1000 / rows[6]["step_ms"])
    facts = Store(tmp_path / "whole" / "checkpoints").newest().documents["state"]["environment"]
    assert (facts["train_samples"], facts["valid_samples"]) == (50, 20)


def test_samples_of_a_step_that_begins_again_are_counted_once(tmp_path):
    def fails(model, batch):
        if model.training and model.calls == 3:
            raise RuntimeError("in the middle of a step")
        model.calls += 1
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def run(calls, **options):
        model = network()
        model.calls = calls
        fullstride.fit(
            model, loaders()[0], batch_loss=fails, epochs=2, accumulate=2, run=tmp_path / "run", report=False,
            **QUICK, **options,
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="in the middle"):
        run(calls=0)
    run(calls=10, resume=True)
    assert [row["samples"] for row in read(tmp_path / "run") if row["kind"] == "train"] == [16, 32, 48, 58, 74, 90, 100]


def test_where_the_report_is_is_said_last(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("FULLSTRIDE_QUIET", raising=False)
    fit(tmp_path / "run", epochs=1, report=True)
    assert capfd.readouterr().err.splitlines()[-1].endswith(f"report: {tmp_path / 'run' / 'report.html'}")


def test_a_report_that_cannot_be_written_loses_no_run(tmp_path, capfd):
    class Blocks(fullstride.Hook):
        def on_end(self, trainer):
            (trainer.folder.path / "report.html").mkdir()

    result = fit(tmp_path / "run", epochs=1, report=True, quiet=True, hooks=[Blocks()])
    assert result.steps == 4
    assert f"; try again with: fullstride report {tmp_path / 'run'}" in capfd.readouterr().err
