"""Loss over time, with sides that take the time they are told to."""

import argparse
import json
import xml.dom.minidom
from typing import Any

import pytest
from benchmarks import llama_curves, llama_curves_table
from benchmarks.llama_curves import Runner

from fullstride.bench.step.cases import Case


class Scripted:
    """A side whose steps take these seconds, the last one from then on; its loss falls by one a step."""

    facts = {"precision": "fp32", "units": 8, "unit": "tokens", "threads": 2, "explanation": []}  # noqa: RUF012

    def __init__(self, name, *seconds, compiled=False):
        self.name, self.seconds, self.config = name, seconds, {"compile": compiled}
        self.losses: list[float] = []
        self.peaks = [1]

    def run(self, steps):
        taken = [self.seconds[min(len(self.losses) + i, len(self.seconds) - 1)] for i in range(steps)]
        self.losses += [1.0] * steps
        return {"seconds": taken}

    def evaluate(self):
        return 100.0 - len(self.losses)

    def rest(self):
        pass


class Steps:
    """Stands for a folder; remembers who asked for what."""

    bytes_of_step = 1

    def __init__(self):
        self.held = []

    def provide(self, end):
        self.hold(0, end)

    def hold(self, first, end):
        self.held.append((first, end))


def options(**changes):
    settings = {"turn": 1e-9, "every": 3, "seconds": float("inf"), "json": None}
    return argparse.Namespace(**settings | changes)


def side(kind, *points, compiling=0.0):
    """points: step, seconds, loss."""
    names = {"fullstride": "fullstride auto", "stock": "stock default", "best": "stock at its best (fused)"}
    rows = [dict(zip(("step", "seconds", "loss"), point, strict=True)) | {"train_loss": 1.0} for point in points]
    return {
        "side": kind, "name": names[kind], "points": rows, "steps": points[-1][0], "seconds": points[-1][1],
        "compile_seconds": compiling, "units_per_second": 8.0, "unit": "tokens", "peak_bytes": 1 << 20,
    }  # fmt: skip


OURS = side("fullstride", (10, 1.0, 3.0), (20, 2.0, 2.0), (30, 3.0, 1.5))
STOCK = side("stock", (10, 3.0, 3.01), (20, 6.0, 2.0))
BEST = side("best", (10, 2.0, 3.0), (20, 4.0, 2.0), compiling=63.0)


def test_what_compiling_takes_is_told_apart():
    runner = Runner("best", Scripted("best", 61.0, 1.0, compiled=True))
    for count in (1, 1, 3):
        runner.train(count)
    assert (runner.steps, runner.seconds, runner.compile_seconds) == (5, 5.0, 60.0)


def test_a_slow_first_step_of_others_counts():
    runner = Runner("stock", Scripted("stock", 3.0, 1.0))
    for count in (1, 1, 3):
        runner.train(count)
    assert (runner.seconds, runner.compile_seconds) == (7.0, 0.0)


def test_sides_take_turns_to_the_last_step_and_evaluate_on_the_way():
    runners = [Runner(kind, Scripted(kind, 1.0)) for kind in ("fullstride", "stock")]
    folder, content = Steps(), dict[str, Any]()
    llama_curves._take_turns(runners, folder, 7, options(), content, [])
    assert [entry["side"] for entry in content["sides"]] == ["fullstride", "stock"]
    for entry in content["sides"]:
        assert [(p["step"], p["seconds"], p["loss"]) for p in entry["points"]] == [(3, 3, 97), (6, 6, 94), (7, 7, 93)]
    assert folder.held[:4] == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_a_side_ends_when_its_own_time_is_over():
    runners = [Runner("fullstride", Scripted("ours", 1.0)), Runner("stock", Scripted("stock", 2.0))]
    llama_curves._take_turns(runners, Steps(), 100, options(seconds=6.0), {}, [])
    assert [(runner.steps, runner.points[-1]["step"]) for runner in runners] == [(6, 6), (3, 3)]


def test_the_file_is_there_after_every_evaluation(tmp_path):
    file, seen = tmp_path / "curves.json", []

    class Looking(Scripted):
        def run(self, steps):
            seen.append(len(json.loads(file.read_text())["sides"][-1]["points"]) if file.exists() else 0)
            return super().run(steps)

    llama_curves._take_turns([Runner("stock", Looking("stock", 1.0))], Steps(), 6, options(json=file), {}, [STOCK])
    assert seen == [0, 0, 0, 1, 1, 1]
    assert [len(entry["points"]) for entry in json.loads(file.read_text())["sides"]] == [2, 2]


def test_losses_are_compared_at_the_same_step():
    text = llama_curves_table.lines([OURS, STOCK, BEST])
    assert text[2].split() == ["10", "3.0000", "(-0.0100)", "3.0100", "3.0000", "(-0.0100)"]
    assert text[4].split() == ["30", "1.5000", "-", "-"]
    assert "compiled in 63 s, not counted" in text[7]
    assert text[-1] == (
        "validation loss 2.0000: fullstride auto after 2 s, stock default after 6 s, stock at its best after 4 s"
    )


def test_the_time_of_a_loss_lies_between_evaluations():
    assert llama_curves_table.reached(OURS["points"], 2.25) == pytest.approx(1.75)
    assert llama_curves_table.reached(OURS["points"], 3.0) == 1.0


def test_sides_of_another_recipe_are_refused(tmp_path):
    file, config = tmp_path / "curves.json", {"recipe": "llama", "steps": 5, "precision": "auto", "betas": (0.9, 0.99)}
    file.write_text(json.dumps({"config": config | {"precision": "fp32"}, "sides": [STOCK]}))
    assert llama_curves_table.read(file, config) == [STOCK]
    with pytest.raises(ValueError, match=r"curves.json: expected steps 6, as here, got 5$"):
        llama_curves_table.read(file, config | {"steps": 6})
    file.write_text("[]")
    with pytest.raises(ValueError, match="expected what --json of this program wrote"):
        llama_curves_table.read(file, config)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "unknown recipe 'nothing'"),
        (["mlp", "--sides", "stock,other"], "expected some of fullstride,stock,best, got 'stock,other'"),
        (["mlp", "--json", "missing/x.json"], "there is no folder missing"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit):
        llama_curves.main(arguments)
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_the_picture_follows_the_scheme_of_the_reader():
    pytest.importorskip("matplotlib")
    from benchmarks import llama_curves_picture

    picture = llama_curves_picture.draw({"recipe": "llama", "sides": [OURS, STOCK, BEST]})
    xml.dom.minidom.parseString(picture)
    assert "prefers-color-scheme: dark" in picture
    assert "var(--blue)" in picture
    assert "+ 63 s of compiling, not shown" in picture


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"fused": True, "compile": True, "autocast": False},
            ("best", "stock at its best (fused + torch.compile)", {"fused": True, "compile": True}),
        ),
        ({}, None),  # the default was the fastest: one curve shows both
    ],
)
def test_stock_at_its_best_is_found_by_trial(settings, expected, monkeypatch):
    found = Scripted("stock at its best (fused + torch.compile)" if settings else "stock default", 1.0)
    found.config = {"model": "llama", "accumulate": 1, **settings}
    monkeypatch.setattr(llama_curves.step, "start", lambda name, config, stack: found)
    monkeypatch.setattr(llama_curves.step_stock, "find_best", lambda *_, **__: (found, ["fused: 800 ms"]))
    content: dict[str, list[str]] = {}
    wish = options(sides=llama_curves.SIDES, best=None)
    wanted = llama_curves._wanted(Case("llama"), Steps(), wish, content)
    assert wanted[:2] == [("fullstride", "fullstride auto", {"fullstride": "auto"}), ("stock", "stock default", {})]
    assert wanted[2:] == ([expected] if expected else [])
    assert content["trials"] == ["fused: 800 ms"]
