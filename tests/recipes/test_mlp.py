import numpy as np
import pytest
import torch

import fullstride
from fullstride import recipes
from fullstride.data import idx
from fullstride.data.images import ImageDataset
from fullstride.data.synthetic import SyntheticDataset
from fullstride.recipes import config_files
from fullstride.recipes.mlp import Data, MlpConfig, Model
from fullstride.recipes.mlp_task import MlpTask
from fullstride.run_folder import metrics
from fullstride.train.trainer import Trainer


def tiny(**changes: object) -> MlpConfig:
    base = recipes.mlp().replace(
        steps=30, micro_batch=16, accumulate=2, threads=1, precision="fp32", model={"hidden": [24, 16]},
        data={"num_samples": 200, "num_features": 10, "num_classes": 4, "num_valid": 40, "workers": 0},
        optimizer={"lr": 1e-2}, evaluation={"every": 0}, checkpoints={"every": 0, "background": False},
        logging={"every": 1},
    )  # fmt: skip
    return base.replace(**changes)


def write_mnist(folder):
    random = np.random.default_rng(0)
    for part, num in (("train", 30), ("t10k", 12)):
        idx.write(folder / f"{part}-images-idx3-ubyte", random.integers(0, 256, (num, 28, 28), np.uint8))
        idx.write(folder / f"{part}-labels-idx1-ubyte", random.integers(0, 10, num, np.uint8))


def write_cifar(folder, name):
    random = np.random.default_rng(0)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    num_labels = 1 if name == "cifar10" else 2
    for file in names if name == "cifar10" else ["train.bin", "test.bin"]:
        records = random.integers(0, 256, (6, num_labels + 3072), np.uint8)
        records[:, :num_labels] %= 10
        records.tofile(folder / file)


# ---- the config


def test_the_recipe_is_52_million_parameters_on_generated_data_in_steps_of_1024():
    config = recipes.mlp()
    assert (config.recipe, config.steps, config.micro_batch, config.accumulate) == ("mlp", 1000, 128, 8)
    assert config.model == Model(hidden=(4096, 4096, 4096, 3072), dropout=0.0)
    assert config.data == Data(
        name="synthetic", path=None, num_samples=50_000, num_features=784, num_classes=1000, num_valid=1000,
        augment=False, workers="auto", prefetch=2,
    )  # fmt: skip
    assert (config.optimizer.name, config.optimizer.lr, config.clip) == ("adamw", 3e-4, 1.0)
    assert (config.schedule.name, config.schedule.warmup) == ("cosine", 0.05)
    assert (config.evaluation.every, config.evaluation.metric, config.checkpoints.every) == (100, "accuracy", 100)


def test_the_recipe_of_digits_is_the_same_network_on_other_data():
    config = recipes.mlp_mnist()
    assert (config.recipe, config.steps, config.micro_batch, config.accumulate) == ("mlp-mnist", 260, 128, 1)
    assert config.model == recipes.mlp().model
    assert config.data == Data(name="mnist", augment=True)
    assert (config.optimizer.lr, config.schedule.warmup, config.logging.every) == (1e-3, 0.08, 5)
    assert (config.evaluation.every, config.evaluation.metric, config.checkpoints.every) == (52, "accuracy", 130)


def test_the_recipe_of_all_seven_has_each_of_them():
    config = recipes.mlp_seven()
    assert (config.model, config.data) == (recipes.mlp().model, recipes.mlp().data)
    assert (config.epochs, config.steps, config.micro_batch, config.accumulate) == (10, None, 128, 8)
    wish = config.optimizer
    assert (wish.name, wish.lr, wish.eps, wish.weight_decay) == ("lamb", 0.01, 1e-6, 0.01)
    assert (wish.state_precision, wish.lookahead) == ("bf16", True)
    assert (config.freeze.enabled, config.precision) == (True, "auto")
    assert (config.evaluation.every, config.checkpoints.every) == ("1 epoch", "5 epochs")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_seven_are_at_work_in_a_run(tmp_path, precision):
    config = recipes.mlp_seven().replace(
        epochs=40, micro_batch=16, accumulate=2, threads=1, model={"hidden": [64, 64, 64]},
        data={"num_samples": 256, "num_features": 128, "num_classes": 4, "num_valid": 64, "workers": 0},
        precision=precision, logging={"every": 1},
    )  # fmt: skip
    trainer = Trainer(config, tmp_path / "run")
    result = trainer.fit()
    made = fullstride.explain(trainer.model)
    assert (made.precision, made.num_split > 0) == (precision, precision == "bf16")
    assert any("relu" in outcome.done.lower() for outcome in made.outcomes if outcome.done)
    assert isinstance(trainer.optimizer, fullstride.optim.Lookahead)
    assert isinstance(trainer.optimizer.optimizer, fullstride.optim.Lamb)
    assert {tensor.dtype for tensor in _moments(trainer.optimizer.optimizer)} == {torch.bfloat16}
    rows = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert any(row.get("event") == "freeze" for row in rows)
    assert result.steps == 320
    assert result.best["accuracy"] > 0.9
    fullstride.restore(trainer.model)


def _moments(optimizer):
    return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


@pytest.mark.parametrize("recipe", [recipes.mlp, recipes.mlp_mnist, recipes.mlp_seven])
def test_yaml_gives_the_config_back(recipe):
    assert config_files.from_yaml(config_files.to_yaml(recipe())) == recipe()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"hidden": [8, 0]}}, r"model\.hidden\[1\]: expected 1 or more, got 0"),
        ({"model": {"hidden": 8}}, r"model\.hidden: expected a list of values, each a whole number, got 8"),
        ({"model": {"dropout": 1.0}}, r"model\.dropout: expected from 0 to below 1, got 1\.0"),
        ({"model": {"dropout": -0.1}}, r"model\.dropout: expected from 0 to below 1, got -0\.1"),
        ({"model": {"depth": 3}}, r"unknown field 'model\.depth'"),
        ({"data": {"name": "imagenet"}}, r"data\.name: expected one of synthetic, mnist, cifar10, cifar100"),
        ({"data": {"num_samples": 0}}, r"data\.num_samples: expected 1 or more, got 0"),
        ({"data": {"num_features": 0}}, r"data\.num_features: expected 1 or more, got 0"),
        ({"data": {"num_classes": -1}}, r"data\.num_classes: expected 1 or more, got -1"),
        ({"data": {"num_valid": 0}}, r"data\.num_valid: expected 1 or more, got 0"),
        ({"data": {"prefetch": 0}}, r"data\.prefetch: expected 1 or more, got 0"),
        ({"data": {"workers": -1}}, r"data\.workers: expected 0 or more, or auto, got -1"),
        ({"data": {"workers": "many"}}, r"data\.workers: expected a whole number or 'auto', got 'many'"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(changes, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        recipes.mlp().replace(**changes)


def test_a_path_means_the_same_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipes.mlp().replace(data={"path": "digits"}).located().data.path == str(tmp_path / "digits")
    assert recipes.mlp().located() == recipes.mlp()


# ---- the task


def test_generated_data_is_held_out_after_the_samples_to_train_on():
    task = tiny().task()
    assert isinstance(task, MlpTask)
    assert isinstance(task.train_data, SyntheticDataset)
    assert (len(task.train_data), len(task.valid_data)) == (200, 40)
    assert (task.num_inputs, task.num_classes) == (10, 4)
    longer = tiny(data={"num_samples": 240}).task().train_data
    numbers, epochs = np.arange(40), np.zeros(40, np.int64)
    held_out, samples = task.valid_data.batch(numbers, epochs), longer.batch(numbers + 200, epochs)
    assert torch.equal(held_out[0], samples[0])
    assert torch.equal(held_out[1], samples[1])


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize(
    ("name", "num_train", "num_valid", "num_inputs", "num_classes"),
    [("mnist", 30, 12, 784, 10), ("cifar10", 30, 6, 3072, 10), ("cifar100", 6, 6, 3072, 100)],
)
def test_images_give_inputs_and_classes(name, num_train, num_valid, num_inputs, num_classes, augment, tmp_path):
    if name == "mnist":
        write_mnist(tmp_path)
    else:
        write_cifar(tmp_path, name)
    task = tiny(data={"name": name, "path": str(tmp_path), "augment": augment}, seed=5).task()
    assert (len(task.train_data), len(task.valid_data)) == (num_train, num_valid)
    assert (task.num_inputs, task.num_classes) == (num_inputs, num_classes)
    assert isinstance(task.train_data, ImageDataset)
    assert isinstance(task.valid_data, ImageDataset)
    assert task.valid_data.augment is None
    assert (task.train_data.augment and task.train_data.augment.seed) == (5 if augment else None)
    shapes = [tuple(p.shape) for p in task.build_model().parameters() if p.dim() == 2]
    assert shapes == [(24, num_inputs), (16, 24), (num_classes, 16)]
    batch = task.train_data.batch(np.arange(4), np.zeros(4, np.int64))
    assert task.loss(task.build_model(), batch).isfinite()


def test_stock_pytorch_builds_the_same_model_from_the_models_file():
    stock = tiny(model={"dropout": 0.5}).task().stock()
    assert (stock.model_file, stock.arguments) == ("mlp", {"widths": [10, 24, 16, 4], "dropout": 0.5})


def test_scores_are_sums_over_the_batch():
    task = tiny().task()
    model, batch = task.build_model(), task.valid_data.batch(np.arange(40), np.zeros(40, np.int64))
    score = task.score(model, batch)
    assert score["count"] == 40
    assert score["loss"] == pytest.approx(40 * task.loss(model, batch).item(), rel=1e-5)
    assert score["accuracy"] == (model(batch[0]).argmax(1) == batch[1]).sum()


def test_flops_are_six_a_weight_and_four_of_the_first_layer_whose_inputs_need_no_gradient():
    task = tiny().task()
    assert task.flops(task.build_model()) == 4 * 10 * 24 + 6 * (24 * 16 + 16 * 4)


# ---- a run


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_lowers_the_loss_and_finds_the_classes(precision, tmp_path):
    config = tiny(precision=precision, data={"num_features": 100, "num_samples": 1000})
    result = Trainer(config, tmp_path / "run").fit()
    losses = [row["loss"] for row in metrics.read(tmp_path / "run") if row["kind"] == "train"]
    assert len(losses) == 30
    assert np.mean(losses[:3]) > 1.2  # log(4) = 1.39: it knows nothing
    assert np.mean(losses[-3:]) < 0.5 * np.mean(losses[:3])
    assert result.best["accuracy"] > 0.6  # 0.25 by chance
