"""`fullstride tune` as it is typed."""

import sys

import pytest

from fullstride import cli
from fullstride.recipes.clip.task import ClipTask
from fullstride.recipes.fastspeech2.task import FastSpeech2Task
from fullstride.recipes.llama_task import LlamaTask
from fullstride.recipes.mlp_task import MlpTask

from ...cli.commands import one_line


def refused(capsys, *words):
    """The line, after nothing was begun."""
    with pytest.raises(SystemExit) as ended:
        sys.exit(cli.main(["tune", *words]))  # the parser exits by itself
    assert ended.value.code == 2
    return one_line(capsys.readouterr().err)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected a recipe or --config FILE"),
        (["mpl"], "unknown recipe 'mpl'; did you mean 'mlp'?"),
        (["mlp", "--minutes", "0"], "argument --minutes: expected minutes above 0, got '0'"),
        (["mlp", "--minutes", "nan"], "argument --minutes: expected minutes above 0, got 'nan'"),
        (["mlp", "--search", "lr,decay"], "unknown hyper-parameter 'decay'; did you mean 'weight_decay'?"),
        (["mlp", "--steps", "-1"], "steps: expected 1 or more, got -1"),
        (["mlp", "--minute", "3"], "--minute"),
    ],
)
def test_bad_input_is_one_line(words, expected, capsys):
    assert expected in refused(capsys, *words)


def test_a_folder_with_other_things_is_refused(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").touch()
    assert "has other things in it" in refused(capsys, "mlp", "--to", "other")


def test_without_optuna_a_search_is_refused_in_one_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    line = refused(capsys, "mlp", "--search", "lr")
    assert line == "fullstride: --search needs optuna, which is not there: pip install 'fullstride[tune]'"


def test_help_says_what_can_be_searched(capsys):
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    assert "lr,weight_decay,warmup,batch" in capsys.readouterr().out


def test_recipes_say_whether_their_micro_batch_decides_what_is_learnt():
    assert MlpTask.micro_batch_matters is None
    assert LlamaTask.micro_batch_matters is None
    assert "wrong ones" in ClipTask.micro_batch_matters
    assert "like length" in FastSpeech2Task.micro_batch_matters
