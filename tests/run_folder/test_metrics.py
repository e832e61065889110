import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fullstride.run_folder import metrics
from fullstride.run_folder.folder import RunFolder
from fullstride.run_folder.metrics import Metrics

from ..train import processes


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        yield folder


def write(folder, *rows, kind="train", attempt=1):
    written = Metrics(folder, attempt)
    try:
        for row in rows:
            written.write(kind, row)
    finally:
        written.close()


def lines(folder) -> list[str]:
    return (folder.path / "metrics.jsonl").read_text().splitlines()


def table(folder, name="metrics.csv") -> list[dict[str, str]]:
    with (folder.path / name).open(newline="") as file:
        return list(csv.DictReader(file))


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


# ---- rows


def test_a_row_comes_back_with_its_kind_attempt_and_step(folder):
    row = {"step": 10, "loss": 2.5, "time": {"data": 0.1}, "joules": None, "note": "a\nb"}
    write(folder, row, attempt=3)
    assert metrics.read(folder.path) == [{"kind": "train", "attempt": 3} | row]


def test_a_row_is_in_the_file_when_it_is_written(folder):
    written = Metrics(folder, 1)
    written.write("train", {"step": 10})
    assert len(lines(folder)) == 1
    assert len(table(folder)) == 1
    written.close()


def test_a_killed_process_loses_no_row(folder):
    code = """
import os, signal, sys
from pathlib import Path
from fullstride.run_folder.metrics import Metrics
from fullstride.run_folder.folder import RunFolder
metrics = Metrics(RunFolder.read(Path(sys.argv[1])), 1)
for step in range(1, 4): metrics.write("train", {"step": step})
os.kill(os.getpid(), signal.SIGKILL)
"""
    processes.start(code, str(folder.path)).communicate()
    assert [row["step"] for row in metrics.read(folder.path)] == [1, 2, 3]
    assert [row["step"] for row in table(folder)] == ["1", "2", "3"]


def test_a_row_without_a_step_is_refused(folder):
    with pytest.raises(KeyError, match="step"):
        write(folder, {"loss": 1.0})
    assert lines(folder) == []


def test_numbers_that_are_not_finite_are_strict_json_and_come_back(folder):
    values = {"loss": math.nan, "grad_norm": math.inf, "grad_norms": {"head": -math.inf}}
    write(folder, {"step": 1} | values)
    row = strict(lines(folder)[0])
    assert (row["loss"], row["grad_norm"], row["grad_norms"]["head"]) == ("NaN", "Infinity", "-Infinity")
    (read,) = metrics.read(folder.path)
    assert math.isnan(read["loss"])
    assert read["grad_norm"] == math.inf
    assert read["grad_norms"]["head"] == -math.inf


def test_numpy_and_torch_scalars_are_numbers(folder):
    values = {"a": np.float32(0.5), "b": torch.tensor(2.5), "c": np.float32("nan")}
    write(folder, {"step": np.int64(1)} | values, {"step": 2} | values)
    for row in metrics.read(folder.path):
        assert (row["a"], row["b"], math.isnan(row["c"])) == (0.5, 2.5, True)
    for row in table(folder):
        assert (row["a"], row["b"], row["c"]) == ("0.5", "2.5", "nan")


def test_what_is_no_value_is_refused_by_its_type(folder):
    with pytest.raises(TypeError, match=r"(?m)not Linear$"):  # Python 3.14 adds a line that says where
        write(folder, {"step": 1, "layer": torch.nn.Linear(1, 1)})
    assert lines(folder) == []


# ---- attempts


def test_of_a_step_that_was_done_again_the_last_counts(folder):
    write(folder, {"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.0}, attempt=1)
    write(folder, {"step": 20, "loss": 1.0}, {"step": 30, "loss": 0.5}, attempt=2)
    rows = [(row["step"], row["attempt"], row["loss"]) for row in metrics.read(folder.path)]
    assert rows == [(10, 1, 3.0), (20, 2, 1.0), (30, 2, 0.5)]
    assert len(lines(folder)) == len(table(folder)) == 4  # nothing is removed


def test_kinds_are_told_apart(folder):
    write(folder, {"step": 10, "loss": 3.0})
    write(folder, {"step": 10, "loss": 2.0}, kind="eval")
    assert [(row["kind"], row["loss"]) for row in metrics.read(folder.path)] == [("train", 3.0), ("eval", 2.0)]


def test_all_events_are_kept(folder):
    write(folder, {"step": 10, "event": "skipped"}, {"step": 10, "event": "stopped"}, kind="event", attempt=1)
    write(folder, {"step": 10, "event": "start"}, kind="event", attempt=2)
    assert [row["event"] for row in metrics.read(folder.path)] == ["skipped", "stopped", "start"]


def test_the_last_attempt_is_known_also_before_any(folder):
    assert metrics.last_attempt(folder.path) == 0
    write(folder, {"step": 10}, attempt=1)
    write(folder, {"step": 5, "event": "start"}, kind="event", attempt=2)
    assert metrics.last_attempt(folder.path) == 2


# ---- files that are not whole


@pytest.mark.parametrize("half", [b'{"kind": "tra', b"\0" * 50, b'{"kind": "train", "attempt": 1}'])
def test_half_a_row_is_taken_off_before_the_next(folder, caplog, half):
    write(folder, {"step": 10})
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(half)
    assert [row["step"] for row in metrics.read(folder.path)] == [10]
    write(folder, {"step": 20}, attempt=2)
    assert [strict(line)["step"] for line in lines(folder)] == [10, 20]
    assert "ended in half a row" in caplog.text


def test_a_row_that_lacks_only_its_line_end_is_kept(folder):
    write(folder, {"step": 10})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    write(folder, {"step": 20})
    assert [strict(line)["step"] for line in lines(folder)] == [10, 20]


def test_a_line_that_is_no_row_is_passed_over_with_a_warning(folder, caplog):
    write(folder, {"step": 10})
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0\n[1]\n")
    write(folder, {"step": 20})
    caplog.clear()
    assert [row["step"] for row in metrics.read(folder.path)] == [10, 20]
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "line 2 is not a row and was passed over",
        "line 3 is not a row and was passed over",
    ]


def test_a_row_that_does_not_fit_on_the_disk_leaves_the_others_whole(folder):
    code = """
import resource, signal, sys
from pathlib import Path
from fullstride.run_folder.metrics import Metrics
from fullstride.run_folder.folder import RunFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
metrics = Metrics(RunFolder.read(Path(sys.argv[1])), 1)
metrics.write("event", {"step": 1})
try: metrics.write("event", {"step": 2, "text": "x" * 100})
except OSError as error: print(error)
metrics.write("event", {"step": 3})
"""
    line = f"cannot write {folder.path / 'metrics.jsonl'}: File too large\n"
    assert processes.start(code, str(folder.path)).communicate() == (line, "")
    assert [strict(line)["step"] for line in lines(folder)] == [1, 3]


def test_a_run_without_rows_has_none(folder):
    assert metrics.read(folder.path) == []
    assert metrics.read(folder.path / "metrics.jsonl") == []


# ---- tables


def test_tables_are_flat_and_leave_gradient_norms_out(folder):
    row = {"step": 10, "loss": 2.5, "joules": None, "time": {"data": 0.25, "other": 0.5}, "grad_norms": {"head": 1.0}}
    write(folder, row, row | {"step": 20})
    expected = {"attempt": "1", "step": "10", "loss": "2.5", "joules": "", "time.data": "0.25", "time.other": "0.5"}
    assert table(folder) == [expected, expected | {"step": "20"}]


def test_evaluations_have_their_own_table_and_events_none(folder):
    write(folder, {"step": 10, "loss": 2.5})
    write(folder, {"step": 10, "accuracy": 0.5, "best": True}, kind="eval")
    write(folder, {"step": 10, "event": "stopped"}, kind="event")
    assert table(folder) == [{"attempt": "1", "step": "10", "loss": "2.5"}]
    assert table(folder, "evaluations.csv") == [{"attempt": "1", "step": "10", "accuracy": "0.5", "best": "True"}]
    assert sorted(path.name for path in folder.path.glob("*.csv*")) == ["evaluations.csv", "metrics.csv"]


def test_a_new_column_is_empty_in_older_rows_and_a_missing_one_in_newer(folder):
    write(folder, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "accuracy": 0.5}, {"step": 3, "accuracy": 0.75})
    rows = [(row["step"], row["loss"], row["accuracy"]) for row in table(folder)]
    assert rows == [("1", "3.0", ""), ("2", "2.0", "0.5"), ("3", "", "0.75")]


def test_texts_with_commas_quotes_and_line_ends_stay_on_their_line(folder):
    write(folder, {"step": 1, "note": 'a, "b"\nc'}, {"step": 2, "note": 'a, "b"\r\nc'})
    assert [row["note"] for row in table(folder)] == ['a, "b" c'] * 2
    assert len((folder.path / "metrics.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize("damage", [lambda text: text[:-3], lambda text: "step\n", lambda text: text + "1,2,\0"])
def test_a_damaged_table_is_made_again_from_the_rows(folder, damage):
    write(folder, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0})
    path = folder.path / "metrics.csv"
    path.write_text(damage(path.read_text()))
    write(folder, {"step": 3, "loss": 1.0}, attempt=2)
    assert [(row["attempt"], row["loss"]) for row in table(folder)] == [("1", "3.0"), ("1", "2.0"), ("2", "1.0")]


# ---- TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_the_numbers_by_kind(folder):
    pytest.importorskip("tensorboard")
    written = Metrics(folder, 1, tensorboard=True)
    row = {"loss": 2.5, "joules": None, "time": {"data": 0.25}, "grad_norms": {"0.weight": 1.5}}
    written.write("event", {"step": 0, "event": "start"})
    written.write("train", {"step": 10} | row)
    written.write("train", {"step": 20} | row | {"loss": 1.5})
    written.write("eval", {"step": 20, "accuracy": 0.5})
    written.close()
    assert scalars(folder.path) == {
        "train/loss": [(10, 2.5), (20, 1.5)],
        "time/data": [(10, 0.25), (20, 0.25)],
        "grad_norms/0.weight": [(10, 1.5), (20, 1.5)],
        "eval/accuracy": [(20, 0.5)],
    }


def test_tensorboard_hides_steps_that_were_done_again(folder):
    pytest.importorskip("tensorboard")
    for attempt, steps in [(1, (10, 20, 30)), (2, (20,))]:
        written = Metrics(folder, attempt, tensorboard=True)
        for step in steps:
            written.write("train", {"step": step, "loss": float(attempt)})
        written.close()
    assert scalars(folder.path) == {"train/loss": [(10, 1.0), (20, 2.0)]}


def test_a_missing_tensorboard_names_the_command_that_gets_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ValueError, match=r"^logging to TensorBoard .*: pip install 'fullstride\[tensorboard\]'$"):
        Metrics(folder, 1, tensorboard=True)
