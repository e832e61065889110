"""That what misbehaves does so in a child process, by real ones, and that the user's process only reads about it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fullstride.backends.trials import candidates, child, parent, race, verdicts

BAD = "tests.backends.bad_candidates"
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def report():
    """Of candidates that die, hang, are wrong, raise and print, in small and in large."""
    tries = ["torch's fp32 product", "oneDNN's fp32 product", "our fp32 product", "torch's bf16 product"]
    tries += ["oneDNN's bf16 product", "our bf16 product", "torch's bf16 convolution", "torch's bf16 attention"]
    tries += ["torch's bf16 LSTM", "torch's bf16 matmul", "torch's int8 product", "exits"]
    racers = [("fp32", "torch"), ("fp32", "onednn"), ("fp32", "native"), ("bf16", "torch"), ("bf16", "onednn")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [ROOT, *sys.path])
        return parent.run(tries, racers, threads=1, candidates=BAD, limit=5.0)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("torch's bf16 product", "dies with SIGILL"),
        ("our bf16 product", "not tried: its process was ended by SIGKILL"),  # by whom it cannot know
        ("torch's bf16 convolution", "hangs: no result within 5 s"),
        ("torch's bf16 attention", "gives wrong numbers: off by 0.5"),
        ("torch's bf16 LSTM", "gives wrong numbers: off by nan"),
        ("torch's bf16 matmul", "refused by torch: no bf16 on this CPU"),
        ("torch's int8 product", "fine"),  # though it prints
        ("exits", "dies with exit code 3"),
    ],
)
def test_a_candidate_gets_the_verdict_it_deserves(report, name, verdict):
    assert report.verdicts[name] == verdict


def test_a_candidate_that_misbehaves_in_large_only_is_found_by_the_race(report):
    assert report.verdicts["our fp32 product"] == "dies with SIGSEGV"
    assert report.verdicts["oneDNN's fp32 product"].startswith("gives wrong numbers: off by ")
    assert report.verdicts["oneDNN's bf16 product"] == "hangs: no result within 5 s"


def test_the_rest_goes_on(report):
    assert report.trouble == ""
    assert report.verdicts["torch's fp32 product"] == "fine"
    assert report.rates.keys() == {"fp32"}
    assert report.rates["fp32"].keys() == set(race.SHAPES)
    assert all(rates.keys() == {"torch"} and rates["torch"] > 0 for rates in report.rates["fp32"].values())


def test_verdicts_are_told_apart():
    assert verdicts.lines({"a": "fine", "b": "dies with SIGILL", "c": "refused by torch: no"}) == [
        "b: dies with SIGILL here", "c: refused by torch: no",
    ]  # fmt: skip
    assert [verdicts.is_harmful(text) for text in ("fine", "refused by torch: no", "hangs: so")] == [False, False, True]
    assert not verdicts.is_settled(verdicts.of_signal(signal.SIGTERM, 1.0))
    assert verdicts.of_signal(63, 1.0) == "dies with signal 63"
    assert verdicts.of_exception(MemoryError()) == "not tried: no memory"


def test_without_forks_the_child_is_started_anew_after_each_death(monkeypatch):
    monkeypatch.setattr(sys, "path", [ROOT, *sys.path])
    tries = ["torch's bf16 product", "torch's bf16 convolution", "exits", "our fp32 product"]
    found = parent.run(tries, [("fp32", "native")], threads=1, candidates=BAD, limit=2.0, forks=False)
    assert found.trouble == ""
    assert found.verdicts == {
        "torch's bf16 product": "dies with SIGILL", "torch's bf16 convolution": "hangs: no result within 2 s",
        "exits": "dies with exit code 3", "our fp32 product": "dies with SIGSEGV",
    }  # fmt: skip


# ---- starting the child --------------------------------------------------------------------------------------------


def program(tmp_path, text):
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def run_with(monkeypatch, executable, **options):
    monkeypatch.setattr(sys, "executable", executable)
    return parent.run(["torch's fp32 product"], [], threads=1, **options)


def test_no_python_to_start_is_said(monkeypatch, tmp_path):
    assert "No such file" in run_with(monkeypatch, str(tmp_path / "python")).trouble
    assert run_with(monkeypatch, "").trouble == "there is no Python to start: this one is part of another program"
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "part of another program" in run_with(monkeypatch, "python").trouble


def test_a_child_that_fails_is_quoted(monkeypatch, tmp_path):
    report = run_with(monkeypatch, program(tmp_path, "echo 'No module named torch' >&2; exit 7"))
    assert report.trouble == "the child process ended with exit code 7: No module named torch"
    report = run_with(monkeypatch, program(tmp_path, "kill -9 $$"))
    assert report.trouble == "the child process was ended by SIGKILL"
    assert report.verdicts == {}
    report = run_with(monkeypatch, program(tmp_path, "echo nonsense"))
    assert "Expecting value" in report.trouble


def test_what_was_found_before_a_failure_is_kept_and_not_tried_again(monkeypatch, tmp_path):
    lines = """echo '{"try": "a"}'; echo '{"verdict": ["a", "fine"]}'; cat >> %s; exit 1""" % (tmp_path / "tasks")
    monkeypatch.setattr(sys, "executable", program(tmp_path, lines))
    report = parent.run(["a", "b"], [], threads=1)
    assert report.verdicts == {"a": "fine"}
    assert report.trouble == "the child process ended with exit code 1"
    first, second = (tmp_path / "tasks").read_text().splitlines()[1::2]
    assert '"tries": ["a", "b"]' in first
    assert '"tries": ["b"]' in second


def test_a_silent_child_is_ended(monkeypatch, tmp_path):
    report = run_with(monkeypatch, program(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60"), silence=0.5)
    assert report.trouble == "the child process said nothing for 0.5 s"
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_child_does_not_start_one_of_its_own(monkeypatch):
    monkeypatch.setenv(child.RECURSION_MARK, "1")
    assert parent.run(["a"], [], threads=1).trouble == "this process is itself one in which products are tried"


def test_it_works_isolated_without_site_and_without_a_working_directory(tmp_path):
    code = f"""
import sys, os
sys.path[:] = {[ROOT, *sys.path]!r}
os.rmdir(os.getcwd())
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from fullstride.backends.trials import parent
report = parent.run(["our fp32 product", "exits"], [], threads=1, candidates={BAD!r})
print(report.verdicts, report.trouble)
"""
    folder = tmp_path / "gone"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout == "{'our fp32 product': 'fine', 'exits': 'dies with exit code 3'} \n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the child ends with its next line")
def test_no_orphan_is_left_when_the_user_s_process_is_killed():
    code = f"""
import sys
sys.path[:] = {[ROOT, *sys.path]!r}
from fullstride.backends.trials import parent
note = parent._note
def tell(report, line):
    print(line, flush=True)
parent._note = tell
parent.run(["torch's bf16 convolution"], [], threads=1, candidates={BAD!r}, limit=100.0)
"""
    user = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    assert "try" in user.stdout.readline()  # the candidate hangs now
    [server] = children(user.pid)
    [fork] = children(server)
    user.kill()
    user.wait()
    user.stdout.close()
    deadline = time.monotonic() + 20
    while (alive(server) or alive(fork)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(server)
    assert not alive(fork)


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---- the race ------------------------------------------------------------------------------------------------------


def racer(seconds, calls):
    """One that seems to take so long."""

    def run_of(shape):
        def run():
            calls.append(shape)
            return seconds

        return run

    return run_of


def right(precision, shape, results):
    return 0.0, 0.1


@pytest.fixture
def clock(monkeypatch):
    """Calls take what they return."""
    monkeypatch.setattr(race, "_once", lambda run: (run(), ()))


def test_each_shape_is_of_its_kind():
    from fullstride.ops import products

    assert {name: products.shape_of(*sizes) for name, sizes in race.SHAPES.items()} == {n: n for n in products.SHAPES}


def test_a_hopeless_racer_is_called_only_as_often_as_it_takes_to_know(clock):
    slow: list[object] = []
    fast: list[object] = []
    racers = {("bf16", "torch"): racer(0.3, slow), ("fp32", "torch"): racer(0.01, fast)}
    outcome = race.race(racers, (300, 500, 700), lambda racer: None, right, seconds=0.1)
    assert outcome.hopeless == [("bf16", "torch")]
    assert len(slow) == 2
    assert len(fast) > 2
    assert outcome.rates[("bf16", "torch")] == pytest.approx(6 * 300 * 500 * 700 / 0.3 / 1e9, abs=0.05)


def test_a_long_call_is_not_repeated(clock):
    calls: list[object] = []
    race.race({("fp16", "torch"): racer(2.0, calls)}, (300, 500, 700), lambda racer: None, right, seconds=0.0)
    assert len(calls) == 1


def test_what_cannot_run_has_no_rate(clock):
    def refuse(shape):
        raise RuntimeError("not here")

    outcome = race.race({("bf16", "torch"): refuse}, (3, 5, 7), lambda racer: None, right)
    assert outcome.rates == {}
    assert outcome.verdicts == {("bf16", "torch"): "refused by torch: not here"}


def test_a_shape_is_cut_down_for_a_slow_machine():
    assert race.cut_down((512, 384, 16384), 200.0) == (512, 384, 16384)
    assert race.cut_down((512, 384, 16384), None) == (512, 384, 16384)
    assert race.cut_down((512, 384, 16384), 20.0) == (512, 96, 16384)


def test_a_wrong_tile_is_found():
    shape = (70, 40, 50)
    x, weight, dy = (tensor.detach() for tensor in candidates.layer("fp32", shape))
    right = (x @ weight.t(), dy @ weight, dy.t() @ x)
    error, tolerance = candidates.check_large("fp32", shape, right)
    assert error <= tolerance
    for i in range(3):
        wrong = [tensor.clone() for tensor in right]
        wrong[i][16:32, 16:32] = 0
        assert candidates.check_large("fp32", shape, (wrong[0], wrong[1], wrong[2]))[0] > tolerance
    broken = (right[0] * torch.nan, right[1], right[2])
    assert not candidates.check_large("fp32", shape, broken)[0] <= tolerance
