import dataclasses
import re

import pytest

from fullstride import recipes
from fullstride.recipes import config_files
from fullstride.recipes.config import Config, Optimizer

from ..train.runs import small

SHARE = "expected a share below 1, or a whole number of steps"
EVERY = 'expected 0 or more steps, or text like "5 epochs"'


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_recipe_as_yaml_and_back_is_the_same(name):
    config = recipes.get(name)()
    assert config_files.from_yaml(config_files.to_yaml(config)) == config


def test_a_file_needs_only_the_recipe_and_what_differs():
    config = config_files.from_yaml("recipe: mlp\nsteps: 7\noptimizer:\n  lr: 1e-3\n")
    assert config == dataclasses.replace(
        recipes.get("mlp")(), steps=7, optimizer=dataclasses.replace(recipes.get("mlp")().optimizer, lr=1e-3)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: mpl", "unknown recipe 'mpl'; did you mean 'mlp'?"),
        ("recipe: mlp\nstepz: 3", "unknown field 'stepz'; did you mean 'steps'?"),
        ("recipe: mlp\noptimizer:\n  learning: 3", "unknown field 'optimizer.learning'; there are optimizer.name"),
        ("recipe: mlp\noptimizer:\n  lrr: 3", "unknown field 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
        ("recipe: mlp\nsteps: many", "steps: expected a whole number or null, got 'many'"),
        ("recipe: mlp\nsteps: 1.5", "steps: expected a whole number or null, got 1.5"),
        ("recipe: mlp\nsteps: true", "steps: expected a whole number or null, got True"),
        ("recipe: mlp\nsteps: -1", "steps: expected 1 or more, got -1"),
        ("recipe: mlp\noptimizer: 3", "optimizer: expected its fields, such as 'name: adamw', got 3"),
        ("recipe: mlp\nprecision: half", "precision: expected one of auto, fp32, bf16, fp16, got 'half'"),
        ("recipe: mlp\nactivations: fp8", "activations: expected one of same, bf16, got 'fp8'"),
        ("recipe: mlp\nactivations: true", "activations: expected one of same, bf16, got True"),
        ("recipe: mlp\nclip: tight", "clip: expected a number or null, got 'tight'"),
        ("recipe: mlp\noptimizer:\n  lr: .nan", "optimizer.lr: expected a number above 0, got nan"),
        ("recipe: mlp\noptimizer:\n  betas: [0.9]", "optimizer.betas: expected a list of 2 values"),
        ("recipe: mlp\nmodel:\n  hidden: [8, x]", "model.hidden[1]: expected a whole number, got 'x'"),
        ("recipe: mlp\ndata:\n  workers: some", "data.workers: expected a whole number or 'auto', got 'some'"),
        ("steps: 3", "expected a line like 'recipe: mlp'"),
        ("recipe: 3", "expected a line like 'recipe: mlp', got 3"),
        ("- a\n- b", "expected lines like 'recipe: mlp' and 'steps: 200', got a list"),
        ("# nothing", "expected lines like 'recipe: mlp' and 'steps: 200', got an empty file"),
        ("mlp", "expected lines like 'recipe: mlp' and 'steps: 200', got 'mlp'"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text, message):
    with pytest.raises(ValueError, match=f"^run.yaml: {re.escape(message)}") as caught:
        config_files.from_yaml(text, "run.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: mlp\nsteps: [1\n", "line 3: expected YAML, but expected ',' or ']'"),
        ("recipe: mlp\n\tsteps: 3", "line 2: expected YAML, but found character '\\t' that cannot start any token"),
        ("recipe: mlp\nsteps: 5\nsteps: 6", "line 3: expected YAML, but found 'steps' twice"),
        ("recipe: mlp\nmodel:\n  dropout: 0\n  dropout: 0.1", "line 4: expected YAML, but found 'dropout' twice"),
        ("recipe: !!python/object/apply:os.getpid []", "line 1: expected YAML, but could not determine a constructor"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text, message):
    with pytest.raises(ValueError, match=f"^run.yaml, {re.escape(message)}") as caught:
        config_files.from_yaml(text, "run.yaml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ValueError, match=r"run.yaml: expected YAML, got a file that is not text in UTF-8"):
        config_files.read(tmp_path / "run.yaml")


def test_a_missing_file_says_what_was_expected(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*nothing.yaml: No such file"):
        config_files.read(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": {"warmup": 1.5}}, f"schedule.warmup: {SHARE}, got 1.5"),
        ({"schedule": {"over": 0}}, "schedule.over: expected more than 0, or None, got 0"),
        ({"schedule": {"decay": 0}}, "schedule.decay: expected more than 0, got 0"),
        ({"epochs": 0}, "epochs: expected more than 0, got 0"),
        ({"epochs": 2, "steps": 9}, "steps: expected a number of steps, or of epochs, got both"),
        ({"steps": None}, "steps: expected a number of steps, or of epochs, got neither"),
        ({"evaluation": {"every": "often"}}, f"evaluation.every: {EVERY}, got often"),
        ({"checkpoints": {"every": "0 epochs"}}, f"checkpoints.every: {EVERY}, got 0 epochs"),
        ({"logging": {"every": 0}}, 'logging.every: expected 1 or more steps, or text like "5 epochs", got 0'),
        ({"loss_scale": {"start": 0.5}}, "loss_scale.start: expected from 1 to 2**32, got 0.5"),
        ({"loss_scale": {"growth": 0.5}}, "loss_scale.growth: expected 1 or more, got 0.5"),
        ({"loss_scale": {"interval": 0}}, "loss_scale.interval: expected 1 or more steps, got 0"),
        ({"loss_scale": {"backoff": 1}}, "loss_scale.backoff: expected above 0, below 1, got 1.0"),
        ({"schedule": {"floor": 1.0}}, "schedule.floor: expected at most optimizer.lr (0.01), got 1; lower it, too"),
        ({"seed": 2**63}, f"seed: expected 0 or more, below 2**63, got {2**63}"),
        ({"optimizer": {"eps": float("inf")}}, "optimizer.eps: expected a number above 0, got inf"),
        ({"clip": float("inf")}, "clip: expected a norm above 0, or None, got inf"),
        ({"schedule": {"floor": float("inf")}}, "schedule.floor: expected a number, 0 or more, got inf"),
        ({"freeze": {"threshold": float("inf")}}, "freeze.threshold: expected a number above 0, or None, got inf"),
        ({"freeze": {"thaw_on_rise": float("inf")}}, "freeze.thaw_on_rise: expected a share above 0, or None, got inf"),
        ({"clip": 0}, "clip: expected a norm above 0, or None, got 0.0"),
        ({"threads": 0}, "threads: expected 1 or more, or None, got 0"),
        ({"data": {"workers": -1}}, "data.workers: expected 0 or more, or auto, got -1"),
        ({"model": {"dropout": 1}}, "model.dropout: expected from 0 to below 1, got 1.0"),
    ],
)
def test_values_that_make_no_sense_are_named(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        small(**changes)


def test_replace_changes_fields_in_sections_too():
    config = small().replace(steps=7, optimizer={"lr": 0.5}, data=recipes.mlp().data)
    assert (config.steps, config.optimizer.lr, config.data) == (7, 0.5, recipes.mlp().data)
    assert config.optimizer.name == small().optimizer.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stepz": 3}, "unknown field 'stepz'; did you mean 'steps'?"),
        ({"steps": "many"}, "steps: expected a whole number or null, got 'many'"),
        ({"optimizer": {"lrr": 1}}, "unknown field 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
        ({"optimizer": 3}, "optimizer: expected its fields, such as 'name: adamw', got 3"),
    ],
)
def test_replace_is_as_strict_as_a_file(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        small().replace(**changes)


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().steps = 3


def test_fields_that_a_file_leaves_out_are_listed():
    text = config_files.to_yaml(small()).replace("max_nonfinite: 10\n", "")
    assert config_files.missing(config_files.from_yaml(text), text) == ["max_nonfinite"]


def test_a_config_without_a_task_says_so():
    with pytest.raises(NotImplementedError, match="it needs a method task"):
        Config(recipe="x", steps=1, micro_batch=1, optimizer=Optimizer(lr=1.0)).task()


def test_a_recipe_of_ones_own_finds_the_names_it_needs_beside_the_trainer_as_well():
    from fullstride.recipes import config, task
    from fullstride.train import config as beside_config
    from fullstride.train import task as beside_task

    for name in beside_config.__all__:
        assert getattr(beside_config, name) is getattr(config, name)
    assert (beside_task.Task, beside_task.Stock) == (task.Task, task.Stock)


@pytest.mark.parametrize(
    ("name", "lr", "eps", "weight_decay"),
    [("adamw", 1e-4, 1e-8, 0.01), ("adam", 1e-4, 1e-8, 0.0), ("lamb", 0.01, 1e-6, 0.01), ("sgd", 0.05, 1e-8, 0.0)],
)
def test_each_optimizer_has_defaults_of_its_own(name, lr, eps, weight_decay):
    wish = Optimizer(name)
    assert (wish.lr, wish.eps, wish.weight_decay) == (lr, eps, weight_decay)


def test_what_a_recipe_chose_for_one_optimizer_says_nothing_of_another():
    config = config_files.from_yaml("recipe: llama\noptimizer:\n  name: lamb\n  state_precision: bf16\n")
    assert config.optimizer == Optimizer("lamb", state_precision="bf16")
    same = config_files.from_yaml("recipe: llama\noptimizer:\n  name: adamw\n")
    assert same.optimizer == recipes.get("llama")().optimizer


def test_what_is_given_with_another_optimizer_counts():
    config = recipes.get("mlp")().replace(optimizer={"name": "lamb", "lr": 0.02})
    assert config.optimizer == Optimizer("lamb", lr=0.02)


def test_what_was_chosen_for_the_weights_stays_with_another_optimizer():
    config = small(optimizer={"lookahead": True, "lookahead_k": 7})
    assert config.replace(optimizer={"name": "lamb"}).optimizer == Optimizer("lamb", lookahead=True, lookahead_k=7)


def test_epochs_come_instead_of_steps_and_steps_instead_of_epochs():
    config = small(epochs=2.5)
    assert (config.steps, config.epochs) == (None, 2.5)
    again = config_files.from_yaml(config_files.to_yaml(config))
    assert again == config
    assert (again.replace(steps=4).steps, again.replace(steps=4).epochs) == (4, None)


@pytest.mark.parametrize(("given", "kept"), [(4000, 4000), (4000.0, 4000), ("4e3", 4000), (0.05, 0.05), (0, 0)])
def test_lengths_of_a_schedule_are_steps_or_shares(given, kept):
    warmup = small(schedule={"warmup": given}).schedule.warmup
    assert (warmup, type(warmup)) == (kept, type(kept))


@pytest.mark.parametrize("name", ["warmup", "over", "every", "decay"])
def test_one_as_a_share_is_refused_for_it_would_be_one_step(name):
    with pytest.raises(ValueError, match=rf"^schedule\.{name}: expected a share below 1, .*, got 1\.0; 1 is one step$"):
        recipes.mlp().replace(schedule={name: 1.0})
    assert getattr(recipes.mlp().replace(schedule={name: 1}).schedule, name) == 1
