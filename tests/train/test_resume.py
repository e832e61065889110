"""A run that was stopped and goes on is the one that was not stopped, bit for bit."""

import signal
from dataclasses import dataclass, replace

import pytest

from fullstride.recipes import config_files
from fullstride.recipes.mlp import MlpConfig
from fullstride.run_folder.folder import RunFolder
from fullstride.train.checkpoints import flat_state
from fullstride.train.checkpoints.store import Store
from fullstride.train.errors import Interrupted
from fullstride.train.trainer import Trainer

from .runs import Signal, assert_same_run, losses, small, train

VARIANTS = {
    "adamw": {},
    "lamb with lookahead": {"optimizer": {"name": "lamb", "lookahead": True, "lookahead_k": 3}},
    "sgd in 8 bits": {"optimizer": {"name": "sgd", "state_precision": "8bit"}},
    "bf16": {"precision": "bf16", "optimizer": {"state_precision": "bf16"}},
    "fp16": {"precision": "fp16"},
    "activations in bf16": {"activations": "bf16", "model": {"hidden": [512, 512]}},  # large enough to be rounded
    "freezing": {"freeze": {"enabled": True, "threshold": 10.0, "patience": 2, "min_active": 1}},
    "a step schedule": {"schedule": {"name": "step", "every": 3}},
    "saving in the background": {"checkpoints": {"background": True}},
    "epochs": {"epochs": 3.84, "evaluation": {"every": "1 epoch"}, "checkpoints": {"every": "0.5 epochs"}},
    "a loss scale that grows": {"precision": "fp16", "loss_scale": {"start": 8, "growth": 4, "interval": 2}},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_resuming_twice_is_bitwise_the_run_that_was_not_interrupted(tmp_path, changes):
    config = small(**changes)
    train(tmp_path / "whole", config)
    with pytest.raises(Interrupted) as caught:  # in the middle of an accumulation
        train(tmp_path / "parts", config, [Signal(signal.SIGTERM, step=3, micro=0)])
    assert caught.value.code == 143
    newest = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (newest.step, newest.documents["state"]["micro"]) == (3, 1)
    with pytest.raises(Interrupted) as caught:  # after the end of an epoch, which is 50 samples
        Trainer.resume(tmp_path / "parts", [Signal(signal.SIGINT, step=6, micro=1)]).fit()
    assert caught.value.code == 130
    assert Trainer.resume(tmp_path / "parts").fit().steps == 12
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_precision_that_was_measured_stays_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "bf16")  # what measuring came to
    train(tmp_path / "whole", small(precision="auto"))
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", small(precision="auto"), [Signal(signal.SIGTERM, step=3, micro=0)])
    monkeypatch.setenv("FULLSTRIDE_PRECISION", "fp32")
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("before", ["bf16", "fp16"])
def test_a_run_may_go_on_in_another_precision_from_the_start_of_a_step(tmp_path, before):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(precision=before), [Signal(signal.SIGTERM, step=3, micro=0)])
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace(f"precision: {before}", "precision: fp32", 1))
    Trainer.resume(tmp_path / "run").fit()
    assert f"precision was {before} and is fp32" in (tmp_path / "run" / "log.txt").read_text()
    train(tmp_path / "other", small(precision=before))
    for (step, loss), (_, other) in zip(losses(tmp_path / "run"), losses(tmp_path / "other"), strict=True):
        assert loss == pytest.approx(other, rel=0.02), step


def test_the_number_of_workers_changes_nothing(tmp_path):
    train(tmp_path / "none", small())
    with pytest.raises(Interrupted):
        train(tmp_path / "two", small(data={"workers": 2}), [Signal(signal.SIGTERM, step=5, micro=1)])
    Trainer.resume(tmp_path / "two").fit()
    assert_same_run(tmp_path / "none", tmp_path / "two")


def test_sigterm_is_seen_in_an_evaluation_which_is_repeated(tmp_path):
    train(tmp_path / "whole", small())
    with pytest.raises(Interrupted):
        train(tmp_path / "parts", small(), [Signal(signal.SIGTERM, step=8, evaluating=True)])
    assert Store(tmp_path / "parts" / "checkpoints").newest().documents["state"]["evaluated"] == 4
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_sigusr1_saves_and_goes_on(tmp_path):
    config = small(checkpoints={"every": 0, "keep": 9})
    result = train(tmp_path / "run", config, [Signal(signal.SIGUSR1, step=2, micro=0)])
    assert result.steps == 12
    assert Store(tmp_path / "run" / "checkpoints").steps() == [2, 12]


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    train(tmp_path / "whole", small())
    RunFolder.create(tmp_path / "parts", config_files.to_yaml(small())).close()
    Trainer.resume(tmp_path / "parts").fit()
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_what_would_change_the_bits_is_said(tmp_path, caplog):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("threads: 1", "threads: 2").replace("num_samples: 50", "num_samples: 60"))
    Trainer.resume(tmp_path / "run").fit()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "not bit for bit the run as it was: threads was 1 and is 2" in log
    assert "not bit for bit the run as it was: train_samples was 50 and is 60" in log


def test_a_config_from_an_older_version_takes_todays_defaults_and_says_so(tmp_path, caplog):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("max_nonfinite: 10\n", ""))
    assert Trainer.resume(tmp_path / "run").config == small(steps=3)
    assert "config.yaml is older than the field max_nonfinite, which takes its default" in caplog.text


def test_a_config_from_a_newer_version_is_refused(tmp_path):
    train(tmp_path / "run", small(steps=3))
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text() + "teleport: true\n")
    with pytest.raises(ValueError, match=r"config\.yaml: unknown field 'teleport'"):
        Trainer.resume(tmp_path / "run")


@dataclass(frozen=True, kw_only=True)
class MyConfig(MlpConfig):
    temperature: float = 1.0


def test_a_recipe_of_ones_own_can_be_resumed(tmp_path):
    mine = MyConfig(**vars(small(recipe="mine")), temperature=2.0)
    with pytest.raises(Interrupted):
        train(tmp_path / "run", mine, [Signal(signal.SIGTERM, step=3, micro=0)])
    with pytest.raises(ValueError, match="unknown recipe 'mine'"):
        Trainer.resume(tmp_path / "run")
    trainer = Trainer.resume(tmp_path / "run", base=mine.replace(temperature=1.0))
    assert trainer.config == mine
    assert trainer.fit().steps == 12


def test_data_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small(steps=2, data={"path": "digits"})  # synthetic data does not look
    train("run", config)
    monkeypatch.chdir("/")
    assert vars(Trainer.resume(tmp_path / "run").config)["data"].path == str(tmp_path / "digits")


def test_a_config_made_in_python_is_as_strict_as_a_file(tmp_path):
    config = replace(small(), data=replace(small().data, path=tmp_path))
    assert vars(Trainer(config).config)["data"].path == str(tmp_path)
    with pytest.raises(ValueError, match=r"steps: expected a whole number or null, got 3\.0"):
        Trainer(replace(small(), steps=3.0))


def test_the_gradients_in_a_checkpoint_are_those_of_the_micro_batches_done(tmp_path):
    with pytest.raises(Interrupted):
        train(tmp_path / "run", small(), [Signal(signal.SIGTERM, step=0, micro=0)])
    snapshot = Store(tmp_path / "run" / "checkpoints").newest()
    assert snapshot.tensors["gradients"].keys() == snapshot.tensors["model"].keys()
    assert flat_state.unflatten(snapshot.tensors["optimizer"], snapshot.documents["optimizer"])["state"] == {}
