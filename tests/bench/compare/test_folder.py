"""What is handed over to the sides: a recipe in files that know nothing of Fullstride."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from fullstride.bench.compare import folder as compare_folder
from fullstride.bench.compare.folder import Folder
from fullstride.bench.step import side as step_side
from fullstride.data.order import Order
from fullstride.models import mlp
from fullstride.recipes.config import Optimizer
from fullstride.train import assembly

from .tiny import CONFIG, Points, TinyTask, case


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path, CONFIG)


def test_a_side_sees_what_was_handed_over(folder):
    folder.provide(2)
    work = step_side.find_work(case(folder).config())
    order = Order(10, CONFIG.micro_batch, CONFIG.seed)
    for number in range(2):
        batches, lr = work.step(number)
        assert lr == pytest.approx(CONFIG.optimizer.lr * (number + 1) / 4)
        for i, batch in enumerate(batches):
            expected = Points().batch(*order.micro_batch(2 * number + i))
            assert all(map(torch.equal, batch, expected))
        assert len(batches) == 2
    with pytest.raises(FileNotFoundError, match=r"step-2\.safetensors"):
        work.step(2)


def test_our_side_is_prepared_as_the_trainer_prepares(tmp_path):
    changes = {"activations": "bf16", "overlap_weight_grads": True, "loss_scale": {"start": 8.0, "interval": 3}}
    config = CONFIG.replace(**changes, precision="fp16", optimizer={"state_precision": "bf16"})
    options = step_side.find_work(case(Folder(tmp_path, config)).config()).our_options()
    scaler = options.pop("loss_scaler")
    assert options == {"state_precision": "bf16", "activations": "bf16", "overlap_weight_grads": True}
    assert vars(scaler) == vars(assembly.build_scaler(config, "fp16"))
    assert scaler.scale == 8.0


def test_steps_are_written_when_needed_and_removed_when_taken(folder):
    folder.provide(3)
    folder.forget(2)
    folder.provide(4)
    folder.provide(1)
    assert sorted(file.name for file in folder.path.glob("step-*")) == ["step-2.safetensors", "step-3.safetensors"]


def test_building_the_model_leaves_the_random_numbers_alone(tmp_path):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    Folder(tmp_path, CONFIG)
    assert torch.equal(torch.rand(3), expected)


def test_a_task_counts_in_its_own_units(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyTask, "units_per_sample", 16)
    assert json.loads((Folder(tmp_path, CONFIG).path / "recipe.json").read_text())["num_units"] == 4 * 2 * 16


def test_weights_that_a_run_starts_from_are_handed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(TinyTask, "load_weights", lambda self, model: nn.init.ones_(model[-1].weight))
    model = step_side.Training(case(Folder(tmp_path, CONFIG)).config()).model
    assert torch.equal(model[-1].weight, torch.ones(4, 16))
    assert not torch.equal(model[1].weight, torch.ones(16, 8))


def test_a_folder_holds_the_steps_it_is_told_to(folder):
    folder.provide(3)
    folder.hold(2, 5)
    assert sorted(file.stem for file in folder.path.glob("step-*")) == ["step-2", "step-3", "step-4"]
    folder.hold(0, 1)
    assert [file.stem for file in folder.path.glob("step-*")] == ["step-0"]


def test_held_out_data_is_evaluated_as_a_mean_over_all_of_it(folder):
    assert folder.provide_valid(batch=4) == 3  # 4, 4 and 2 samples
    training = step_side.Training(case(folder).config())
    torch.manual_seed(CONFIG.seed)
    batch = Points().batch(np.arange(10), np.zeros(10, np.int64))
    expected = mlp.loss(TinyTask().build_model(), batch).item()
    assert training.evaluate(1) == {"loss": pytest.approx(expected, rel=1e-6), "count": 10}
    assert training.model.training
    assert folder.provide_valid(batch=4, most=1) == 1


def test_targets_that_are_ignored_are_not_counted(folder, monkeypatch):
    def batch(self, indices, epochs):
        inputs, labels = points(self, indices, epochs)
        return inputs, labels.masked_fill(torch.from_numpy(indices > 0), -100)

    points = Points.batch
    monkeypatch.setattr(Points, "batch", batch)
    folder.provide_valid(batch=10)
    assert step_side.Training(case(folder).config()).evaluate(1)["count"] == 1


def test_tied_weights_can_be_handed_over(tmp_path, monkeypatch):
    def build_model(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    monkeypatch.setattr(TinyTask, "build_model", build_model)
    assert (Folder(tmp_path, CONFIG).path / "weights.safetensors").is_file()


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_optimizer_is_the_one_of_the_trainer_in_torch(name):
    wish = Optimizer(name=name, lr=0.2, betas=(0.8, 0.9), eps=1e-6, momentum=0.7, weight_decay=0.3)
    stock = compare_folder.stock_optimizer(wish)
    model = nn.Linear(2, 2)
    theirs = getattr(torch.optim, stock["class"])(model.parameters(), **stock["arguments"])
    trainers = assembly.build_optimizer(CONFIG.replace(optimizer=wish), model)
    assert type(theirs).__name__ == type(trainers).__name__
    shared = set(theirs.defaults) & set(trainers.defaults)
    assert len(shared) >= 5
    assert {key: theirs.defaults[key] for key in shared} == {key: trainers.defaults[key] for key in shared}
