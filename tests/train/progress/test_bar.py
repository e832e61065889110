import logging
import os
import re

import pytest

from fullstride.train.progress import bar, forecast
from fullstride.train.progress.bar import Progress

from .. import processes

ROW = {"loss": 2.3103, "lr": 1e-3, "per_second": 1234.4, "gflops": 310.2, "share_of_peak": 0.62, "seconds": 0.0}

# A run of 41 steps with all that can happen; the last line says that it came to its end.
RUN = """
import logging, sys
from fullstride.train.progress.bar import Progress
from fullstride.train.progress.terminal import set_up_logging
undo = set_up_logging(sys.argv[1])
progress = Progress(total=41, start=10, unit="samples")
row = {"loss": 2.3103, "per_second": 1234.4, "gflops": 310.2, "share_of_peak": 0.62}
progress.train(row | {"step": 20, "seconds": 1.0})
progress.evaluated({"step": 20, "loss": 2.4, "accuracy": 0.5, "seconds": 0.25, "best": True})
note = logging.getLogger("fullstride").info
note("a note that is longer than the terminal is wide, and must come in one piece all the same: the end")
logging.getLogger("fullstride.elsewhere").warning("careful [not markup] :smile:")
print("printed", file=sys.stderr)
progress.train(row | {"step": 30, "seconds": 2.0})
progress.close()
logging.getLogger("fullstride").info("done")
undo()
"""


@pytest.fixture(scope="module")
def on_terminal(tmp_path_factory):
    """What a terminal shows of the run, and what its log file holds."""
    log = tmp_path_factory.mktemp("run") / "log.txt"
    return processes.run_on_terminal(RUN, str(log)), log.read_text()


@pytest.fixture(scope="module")
def without_colours(tmp_path_factory):
    return processes.run_on_terminal(RUN, str(tmp_path_factory.mktemp("run") / "log.txt"), NO_COLOR="1")


@pytest.fixture
def lines(caplog, monkeypatch):
    """lines() gives what was said, in a place that is no terminal and where no time passes but that of the rows."""
    for module in (bar, forecast):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)
    caplog.set_level(logging.INFO, "fullstride")
    return lambda: [record.getMessage() for record in caplog.records]


def left(line: str) -> str:
    return re.search(r"  ([\d:d ]+) left$", line)[1]


# ---- lines


def test_a_row_is_one_line(lines):
    Progress(1000, 0, "samples").train(ROW | {"step": 120, "seconds": 12.0})
    assert lines() == [
        "step  120/1000  loss 2.3103  lr 0.001  1,234 samples/s  0.31 TFLOP/s (62% of peak)  0:01:28 left"
    ]


def test_a_row_tells_the_time_of_a_step_what_waited_for_data_and_the_memory(lines):
    parts = {"data": 0.05, "forward": 0.35, "backward": 0.6, "evaluate": 7.0, "checkpoint": 2.0}
    row = {"step": 10, "loss": 1.0, "step_ms": 103.4, "time": parts, "resident_mb": 1812.3}
    Progress(10, 0, "tokens").train(row)
    assert lines() == ["step 10/10  loss 1.0000  103 ms/step  data wait 5.0%  1,812 MB"]


def test_low_rates_keep_their_digits(lines):
    row = {"step": 10, "loss": 1.0, "per_second": 0.1234, "gflops": 7.51, "share_of_peak": 0.052}
    Progress(10, 0, "tokens").train(row)
    assert lines() == ["step 10/10  loss 1.0000  0.123 tokens/s  0.00751 TFLOP/s (5.2% of peak)"]


def test_what_is_unknown_is_left_out(lines):
    row = {"step": 10, "loss": float("nan"), "gflops": 5.0, "share_of_peak": None, "per_second": None, "lr": None}
    Progress(10, 0, "samples").train(row)
    assert lines() == ["step 10/10  loss nan  0.005 TFLOP/s"]


def test_skipped_steps_are_shown(lines):
    Progress(10, 0, "samples").train({"step": 10, "loss": 1.0, "skipped": 3})
    assert lines() == ["step 10/10  loss 1.0000 (3 skipped)"]


def test_an_evaluation_is_one_line(lines):
    row = {"step": 100, "loss": 2.3812, "accuracy": 0.912, "count": 1000, "tiny": 1e-9, "seconds": 1.25, "best": True}
    Progress(1000, 0, "samples").evaluated(row)
    assert lines() == [
        "evaluated at step 100 in 1.2 s: loss 2.3812, accuracy 0.9120, count 1000, tiny 1e-09 (best)"
    ]


# ---- the time left


def test_the_time_left_is_that_of_recent_steps(lines):
    progress = Progress(1000, 0, "samples")
    progress.train(ROW | {"step": 10, "seconds": 100.0})  # with what is done only once
    progress.train(ROW | {"step": 20, "seconds": 110.0})
    progress.train(ROW | {"step": 30, "seconds": 120.0})
    assert [left(line) for line in lines()] == ["2:45:00", "0:16:20", "0:16:10"]


def test_one_slow_row_does_not_change_the_time_left(lines):
    progress = Progress(1000, 0, "samples")
    for step, seconds in [(10, 10.0), (20, 20.0), (30, 30.0), (40, 1030.0)]:
        progress.train(ROW | {"step": step, "seconds": seconds})
    assert left(lines()[-1]) == "0:16:00"


def test_steps_that_grow_slower_change_the_time_left(lines):
    progress = Progress(10000, 0, "samples")
    for number in range(1, 51):
        progress.train(ROW | {"step": number * 10, "time": {"forward": 10.0 if number < 30 else 20.0}})
    assert left(lines()[-1]) == "5:16:40"


def test_the_time_left_counts_from_the_step_that_was_resumed(lines):
    progress = Progress(1000, 900, "samples")
    progress.train(ROW | {"step": 910, "seconds": 10.0})
    assert left(lines()[0]) == "0:01:30"


def test_the_time_left_has_the_evaluations_to_come_whenever_it_is_asked(lines):
    """One of 50 s every 100 steps of 1 s; also one before the first step, and between two of them."""
    progress, asked = Progress(1000, 0, "samples"), {}
    progress.evaluated({"step": 0, "loss": 1.0, "seconds": 50.0})
    for step in range(10, 1000, 10):
        evaluated = 50.0 if step % 100 == 10 else 0.0  # as part of the time up to the next row
        progress.train(ROW | {"step": step, "time": {"forward": 10.0, "evaluate": evaluated}})
        asked[step] = left(lines()[-1])
        if step % 100 == 0:
            progress.evaluated({"step": step, "loss": 1.0, "seconds": 50.0})
    assert asked[90] == "0:15:10"  # 910 s: that there are more evaluations nobody knows yet
    assert [asked[step] for step in (110, 190, 200, 500)] == ["0:22:15", "0:20:15", "0:20:00", "0:12:30"]


def test_evaluations_are_counted_once(lines):
    progress = Progress(1000, 900, "samples")
    for step in (910, 920, 930):
        progress.evaluated({"step": step, "loss": 1.0, "seconds": 10.0})
        progress.train(ROW | {"step": step, "time": {"forward": 10.0, "evaluate": 10.0}})
    assert [left(line) for line in lines() if "left" in line] == ["0:03:00", "0:02:40", "0:02:20"]  # 2 s a step


def test_the_time_left_has_the_checkpoints_to_come(lines):
    progress = Progress(1000, 0, "samples")
    for step in (10, 20, 30, 40):
        saving = 5.0 if step in (20, 40) else 0.0
        progress.train(ROW | {"step": step, "time": {"forward": 10.0, "checkpoint": saving}})
    assert left(lines()[-1]) == "0:20:00"  # 960 steps of 1.25 s


def test_long_times_are_in_days(lines):
    Progress(100_001, 0, "samples").train(ROW | {"step": 1, "seconds": 1.0})
    assert left(lines()[0]) == "1d 3:46:40"


# ---- where it is shown


def test_a_pipe_gets_lines_without_codes(tmp_path):
    process = processes.start(RUN, str(tmp_path / "log.txt"))
    out, err = process.communicate()
    assert out == ""
    assert "\r" not in err
    assert "\x1b" not in err
    shown = re.sub(r"\d:\d\d:\d\d left", "0:00:01 left", err)  # not the same on a machine that is busy
    assert [line.split(" ", 1)[1] for line in shown.splitlines() if line != "printed"] == [
        "step 20/41  loss 2.3103  1,234 samples/s  0.31 TFLOP/s (62% of peak)  0:00:01 left",
        "evaluated at step 20 in 0.2 s: loss 2.4000, accuracy 0.5000 (best)",
        "a note that is longer than the terminal is wide, and must come in one piece all the same: the end",
        "warning: careful [not markup] :smile:",
        "step 30/41  loss 2.3103  1,234 samples/s  0.31 TFLOP/s (62% of peak)  0:00:01 left",
        "done",
    ]


def test_a_pipe_gets_no_codes_where_colours_are_forced(tmp_path):
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b" not in processes.start(RUN, str(tmp_path / "log.txt"), env=environment).communicate()[1]


def test_a_dumb_terminal_gets_lines(tmp_path):
    text = processes.run_on_terminal(RUN, str(tmp_path / "log.txt"), TERM="dumb")
    assert "\x1b" not in text
    assert "step 30/41  loss 2.3103" in text


def test_a_terminal_gets_a_bar_of_three_lines(without_colours):
    last = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", without_colours).split("\n")[-5:-1]
    shown = [line.rstrip("\r").split("\r")[-1] for line in last]  # what is not drawn over
    assert re.fullmatch(r"30/41 \S+ +73%  0:00:\d\d gone, 0:00:0[01] left", shown[0])
    assert len(shown[0]) == 80
    assert shown[1:] == [
        "loss 2.3103, 1,234 samples/s, 0.31 TFLOP/s (62% of peak)",
        "evaluated at step 20 in 0.2 s: loss 2.4000, accuracy 0.5000 (best)",
        "done",
    ]


def test_a_narrow_terminal_loses_nothing_of_an_evaluation(tmp_path):
    text = processes.run_on_terminal(RUN, str(tmp_path / "log.txt"), NO_COLOR="1", COLUMNS="40")
    shown = " ".join(re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text).split())
    assert "evaluated at step 20 in 0.2 s: loss 2.4000, accuracy 0.5000 (best)" in shown


def test_a_terminal_gets_its_cursor_back(on_terminal):
    text, _ = on_terminal
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_lines_of_the_log_stand_above_the_bar_in_one_piece(on_terminal):
    text, _ = on_terminal
    erased = r"\x1b\[2K"  # the bar is gone where they begin, and drawn again after them
    for line in [
        "a note that is longer than the terminal is wide, and must come in one piece all the same: the end",
        "warning: careful [not markup] :smile:",
        "printed",
    ]:
        assert re.search(f"{erased}{re.escape(line)}\r\n", text), line
    assert "step 20/41" not in text  # the bar shows it


def test_no_colours_where_they_are_not_wanted(on_terminal, without_colours):
    colour = re.compile(r"\x1b\[[\d;]+m")
    assert colour.search(on_terminal[0])
    assert not colour.search(without_colours)


def test_the_log_file_has_the_rows_that_a_bar_shows(on_terminal):
    assert re.findall(r"step \d+/41", on_terminal[1]) == ["step 20/41", "step 30/41"]


def test_output_to_a_file_is_not_drawn_into_the_bar():
    code = """
import sys
from fullstride.train.progress.bar import Progress
progress = Progress(10, 0, "samples")
print("for the file")
progress.close()
"""
    assert "for the file" not in processes.run_on_terminal(code)


def test_workers_that_are_forked_while_the_bar_is_drawn_can_speak():
    code = """
import logging, os, signal, sys, threading, warnings
from fullstride.train.progress import terminal
from fullstride.train.progress.bar import Progress
from fullstride.train.progress.terminal import set_up_logging
warnings.simplefilter("ignore")  # Python 3.12 warns of the fork, and would wait for the lock that is held here
undo = set_up_logging(None)
progress = Progress(10, 0, "samples")
held, done = threading.Event(), threading.Event()
def draw():
    with terminal._console._lock: held.set(); done.wait()
thread = threading.Thread(target=draw)
thread.start()
held.wait()
if os.fork() == 0:
    signal.alarm(30)  # instead of waiting for ever
    logging.getLogger("fullstride").warning("logged by a worker")
    print("printed by a worker", file=sys.stderr)
    os._exit(0)
assert os.wait()[1] == 0
done.set()
thread.join()
progress.close()
undo()
"""
    text = processes.run_on_terminal(code)
    assert "warning: logged by a worker\r\n" in text
    assert "printed by a worker\r\n" in text
