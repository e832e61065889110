"""Fields of a config as options of the command line."""

import dataclasses
import re

import pytest

from fullstride import recipes
from fullstride.cli import fields
from fullstride.recipes import config_files, strict

PROG = "fullstride train mlp"


def apply(*words: str):
    return fields.apply(recipes.mlp(), list(words), PROG)


def refusal(*words: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        apply(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_options_leave_the_recipe_as_it_is():
    assert apply() == recipes.mlp()


def test_every_field_but_the_recipe_is_an_option():
    names = [field.name for field in fields.fields(recipes.mlp())]
    assert names == config_files.missing(recipes.mlp(), "recipe: mlp")


@pytest.mark.parametrize("field", fields.fields(recipes.mlp()), ids=lambda field: field.name)
def test_the_default_given_as_an_option_changes_nothing(field):
    if field.hint is bool:
        words = [field.options[not field.default]]
    else:
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        words = [field.option, *map(str, values)]
    assert apply(*words) == recipes.mlp()


def test_options_change_nested_fields_and_nothing_else():
    config = apply("--steps", "300", "--optimizer.lr", "1e-3", "--model.hidden", "5", "6", "--data.workers", "3")
    expected = strict.overlay(
        recipes.mlp(), {"steps": 300, "optimizer": {"lr": 1e-3}, "model": {"hidden": [5, 6]}, "data": {"workers": 3}}
    )
    assert config == expected


def test_underscores_and_hyphens_are_the_same():
    assert apply("--optimizer.weight_decay", "0.5") == apply("--optimizer.weight-decay", "0.5")
    assert apply("--optimizer.weight_decay", "0.5").optimizer.weight_decay == 0.5


def test_a_value_may_follow_an_equals_sign():
    assert apply("--optimizer.lr=0.5").optimizer.lr == 0.5


def test_a_path_keeps_its_underscores():
    assert apply("--data.path=my_folder").data.path == "my_folder"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--optimizer.lookahead"], True),
        (["--optimizer.lookahead", "true"], True),
        (["--optimizer.lookahead=False"], False),
        (["--optimizer.no-lookahead"], False),
        (["--optimizer.no-lookahead", "false"], True),
    ],
)
def test_a_yes_or_no_field_is_a_flag_or_takes_a_word(words, value):
    base = dataclasses.replace(
        recipes.mlp(), optimizer=dataclasses.replace(recipes.mlp().optimizer, lookahead=not value)
    )
    assert fields.apply(base, words, PROG).optimizer.lookahead is value


def test_an_interval_needs_no_quotes():
    changed = fields.apply(recipes.mlp(), ["--evaluation.every", "5", "epochs", "--steps", "7"], PROG)
    assert (changed.evaluation.every, changed.steps) == ("5 epochs", 7)


def test_none_is_written_as_in_python():
    assert apply("--clip", "None").clip is None


@pytest.mark.parametrize(
    ("option", "nearest"),
    [
        ("--optimizer.lrr", "--optimizer.lr"),
        ("--optimizer.weigth_decay", "--optimizer.weight-decay"),
        ("--lr", "--optimizer.lr"),
        ("--hidden", "--model.hidden"),
        ("--stepps", "--steps"),
        ("--data.no-augmnt", "--data.no-augment"),
        ("--no-augment", "--data.no-augment"),
        ("--batch-size", "--micro-batch or --evaluation.batch"),
        ("--optimizer", "--optimizer.name"),
        ("--model", "--model.hidden"),
    ],
)
def test_unknown_option_names_the_nearest(option, nearest):
    assert refusal(option, "1") == f"unknown option {option.replace('_', '-')}; did you mean {nearest}?"


def test_an_option_of_the_command_itself_may_be_the_nearest():
    with pytest.raises(ValueError, match=r"^unknown option --dryrun; did you mean --dry-run\?$"):
        fields.apply(recipes.mlp(), ["--dryrun"], PROG, ["--run", "--dry-run"])


def test_an_option_like_no_other_points_to_the_help():
    assert refusal("--zzzzzz") == f"unknown option --zzzzzz; `{PROG} --help` lists them"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--optimizer.lr", "fast"], "--optimizer.lr: expected a number, got fast"),
        (["--steps", "1.5"], "--steps: expected a whole number or None, got 1.5"),
        (["--steps"], "--steps: expected a whole number or None, got nothing"),
        (["--model.hidden"], "--model.hidden: expected a list of values, each a whole number, got nothing"),
        (["--steps", "5", "6"], "--steps: expected a whole number or None, got 5 6"),
        (["--precision", "bf17"], "--precision: expected one of auto, fp32, bf16, fp16, got bf17"),
        (["--clip", "off"], "--clip: expected a number or None, got off"),
        (["--seed", "1", "--steps", "x"], "--steps: expected a whole number or None, got x"),
        (["word"], "expected options such as --steps 200, got 'word'"),
    ],
)
def test_wrong_values_are_one_line(words, line):
    assert refusal(*words) == line


def test_a_flag_says_what_it_takes():
    assert refusal("--data.augment", "maybe").endswith("(its opposite is --data.no-augment), got maybe")


def test_what_the_config_refuses_reads_as_in_a_file():
    with pytest.raises(ValueError, match=r".") as from_file:
        config_files.from_yaml("recipe: mlp\nsteps: 0")
    assert refusal("--steps", "0") == str(from_file.value).removeprefix("config: ")


def test_fields_that_contradict_each_other_are_refused_in_one_line():
    assert "schedule.floor" in refusal("--optimizer.lr", "1e-9")


def test_help_shows_every_field_with_its_text_and_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    fields.print_help(recipes.mlp(), PROG, "What it is.")
    text = re.sub(r"[\s\u2500-\u257f]+", " ", capsys.readouterr().out)  # without the lines of the boxes
    assert "What it is." in text
    for field in fields.fields(recipes.mlp()):
        assert f"{field.option} " in text or f"{field.option}," in text
        assert field.help in text
    assert "--recipe" not in text
    assert "Learning rate; the schedule multiplies it. (default: 0.0003)" in text
