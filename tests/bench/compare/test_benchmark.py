"""A recipe against the same recipe in plain PyTorch, through the processes it uses, with a model of 212 parameters."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fullstride.bench.compare import benchmark as compare
from fullstride.bench.compare import folder as compare_folder
from fullstride.bench.compare import table as compare_table
from fullstride.bench.compare.folder import Folder
from fullstride.bench.measure import Timing
from fullstride.bench.step import benchmark as step
from fullstride.bench.step import results
from fullstride.bench.step import side as step_side
from fullstride.bench.step import stock as step_stock
from fullstride.bench.step.cases import STOCK_BEST, STOCK_DEFAULT, Case
from fullstride.bench.step.process import SideDied
from fullstride.bench.step.results import Measured, Result
from fullstride.data.order import Order
from fullstride.models import mlp
from fullstride.recipes.config import Config, Freeze, Optimizer, Schedule
from fullstride.recipes.task import Stock, Task
from fullstride.train import assembly

OURS = "fullstride fp32"
PEAKS = {"fp32": 100.0, "bf16": None}
FACTS = {
    "unit": "samples", "units": 8, "parameters": 212, "gflop": 1.0, "precision": "fp32", "threads": 2,
    "explanation": [], "dropout": False,
}  # fmt: skip


class Points:
    """Each sample is a function of its number and epoch."""

    def __len__(self):
        return 10

    def batch(self, indices, epochs):
        inputs = torch.stack([torch.sin(torch.arange(8.0) * (1 + i) + e) for i, e in zip(indices, epochs, strict=True)])
        return inputs, torch.from_numpy(indices % 4)


class TinyTask(Task):
    def __init__(self):
        self.train_data = self.valid_data = Points()

    def build_model(self):
        model = mlp.build(**self.stock().arguments)
        nn.init.normal_(model[-1].weight)  # weights that the plain file alone would not give
        return model

    def loss(self, model, batch):
        return mlp.loss(model, batch)

    def stock(self):
        return Stock("mlp", {"widths": [8, 16, 4], "dropout": 0.0})


@dataclass(frozen=True, kw_only=True)
class TinyConfig(Config):
    def task(self):
        return TinyTask()


CONFIG = TinyConfig(  # SGD: the steps of Adam do not show how the gradient was scaled
    recipe="tiny", seed=3, steps=8, micro_batch=4, accumulate=2, precision="fp32", clip=0.5,
    optimizer=Optimizer(name="sgd", lr=0.05, weight_decay=0.01), schedule=Schedule(warmup=0.5),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path, CONFIG)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What was said, what was returned, the file, and what the sides said of themselves."""
    file = tmp_path_factory.mktemp("compare") / "compare.json"
    said: list[str] = []
    facts = []

    def summarise(side, *rest, **options):
        facts.append(side.facts)
        return original(side, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        original = results.summarise
        patch.setattr(results, "summarise", summarise)
        patch.setattr(step, "measure_peaks", lambda: PEAKS)
        patch.setenv("MALLOC_TOP_PAD_", "1")
        content = compare.run(CONFIG, seconds=0.05, json=file, say=said.append)
    return "\n".join(said), content, json.loads(file.read_text()), facts


def case(folder):
    return Case("tiny", CONFIG.accumulate, ("fp32",), recipe=str(folder.path))


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
    ours, stock = compared[3]
    assert (ours["fullstride_loaded"], stock["fullstride_loaded"]) == (True, False)
    assert [name for name in stock["environment"] if re.match("FULLSTRIDE|THP_|GLIBC|MALLOC", name)] == []
    assert any("SGD" in line for line in ours["explanation"])
    assert stock["explanation"] == []


def test_lamb_lookahead_and_freezing_run_on_the_sides_that_have_them(monkeypatch):
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    optimizer = Optimizer(name="lamb", lr=0.01, lookahead=True, lookahead_k=2, state_precision="bf16")
    config = CONFIG.replace(optimizer=optimizer, freeze=Freeze(enabled=True, threshold=1e9, patience=4, min_active=1))
    found = compare.run(config, seconds=0.05, say=str)
    ours, stock = found["sides"]
    [frozen] = ours["frozen"]  # Flatten and the first of two linear layers: the last one never is
    assert frozen["layers"] == ["0", "1"]
    assert stock["frozen"] == []
    same = frozen["step"]  # so many steps are stock's, but for the rounding of bf16 states
    assert same >= 4
    assert ours["losses"][:same] == pytest.approx(stock["losses"][:same], rel=1e-2)
    assert any(f"frozen: after step {same} 0, 1" in note for note in found["notes"])
    assert any("Lookahead, one call a step, states in bf16" in line for line in ours["explanation"])


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


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="expected a time above 0 seconds"):
        compare.run(CONFIG, seconds, say=pytest.fail)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*missing; make it"):
        compare.run(CONFIG, json=tmp_path / "missing" / "compare.json", say=pytest.fail)
    with pytest.raises(ValueError, match="it is not a regular file"):
        compare.run(CONFIG, json=tmp_path, say=pytest.fail)


class Scripted:
    """A side whose steps take the same time."""

    def __init__(self, name, seconds=1.0, done=0):
        self.name, self.seconds, self.losses, self.facts = name, seconds, [1.0] * done, FACTS
        self.peaks, self.frozen = [1] * done, []

    def run(self, steps):
        self.losses += [1.0] * steps
        self.peaks += [1] * steps
        return {"seconds": [self.seconds] * steps, "faults": 0}

    def rest(self):
        pass


class Provided:
    """Stands for a folder; remembers what there was when a side took its steps."""

    bytes_of_step = 1 << 20
    end = 0

    def provide(self, end):
        self.end = max(self.end, end)

    def forget(self, end):
        assert end <= self.end


@pytest.mark.parametrize(
    ("seconds_of_a_step", "seconds", "rounds", "steps"),
    [
        ((0.25, 0.75), 60.0, 15, 4),  # a turn of the faster one is a second: 4 s a round
        ((0.25, 0.75), 8.0, 8, 1),  # as many rounds as fit, of 1 s
        ((2.0, 6.0), 10.0, 3, 1),  # not one round would fit
        ((0.001, 0.003), 2.56, 10, 64),  # 64 MiB of data in a turn, 0.256 s a round
    ],
)
def test_rounds_fill_the_time(seconds_of_a_step, seconds, rounds, steps):
    sides = [Scripted(name, each) for name, each in zip("ab", seconds_of_a_step, strict=True)]
    folder = Provided()
    folder.provide(1)
    answers, turns = compare._rounds(sides, folder, seconds * (1 + 1e-9), {})
    assert (len(answers), turns.rounds, turns.steps) == (rounds, rounds, steps)
    assert turns.seconds == pytest.approx(rounds * steps * sum(seconds_of_a_step))
    assert folder.end == len(sides[0].losses) == len(sides[1].losses) == 1 + rounds * steps


def test_sides_that_trials_took_further_wait_for_the_others():
    sides = [Scripted("a", done=2), Scripted("b", done=9), Scripted("c", done=7)]
    compare._level(sides, {})
    assert [len(side.losses) for side in sides] == [9, 9, 9]


@pytest.mark.parametrize("fastest", ["fused", None])
def test_stock_at_its_best_is_a_side_unless_it_is_the_default(fastest, monkeypatch):
    folder = Provided()

    def find_best(case, default, quick, stack, say):
        assert not quick
        default.run(step_stock.MOST_TRIED - step_stock.WARM_UP)
        assert len(default.losses) < folder.end  # the first step of the rounds is there, too
        best = Scripted(f"{STOCK_BEST} (fused)", 2.0, done=7) if fastest else default
        return best, ["fused: 2000 ms"]

    monkeypatch.setattr(step, "start", lambda name, config, stack: Scripted(name, 4.0, done=step_stock.WARM_UP))
    monkeypatch.setattr(step_stock, "find_best", find_best)
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    result, _ = compare.measure(Case("tiny", precisions=("fp32",)), folder, 1.0, best=True, say=str)
    names = [OURS, STOCK_DEFAULT, *([f"{STOCK_BEST} (fused)"] if fastest else [])]
    assert [side.name for side in result.sides] == names
    assert len({len(side.losses) for side in result.sides}) == 1
    ratios = {ratio.peer: (ratio.peer_side, ratio.ratio.median) for ratio in result.ratios}
    assert ratios == {STOCK_DEFAULT: (STOCK_DEFAULT, 1.0), STOCK_BEST: (names[-1], 0.5 if fastest else 1.0)}


def test_stock_that_dies_is_shown_and_ours_goes_on(monkeypatch):
    class Dying(Scripted):
        def run(self, steps):
            if len(self.losses) > 3:
                raise SideDied(f"{self.name}: illegal instruction on this CPU")
            return super().run(steps)

    def start(name, config, stack):
        return (Scripted if name == OURS else Dying)(name, 0.5, done=step_stock.WARM_UP)

    monkeypatch.setattr(step, "start", start)
    monkeypatch.setattr(step, "measure_peaks", lambda: PEAKS)
    result, turns = compare.measure(Case("tiny", precisions=("fp32",)), Provided(), 5.0, best=False, say=str)
    assert [side.name for side in result.sides] == [OURS]
    assert turns.rounds >= 3
    found = compare_table.as_json({"load": 0.0, "usable_cores": 2}, CONFIG, result, turns)
    assert found["failed"] == {STOCK_DEFAULT: "illegal instruction on this CPU"}
    assert found["notes"] == ["stock default: illegal instruction on this CPU"]
    lines = compare_table.lines(found, result)
    [line] = [line for line in lines if "illegal" in line]
    assert line.split() == ["stock", "default", "illegal", "instruction", "on", "this", "CPU"]


def measured(name, losses, threads=2, frozen=()):
    facts = FACTS | {"threads": threads}
    return Measured(name, "fp32", Timing((1.0, 2.0)), 8.0, 0.0, 1 << 20, 1.0, None, losses, facts, frozen=list(frozen))


def content(config, *sides, load=2.0):
    result = Result(Case("tiny"), list(sides), [], [], 2, results.differences(list(sides), 2))
    return compare_table.as_json({"load": load, "usable_cores": 2}, config, result, compare_table.Turns(2, 1, 3.0))


def test_json_holds_no_nan(tmp_path):
    found = content(CONFIG, measured(OURS, [1.0, math.nan]), measured(STOCK_DEFAULT, [1.0, 2.0]))
    compare_table.write(tmp_path / "compare.json", found)
    again = json.loads((tmp_path / "compare.json").read_text())
    assert again["sides"][0]["losses"] == [1.0, None]
    assert again["loss_differences"] == {OURS: None}
    assert [file.name for file in Path(tmp_path).iterdir()] == ["compare.json"]


def test_what_the_figures_do_not_say_is_noted():
    optimizer = Optimizer(name="lamb", lookahead=True, state_precision="bf16")
    config = CONFIG.replace(freeze=Freeze(enabled=True), optimizer=optimizer)
    sides = measured(OURS, [1.0, 1.0], threads=2), measured(STOCK_DEFAULT, [1.0, 2.0], threads=4)
    assert content(config, *sides, load=3.5)["notes"] == [
        "load 3.5 on 2 cores before the first step: others were measured too, so trust no ratio",
        "threads: fullstride fp32 2, stock default 4",
        "freeze.enabled is ours alone: stock PyTorch has no such thing; it froze nothing in these 2 steps",
        "torch.optim has no LAMB and no Lookahead: stock's is written in plain torch for this comparison",
        "optimizer.state_precision bf16 is ours alone; stock has fp32",
    ]
    assert content(CONFIG, measured(OURS, [1.0, 1.0]), measured(STOCK_DEFAULT, [1.0, 1.0]))["notes"] == []


def test_what_was_frozen_and_when_is_noted():
    config = CONFIG.replace(freeze=Freeze(enabled=True))
    ours = measured(OURS, [1.0, 1.0], frozen=[(31, ["1"]), (40, ["1", "3"]), (50, [])])
    found = content(config, ours, measured(STOCK_DEFAULT, [1.0, 1.0]))
    assert found["notes"][0].endswith("frozen: after step 31 1; after step 40 1, 3; after step 50 none")
    assert [side["frozen"] for side in found["sides"]] == [
        [{"step": 31, "layers": ["1"]}, {"step": 40, "layers": ["1", "3"]}, {"step": 50, "layers": []}],
        [],
    ]


def test_a_loss_of_zero_can_be_compared():
    sides = [measured(OURS, [0.5, 0.0]), measured(STOCK_DEFAULT, [0.0, 0.0])]
    assert results.differences(sides, 2) == {OURS: 0.5}
