"""fullstride compare, with a stand-in for the measurement."""

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
    words = ["--seconds", "5", "--json", str(tmp_path / "c.json"), "--best", "--steps", "70"]
    assert cli.main(["compare", "mlp", *words]) == 0
    ((config, seconds, best, json),) = compared
    assert (config.recipe, config.steps) == ("mlp", 70)
    assert (seconds, best, json) == (5.0, True, tmp_path / "c.json")


def test_compare_takes_a_config_file(compared, tmp_path):
    (tmp_path / "c.yaml").write_text("recipe: mlp\nsteps: 77\n")
    assert cli.main(["compare", "--config", str(tmp_path / "c.yaml")]) == 0
    assert compared[0][0].steps == 77


def test_compare_takes_a_minute_unless_told(compared):
    cli.main(["compare", "mlp"])
    assert compared[0][1:] == (60.0, False, None)


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
