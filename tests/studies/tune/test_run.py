"""`tune` on a tiny model, through the processes it uses. Only the speeds that they answer are made up."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from fullstride import _source, cli
from fullstride.bench.step.process import our_environment
from fullstride.machine import memory
from fullstride.recipes import config_files
from fullstride.studies.tune import plan, run, search, settings
from fullstride.studies.tune.child import Children
from fullstride.studies.tune.speed import Found, Speed
from fullstride.train.trainer import Trainer

from ...patience import PATIENCE, wait_until
from . import tiny

CONFIG = tiny.config(micro_batch=1, accumulate=31)
ONLY = ["micro-batch"]


@pytest.fixture(scope="module", autouse=True)
def one_commit():
    """Somebody may commit meanwhile, and a study of another commit would be refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_source, "commit", lambda: "one")
        yield


@pytest.fixture(scope="module")
def short():
    """Turns of a moment, though there is time for long ones; a micro-batch of 31 is twice as fast as one of 1."""
    real = Speed._turn

    def turn(self, candidate, seconds):
        rate = 200.0 if candidate.micro_batch == 31 else 100.0
        return real(self, candidate, seconds) | {"rates": [0.9 * rate, rate, 1.1 * rate], "seconds": 1.0, "units": rate}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speed, "_turn", turn)
        patch.setattr(plan, "LONGEST", 0.1)
        patch.setattr(plan, "SHORTEST", 0.05)
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, short):
    folder = tmp_path_factory.mktemp("tune") / "study"
    said: list[str] = []
    return run.run(CONFIG, 30.0, folder=folder, dimensions=ONLY, say=said.append), folder, "\n".join(said)


@pytest.fixture
def no_process(monkeypatch):
    def start(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(Children, "start", start)


def test_what_is_faster_is_taken_with_its_gain(tuned):
    content = tuned[0]
    assert content["taken"] == "best"
    assert content["tried"] == 1
    assert content["changes"] == {"micro_batch": [1, 31], "accumulate": [31, 1]}
    assert content["ratio"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert [content[who]["units_per_second"]["median"] for who in ("default", "best")] == [100.0, 200.0]


def test_the_study_has_every_trial_with_its_settings_and_spread(tuned):
    content = json.loads((tuned[1] / "study.json").read_text())
    assert content["outcome"] == tuned[0]
    parts = content["parts"]
    trials = ["micro-batch, rung 1: 31 x 1", "micro-batch, rung 1: 1 x 31"]
    finals = [f"final {i}" for i in range(1, 1 + plan.ROUNDS)]
    once = [name for name in parts if "again" not in name]  # a second turn, where steps are short enough for it
    assert once == ["machine", "default", "memory of micro-batch", *trials, *finals]
    trial = parts["micro-batch, rung 1: 1 x 31"]
    assert (trial["settings"]["micro_batch"], trial["settings"]["accumulate"]) == (31, 1)
    assert trial["units_per_second"]["median"] in trial["rates"] or len(trial["rates"]) % 2 == 0
    assert all(part["took"] > 0 for part in parts.values())


def test_train_takes_the_config_that_is_written(tuned, tmp_path, capsys):
    file = tuned[1] / "tuned.yaml"
    assert config_files.read(file) == CONFIG.replace(micro_batch=31, accumulate=1)
    words = ["train", "--config", str(file), "--run", str(tmp_path / "run"), "--steps", "3", "--quiet", "--no-report"]
    assert cli.main(words) == 0
    assert "done    3 steps" in capsys.readouterr().out


def test_the_lines_name_gain_spread_and_the_next_command(tuned):
    _, folder, said = tuned
    assert "planned: 21 min to look at other values of micro-batch (1), 9 min for the best" in said
    assert "of the default's speed, 6 rounds in turns" in said
    assert "micro_batch 1 -> 31, accumulate 31 -> 1" in said
    assert "inter-op  nothing to tune" in said
    assert "What is set for speed leaves the training the same, to rounding" in said
    assert f"fullstride train --config {folder / 'tuned.yaml'}" in said


def test_the_page_and_the_picture_are_there(tuned):
    page = (tuned[1] / "report.html").read_text()
    assert "31 x 1, default" in page
    assert "final, 6 rounds" in page
    assert (tuned[1] / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_training_is_the_same_to_rounding(tuned, tmp_path):
    losses = []
    for name, config in (("default", CONFIG), ("tuned", config_files.read(tuned[1] / "tuned.yaml"))):
        trainer = Trainer(config.replace(steps=4, logging={"every": 1}), tmp_path / name)
        trainer.quiet = True
        trainer.fit()
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses.append([row["loss"] for row in rows if row["kind"] == "train"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_same_command_again_measures_nothing(tuned, no_process):
    again = run.run(CONFIG, 30.0, folder=tuned[1], dimensions=ONLY, say=lambda text: None)
    assert again == tuned[0]


def test_other_wishes_are_refused_in_one_line(tuned):
    with pytest.raises(ValueError, match=r"minutes 30.0, here it is 20.0: --anew begins again, --to names another"):
        run.run(CONFIG, 20.0, folder=tuned[1], dimensions=ONLY, say=lambda text: None)


# ---- processes -------------------------------------------------------------------------------------------------------

SHARED = tiny.config(micro_batch=8, threads=None)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two processes are twice as fast as one; no more cores than they need, wherever this runs."""
    real = Speed._turn

    def turn(self, candidate, seconds):
        rate = 100.0 * candidate.processes
        return real(self, candidate, seconds) | {"rates": [0.9 * rate, rate, 1.1 * rate], "seconds": 1.0, "units": rate}

    look = Speed._look_around
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Speed, "_turn", turn)
        patch.setattr(Speed, "_look_around", lambda self: look(self)._replace(cores=2, regions=(1, 1)))
        patch.setattr(plan, "LONGEST", 0.1)
        patch.setattr(plan, "SHORTEST", 0.05)
        said: list[str] = []
        folder = tmp_path_factory.mktemp("tune") / "study"
        dimensions = ["processes", "overlap"]
        content = run.run(SHARED, 30.0, folder=folder, dimensions=dimensions, say=said.append)
        return content, folder, "\n".join(said)


def test_several_processes_are_tried_and_taken_where_they_are_faster(two):
    content = two[0]
    assert content["processes"] == 2
    assert content["changes"] == {"processes": [1, 2]}
    assert content["left_out"] == {"overlap": "needs two threads, and each of 2 processes has one"}
    parts = json.loads((two[1] / "study.json").read_text())["parts"]
    assert parts["processes, rung 1: 2 processes"]["settings"]["processes"] == 2
    assert parts["memory of processes"]["said"] == "1 of 1 fit"


def test_how_many_processes_stands_in_the_command_and_not_in_the_config(two):
    _, folder, said = two
    file = folder / "tuned.yaml"
    command = f"fullstride train --config {file} --nproc 2"
    assert f"next      {command}\n" in said
    assert f"# {command}\n" in file.read_text()
    assert config_files.read(file) == SHARED


def test_the_lines_and_the_page_name_the_processes(two):
    _, folder, said = two
    assert "2 processes, 1 thread each, 1 x 8" in said
    assert "changed   processes 1 -> 2" in said
    page = (folder / "report.html").read_text()
    assert "1 process, default" in page
    assert f"fullstride train --config {folder / 'tuned.yaml'} --nproc 2" in page


PRIME = 99_991


@pytest.mark.parametrize(
    ("widths", "why"),
    [
        ({"model": {"hidden": (2048,)}}, "would hold about"),
        ({"data": {"num_samples": 64, "num_features": 1000, "workers": 0}}, "held"),  # its data alone is too much
    ],
)
def test_a_micro_batch_above_the_memory_is_refused_and_never_started(widths, why, tmp_path):
    config = tiny.config(micro_batch=1, accumulate=PRIME, **widths)
    default = settings.of(config)
    with tiny.opened(tmp_path / "study") as opened, Children(4 << 30) as children:
        speed = Speed(plan.Session(opened, 60.0), config, children, tmp_path, 60.0, ONLY)
        speed.found = Found(speed._look_around(), default, default, "samples", 40, 1.0, 1.0, False)
        children.limit = children._living[0].held() + (100 << 20)
        speed._try("micro-batch", [])
        assert list(opened.parts) == ["machine", "memory of micro-batch"]
        assert opened.parts["memory of micro-batch"]["said"] == "0 of 1 fit"
    assert speed.found.best == default
    [(label, reason)] = speed.found.left_out.items()
    assert label == f"1 x {PRIME}"
    assert reason.startswith(f"too much memory: {why} ")
    assert f"{memory.as_size(children.limit)} may be used" in reason


def test_a_config_that_is_itself_too_large_is_refused_in_one_line(tmp_path):
    """The limit lets the estimates be made, and no more."""
    config = tiny.config(micro_batch=8, model={"hidden": (8192, 8192)})
    with pytest.raises(ValueError, match=r"^the config as it is takes too much memory: would hold about .* --micro-b"):
        run.run(config, 1.0, folder=tmp_path / "study", limit=1000 << 20, say=lambda text: None)


TURN = {"units_per_second": {"median": 1.0, "lowest": 1.0, "highest": 1.0}, "rates": [1.0], "steps": 10, "peak": None}
DONE: dict[str, dict[str, Any]] = {
    "machine": {
        "cores": 1, "threads": 1, "precision": "fp32", "precisions": {}, "micro_batch_matters": None,
        "regions": [1, 1], "can_cut": True, "processes_matter": None,
    },
    "default": TURN | {"unit": "samples", "full_steps": 40, "startup": 1.0, "seconds": 0.02, "inter_op_started": False},
    "evaluation": {"seconds": 0.01},
    **{
        f"trial {i}": {
            "parameters": {"lr": lr}, "values": {"lr": lr}, "state": "complete", "why": "", "steps": 9, "optuna": {},
            "points": [[0.02, 2.0], [0.04, 1.8], [0.08, loss]],
        }
        for i, (lr, loss) in enumerate([(3e-4, 1.5), (1e-3, 1.1), (5e-4, 1.3)])
    },
    **{
        f"search final, seed {seed}: {who}": {"points": [[0.08, loss]]}
        for seed in (1, 2) for who, loss in (("default", 1.5), ("best", 1.2))
    },
}  # fmt: skip


def test_what_a_search_has_found_goes_into_the_config(tmp_path, no_process, monkeypatch):
    """Of parts that were done before."""
    config, folder = tiny.config(micro_batch=8), tmp_path / "study"
    said: list[str] = []
    options: dict[str, Any] = {"search": ["lr"], "folder": folder, "dimensions": [], "say": said.append}
    monkeypatch.setattr(search, "MOST_TRIALS", 3)
    with pytest.raises(AssertionError, match="a process was started"):
        run.run(config, 30.0, **options)
    content = json.loads((folder / "study.json").read_text())
    content["parts"] = {name: part | {"took": 1.0} for name, part in DONE.items()}
    (folder / "study.json").write_text(json.dumps(content))
    outcome = run.run(config, 30.0, **options)
    assert outcome["changes"] == {"optimizer.lr": [3e-4, 1e-3], "schedule.floor": [1e-6, 3.33e-6]}
    assert outcome["search"]["taken"] == "best"
    assert config_files.read(folder / "tuned.yaml").optimizer.lr == 1e-3
    lines = "\n".join(said)
    assert "3 trials of 0.0800 s of training, 0 of them ended early" in lines
    assert "validation loss 1.200 against 1.500 (seed 1), 1.200 against 1.500 (seed 2) of the recipe's own" in lines


def test_a_stopped_study_goes_on_with_what_it_has(tmp_path, short, monkeypatch):
    folder = tmp_path / "study"
    file = tmp_path / "config.yaml"
    file.write_text(config_files.to_yaml(CONFIG))
    command = [
        sys.executable,
        "-m",
        "fullstride",
        "tune",
        "--config",
        str(file),
        "--minutes",
        "30",
        "--to",
        str(folder),
    ]
    process = subprocess.Popen(command, env=our_environment(), text=True, stdout=-1, stderr=-1)
    wait_until(lambda: (folder / "study.json").exists() and "machine" in parts_of(folder))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert errors.endswith(f"are kept in {folder}: the same command goes on\n")
    kept = parts_of(folder)
    commit = json.loads((folder / "study.json").read_text())["conditions"]["commit"]
    monkeypatch.setattr(_source, "commit", lambda: commit)
    monkeypatch.setattr(settings, "others", lambda *_: ([], {}))  # the rest would take long
    run.run(CONFIG, 30.0, folder=folder, say=lambda text: None)
    found = parts_of(folder)
    assert {name: found[name] for name in kept} == kept
    assert list(found) == ["machine", "default"]


def parts_of(folder):
    return json.loads((folder / "study.json").read_text())["parts"]
