"""The command as people start it, `python -m fullstride`: few tests, as each start loads torch."""

import signal
import subprocess
import sys

import pytest

from fullstride.recipes import config_files
from fullstride.train.checkpoints.store import Store

from ..patience import PATIENCE
from ..train.runs import assert_same_run, losses, small
from .processes import last_line, until


class Process:
    """`python -m fullstride ARGUMENTS`. What it writes goes to a file: a pipe that nobody empties would stop it."""

    def __init__(self, output, arguments):
        self.output = output
        with open(output, "w") as file:
            words = [sys.executable, "-m", "fullstride", *map(str, arguments)]
            self.popen = subprocess.Popen(words, stdout=file, stderr=file)

    def end(self):
        """(exit code, what it wrote)"""
        code = self.popen.wait(PATIENCE)
        text = self.output.read_text()
        assert "Traceback" not in text
        return code, text


@pytest.fixture
def fullstride(run):
    """fullstride(*arguments) starts it."""
    started: list[Process] = []

    def start(*arguments):
        started.append(Process(run.with_name(f"output-{len(started)}"), arguments))
        return started[-1]

    yield start
    for process in started:
        process.popen.kill()
        process.popen.wait()


def num_steps(run):
    """That have a row of metrics."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b'"kind": "train"') if file.exists() else 0


def train(fullstride, run, config):
    """The process, which has made some steps."""
    file = run.with_suffix(".yaml")
    file.write_text(config_files.to_yaml(config))
    process = fullstride("train", "--config", file, "--run", run)
    until(lambda: num_steps(run) >= 3 or process.popen.poll() is not None, "the first steps")
    assert process.popen.poll() is None, process.end()
    return process


def test_a_run_stopped_by_sigterm_and_resumed_is_the_uninterrupted_one(fullstride, commands, run):
    config = small(steps=400, evaluation={"every": 100}, checkpoints={"every": 0, "background": True})
    process = train(fullstride, run, config)
    process.popen.send_signal(signal.SIGTERM)
    code, text = process.end()
    assert code == 143
    assert last_line(text) == "fullstride: stopped by SIGTERM"
    assert 3 <= Store(run / "checkpoints").newest().step < 400
    code, text = fullstride("resume", run).end()
    assert code == 0, text
    assert f"fullstride evaluate {run}" in text
    assert (run / "report.html").exists()
    assert commands.train(run.parent / "whole", config).wait()[0] == 0
    assert_same_run(run, run.parent / "whole")


def test_a_folder_in_which_a_process_trains_is_refused_to_others(fullstride, commands, run):
    process = train(fullstride, run, small(steps=1_000_000, schedule={"name": "constant"}, evaluation={"every": 0}))
    line = f"fullstride: {run} is in use by process {process.popen.pid} on "
    code, text = fullstride("resume", run).end()
    assert code == 5
    assert last_line(text).startswith(line)
    code, text = commands.train(run, small()).wait()
    assert code == 5
    assert last_line(text).startswith(line)
    before = num_steps(run)
    until(lambda: num_steps(run) > before, "steps after the others were refused")
    process.popen.send_signal(signal.SIGINT)
    code, text = process.end()
    assert code == 130
    assert last_line(text) == "fullstride: stopped by SIGINT"
    assert len(losses(run)) == Store(run / "checkpoints").newest().step
