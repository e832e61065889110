"""`ablate` of a tiny Llama through the processes it uses; what it finds on a busy machine is not asked."""

import json
import re

import pytest

from fullstride.studies.ablate import run
from fullstride.studies.ablate.measuring import Bench
from fullstride.studies.ablate.outcome import TOGETHER
from fullstride.studies.ablate.run import PLAN

from . import tiny

ONLY = ["attention", "dropout"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny.llama(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def ablated(config, tmp_path_factory):
    said: list[str] = []
    folder = tmp_path_factory.mktemp("ablate") / "study"
    return run.run(config, ONLY, minutes=0.01, to=folder, say=said.append), folder, "\n".join(said)


def test_every_part_is_recorded_with_speed_memory_and_loss(ablated):
    content = json.loads((ablated[1] / "study.json").read_text())
    assert (content["command"], content["wish"]["only"]) == ("ablate llama", ONLY)
    names = [TOGETHER, "attention, alone", "attention, left out"]
    assert list(content["parts"]) == [PLAN, *names]
    for name in names:
        part = content["parts"][name]
        assert 0 < part["gain"]["lowest"] <= part["gain"]["median"] <= part["gain"]["highest"]
        assert part["rounds"] >= 3
        assert part["memory"]["with"] > 50 << 20
        assert part["loss"]["step"] == 2 + part["rounds"] * part["steps"]
        assert part["took"] > 0
    assert content["outcome"] == ablated[0]


def test_the_plan_tells_what_prepare_does_for_the_recipe(ablated):
    plan = json.loads((ablated[1] / "study.json").read_text())["parts"][PLAN]
    assert {"attention", "norms", "rotary", "gates", "residuals", "embedding", "loss"} <= set(plan["used"])
    assert "attention" in plan["functions"]
    assert plan["precision"] == "fp32"
    assert all(speed["start"] > 0 < speed["step"] for speed in plan["speeds"].values())


def test_a_technique_that_only_speeds_up_leaves_the_losses_alone(ablated):
    parts = json.loads((ablated[1] / "study.json").read_text())["parts"]
    for name in (TOGETHER, "attention, alone", "attention, left out"):
        loss = parts[name]["loss"]
        assert loss["with"] == pytest.approx(loss["without"], rel=1e-3)
        assert abs(loss["difference"]["median"]) < 1e-3


def test_what_there_is_none_of_is_named(ablated):
    assert ablated[0]["not_measured"] == {"dropout": "nothing to switch: the model has none"}
    assert ablated[0]["failed"] == {}


def test_the_lines_tell_how_long_it_takes_and_what_was_found(ablated):
    said = ablated[2]
    assert re.search(r"^3 parts, about \d+ s; the same command goes on where it was stopped$", said, re.MULTILINE)
    assert "more than the 0 s that are left" in said
    assert "against stock PyTorch: " in said
    first = r"^\[1/3\] all together: \d+\.\d\dx \[.*\] too few rounds \(3 rounds\); about "
    assert re.search(first, said, re.MULTILINE)
    assert re.search(r"^alone over stock PyTorch:$", said, re.MULTILINE)
    assert re.search(r"^all over stock PyTorch: \d+\.\d\dx \[", said, re.MULTILINE)
    assert "product of 1 single gains: " in said
    assert "dropout: nothing to switch" in said


def test_the_page_and_the_picture_are_there(ablated):
    page = (ablated[1] / "report.html").read_text()
    assert "llama: what each technique earns" in page
    assert "attention that never writes down its weights" in page
    assert "nothing to switch: the model has none" in page
    assert (ablated[1] / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_again_measures_nothing(ablated, config, monkeypatch):
    monkeypatch.setattr(Bench, "measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(Bench, "find_out", lambda *_: pytest.fail("measured"))
    assert run.run(config, ONLY, minutes=0.01, to=ablated[1], say=str) == ablated[0]


def test_other_wishes_are_refused(ablated, config):
    with pytest.raises(ValueError, match=r"holds a study with only .*: --anew begins again, --to names another folder"):
        run.run(config, ["heap"], minutes=0.01, to=ablated[1], say=pytest.fail)


def test_a_folder_with_other_things_is_refused_before_torch_is_asked(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ValueError, match="has other things in it"):
        run.run(tiny.mlp(), to=tmp_path, say=pytest.fail)
