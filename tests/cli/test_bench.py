"""fullstride compare, with a stand-in for the measurement."""

from pathlib import Path

import pytest

from fullstride import cli
from fullstride.bench.compare import benchmark as compare

from .commands import one_line


@pytest.fixture
def compared(monkeypatch):
    """The arguments that compare.run was called with."""
    calls: list = []
    monkeypatch.setattr(compare, "run", lambda *arguments: calls.append(arguments))
    return calls


def test_compare_measures_the_recipe_with_the_options(compared, tmp_path):
    words = ["--seconds", "5", "--json", str(tmp_path / "c.json"), "--best", "--steps", "70", "--to", "s", "--anew"]
    assert cli.main(["compare", "mlp", *words]) == 0
    ((config, *rest),) = compared
    assert (config.recipe, config.steps) == ("mlp", 70)
    assert rest == [5.0, True, tmp_path / "c.json", Path("s"), True]


def test_compare_takes_a_config_file(compared, tmp_path):
    (tmp_path / "c.yaml").write_text("recipe: mlp\nsteps: 77\n")
    assert cli.main(["compare", "--config", str(tmp_path / "c.yaml")]) == 0
    assert compared[0][0].steps == 77


def test_compare_takes_a_minute_unless_told(compared):
    cli.main(["compare", "mlp"])
    assert compared[0][1:] == (60.0, False, None, None, False)


def test_compare_needs_a_recipe(compared, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "--seconds", "5"])
    assert ended.value.code == 2
    assert "expected a recipe or --config FILE" in one_line(capsys.readouterr().err)


def test_a_wrong_field_is_named_before_anything_is_measured(compared, capsys):
    assert cli.main(["compare", "mlp", "--lr", "1"]) == 2
    assert one_line(capsys.readouterr().err) == "fullstride: unknown option --lr; did you mean --optimizer.lr?"
    assert compared == []


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_impossible_seconds_are_refused(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "mlp", "--seconds", seconds])
    assert ended.value.code == 2
    assert "--seconds" in capsys.readouterr().err
