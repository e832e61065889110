"""A recipe against the same recipe in plain PyTorch, through the processes it uses, with a model of 212 parameters."""

import json
import math
import re

import pytest
import torch
from torch import nn

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.compare import measuring, outcome
from fullstride.bench.step import benchmark as step
from fullstride.bench.step.cases import STOCK_DEFAULT
from fullstride.data.order import Order
from fullstride.models import mlp
from fullstride.recipes.config import Freeze, Optimizer
from fullstride.train import assembly

from .tiny import CONFIG, OURS, PEAKS


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What was said, what was returned, the file of --json, and the folder of the study."""
    folder = tmp_path_factory.mktemp("compare")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "measure_peaks", lambda: PEAKS)
        patch.setenv("MALLOC_TOP_PAD_", "1")
        content = compare.run(CONFIG, 0.05, json=folder / "compare.json", to=folder / "study", say=said.append)
    return "\n".join(said), content, json.loads((folder / "compare.json").read_text()), folder / "study"


def parts_of(folder):
    return json.loads((folder / "study.json").read_text())["parts"]


def plain_losses(config, num_steps):
    """The recipe once more, written down step by step."""
    torch.manual_seed(config.seed)
    task = config.task()
    model = task.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, assembly.build_schedule(config, task.length(config)))
    order = Order(10, config.micro_batch, config.seed)
    losses = []
    for number in range(num_steps):
        optimizer.zero_grad()
        total = 0.0
        for i in range(2):
            loss = mlp.loss(model, task.train_data.batch(*order.micro_batch(2 * number + i))) / 2
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        scheduler.step()
        losses.append(total)
    return losses


def test_both_sides_take_the_steps_of_the_recipe(compared):
    ours, stock = compared[1]["sides"]
    expected = plain_losses(CONFIG, len(stock["losses"]))
    assert len(expected) >= 6
    assert stock["losses"] == pytest.approx(expected, rel=1e-6)
    assert ours["losses"] == pytest.approx(expected, rel=1e-4)  # another order of sums, over all these steps


def test_the_text_shows_conditions_sides_ratio_and_losses(compared):
    text = compared[0]
    assert re.search(r"^cpu +\S", text, re.MULTILINE)
    assert "0.05 seconds of steps in total over all sides, " in text
    assert "start-up is not counted" in text
    assert re.search(r"^tiny, accumulation 2: 212 parameters, 8 samples a step$", text, re.MULTILINE)
    for side in (OURS, STOCK_DEFAULT):
        assert re.search(rf"^  {side} +[\d.]+ \[[\d.]+\.\.[\d.]+\] ", text, re.MULTILINE)
    assert re.search(r"^  fullstride fp32: \d+\.\d\dx \[.*\] stock default$", text, re.MULTILINE)
    assert re.search(r"^  losses of the same \d+ steps, largest difference to stock default: ", text, re.MULTILINE)
    assert re.search(r"^  measured [\d.]+ s of steps: \d+ rounds, \d+ a turn$", text, re.MULTILINE)


def test_the_file_is_what_was_returned(compared):
    _, content, file, _ = compared
    assert file == json.loads(json.dumps(content))
    assert file["recipe"] == "tiny"
    assert file["config"]["micro_batch"] == 4
    assert {"cpu", "torch", "commit", "threads"} <= set(file["conditions"])
    assert [side["name"] for side in file["sides"]] == [OURS, STOCK_DEFAULT]
    [ratio] = file["ratios"]
    assert (ratio["ours"], ratio["peer"]) == (OURS, STOCK_DEFAULT)
    assert ratio["ratio"]["lowest"] <= ratio["ratio"]["median"] <= ratio["ratio"]["highest"]


def test_figures_of_a_side_fit_together(compared):
    turns = compared[1]["turns"]
    assert turns["rounds"] >= 3
    for side in compared[1]["sides"]:
        times = side["milliseconds"]
        assert len(times["rounds"]) == turns["rounds"]
        assert times["lowest"] <= times["median"] <= times["highest"]
        assert side["units_per_second"] == pytest.approx(8 / times["median"] * 1e3)
        # 8 samples, two operations a weight forward and four backward, but two of the first layer, 8 x 16; 192 weights
        assert side["gflops"] == pytest.approx(8 * (6 * 192 - 2 * 8 * 16) / 1e9 / times["median"] * 1e3)
        assert side["peak_bytes"] > 50 << 20  # torch alone is more
        assert len(side["losses"]) >= turns["rounds"] * turns["steps"]


def test_the_largest_difference_of_losses_is_that_of_one_step(compared):
    ours, stock = (side["losses"] for side in compared[1]["sides"])
    expected = max(abs(a - b) / b for a, b in zip(ours, stock, strict=True))
    assert compared[1]["loss_differences"] == {OURS: pytest.approx(expected)}


def test_the_stock_process_does_not_know_this_package(compared):
    ours, stock = parts_of(compared[3])["start"]["facts"].values()
    assert (ours["fullstride_loaded"], stock["fullstride_loaded"]) == (True, False)
    assert [name for name in stock["environment"] if name.startswith("FULLSTRIDE")] == []
    assert stock["environment"]["MALLOC_TOP_PAD_"] == "1"  # the user's
    assert any("SGD" in line for line in ours["explanation"])
    assert stock["explanation"] == []


def test_losses_stand_beside_the_seconds_of_training_at_which_they_were_reached(compared):
    parts = parts_of(compared[3])
    warm_up = compared[1]["turns"]["warm_up"]
    for side in compared[1]["sides"]:
        seconds = [x for answer in outcome.answers_of(parts, side["name"]) for x in answer["seconds"]]
        assert len(seconds) == len(side["losses"]) == len(side["seconds"])
        assert side["seconds"][:warm_up] == [0.0] * warm_up
        assert side["warm_up_seconds"] == pytest.approx(sum(seconds[:warm_up]))
        for i in range(warm_up, len(seconds)):
            assert side["seconds"][i] == pytest.approx(sum(seconds[warm_up : i + 1]), abs=2e-6)


def test_the_losses_are_compared_at_the_same_step_and_at_the_same_time(compared):
    text, content, _, _ = compared
    same = content["losses_at"]["same_time"]
    assert same["seconds"] == pytest.approx(min(side["seconds"][-1] for side in content["sides"]), abs=2e-6)
    for side in content["sides"]:
        found, window = same["sides"][side["name"]], same["window"]
        last = side["losses"][found["step"] - window : found["step"]]
        assert found["mean"] == pytest.approx(sum(last) / window)
        assert (found["lowest"], found["highest"]) == (min(last), max(last))
        assert found["seconds"] <= same["seconds"]
    steps = content["losses_at"]["same_step"]
    assert {found["step"] for found in steps["sides"].values()} == {len(content["sides"][0]["losses"])}
    assert re.search(r"^    of \d+, after \d+ steps: fullstride fp32 [\d.]+ \[.*\], stock default ", text, re.MULTILINE)
    line = r"^    of \d+, after \S+ s of training: fullstride fp32 .* at step \d+, stock default .* at step \d+$"
    assert re.search(line, text, re.MULTILINE)


def test_progress_is_said_round_by_round(compared):
    said = re.findall(r"^\[(\d+)/\d+\] ms a step: fullstride fp32 \S+, stock default \S+", compared[0], re.MULTILINE)
    assert said == [str(number) for number in range(1, compared[1]["turns"]["rounds"] + 1)]


def test_the_study_has_a_page_and_a_picture(compared):
    folder = compared[3]
    assert {path.name for path in folder.iterdir()} == {"study.json", "report.html", "picture.png", "run.lock"}
    page = (folder / "report.html").read_text()
    for part in ("tiny: Fullstride against stock PyTorch", "over seconds of training", "How it was taken"):
        assert part in page
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "study.json").read_text())["outcome"] == compared[2]


def test_what_is_finished_is_shown_again_without_measuring(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "measure", pytest.fail)
    said: list[str] = []
    again = compare.run(CONFIG, 0.05, json=tmp_path / "again.json", to=compared[3], say=said.append)
    assert again == compared[1]
    assert json.loads((tmp_path / "again.json").read_text()) == compared[2]
    assert f"measured before, as {compared[3]} has it; --anew measures again" in "\n".join(said)
    assert re.search(r"^  fullstride fp32: \d+\.\d\dx \[.*\] stock default$", "\n".join(said), re.MULTILINE)


def test_another_wish_is_refused_in_the_same_folder(compared):
    with pytest.raises(ValueError, match=r"holds a study with seconds 0\.05, here it is 0\.5: --anew begins again"):
        compare.run(CONFIG, 0.5, to=compared[3], say=pytest.fail)


def test_both_sides_have_lamb_lookahead_and_freezing(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    optimizer = Optimizer(name="lamb", lr=0.01, lookahead=True, lookahead_k=2)
    config = CONFIG.replace(optimizer=optimizer, freeze=Freeze(enabled=True, threshold=1e9, patience=4, min_active=1))
    found = compare.run(config, 0.05, to=tmp_path, say=str)
    ours, stock = found["sides"]
    [frozen] = ours["frozen"]  # Flatten and the first of two linear layers: the last one never is
    assert frozen["layers"] == ["0", "1"]
    assert stock["frozen"] == ours["frozen"]
    assert len(stock["losses"]) > frozen["step"] >= 4
    assert ours["losses"] == pytest.approx(stock["losses"], rel=1e-4)
    assert any("Lookahead, one call a step" in line for line in ours["explanation"])
    frozen_then = f"after step {frozen['step']} 0, 1"
    note = next(note for note in found["notes"] if note.startswith("torch has no freezing"))
    assert note.endswith(f"frozen: fullstride fp32 {frozen_then} | stock default {frozen_then}")


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds, tmp_path):
    with pytest.raises(ValueError, match="expected a time above 0 seconds"):
        compare.run(CONFIG, seconds, to=tmp_path, say=pytest.fail)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*missing; make it"):
        compare.run(CONFIG, json=tmp_path / "missing" / "compare.json", to=tmp_path / "study", say=pytest.fail)
    with pytest.raises(ValueError, match="it is not a regular file"):
        compare.run(CONFIG, json=tmp_path, to=tmp_path / "study", say=pytest.fail)
    assert list(tmp_path.iterdir()) == []
