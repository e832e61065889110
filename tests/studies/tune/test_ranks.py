"""A trial in two processes: it computes what one does, and none of them outlives another."""

import json
import signal
import subprocess
import sys

import psutil
import pytest

from fullstride.bench.step.process import SideFailed, our_environment
from fullstride.recipes import config_files
from fullstride.studies.tune import resident
from fullstride.studies.tune.child import Children

from ...faults.processes import is_gone
from ...patience import wait_until
from . import tiny

CONFIG = tiny.config(micro_batch=8, accumulate=1, threads=None)
TURN = {"train": 0.0, "least": 20}


def start(children, folder, num=2, config=CONFIG, seconds=None):
    wish = {"config": config_files.to_yaml(config), "run": str(folder / "run"), "seconds": seconds, "processes": num}
    return children.start("trial", wish)


def family(trial):
    """The first process, then the others."""
    first = psutil.Process(trial._process.pid)
    return [first, *first.children()]


def assert_gone(processes):
    wait_until(lambda: all(is_gone(process) for process in processes))


@pytest.fixture
def children():
    with Children(None) as found:
        yield found


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """The same training for two seconds in all, in one process and in two."""
    with Children(None) as children:
        yield [start(children, tmp_path_factory.mktemp(f"trial-{num}"), num, seconds=2.0) for num in (1, 2)]


def test_two_processes_share_the_cores(trials):
    assert [len(family(trial)) for trial in trials] == [1, 2]
    first, other = family(trials[1])
    if hasattr(first, "cpu_affinity") and psutil.cpu_count() > 1:
        assert not set(first.cpu_affinity()) & set(other.cpu_affinity())
    assert trials[1].facts == trials[0].facts | {"threads": trials[1].facts["threads"]}


def test_figures_are_of_all_processes_together(trials):
    one, two = (trial.ask(TURN) for trial in trials)
    assert two["steps"] == 20
    assert two["units"] == one["units"] == 20 * 8
    assert two["peak"] > 1.5 * one["peak"]


def test_the_loss_is_that_of_one_process(tmp_path):
    with Children(None) as children:
        losses = []
        for num in (1, 2):
            trial = start(children, tmp_path / str(num), num)
            before = trial.ask({"evaluate": 1})["loss"]
            trial.ask(TURN)
            losses.append([before, trial.ask({"evaluate": 1})["loss"]])
            trial.close()
    assert losses[1] == pytest.approx(losses[0], rel=2e-5)
    assert losses[1][1] < losses[1][0]


def test_the_learning_rate_follows_the_clock_of_the_first(trials):
    """All have the same one, or their weights would part and the mean of the losses with them."""
    before = trials[1].ask({"evaluate": 1})["loss"]
    trials[1].ask({"train": 0.5})
    assert trials[1].ask({"evaluate": 1})["loss"] < before


def test_a_question_about_one_process_is_answered_by_the_first(trials):
    assert trials[1].ask({"inter_op": 1}) == {"started": False}


def test_memory_is_that_of_all(trials):
    one, two = (trial.held() for trial in trials)
    assert two > one + (20 << 20)


def test_data_workers_of_each_are_its_own(children, tmp_path):
    data = {"num_samples": 64, "num_features": 6, "num_classes": 3, "num_valid": 16, "workers": 1}
    trial = start(children, tmp_path, config=CONFIG.replace(data=data))
    assert trial.ask(TURN)["units"] == 20 * 8
    first, other = family(trial)[0], family(trial)[-1]
    assert len(first.children(recursive=True)) == 3  # the other one, and a worker of each
    trial.close()
    assert_gone([first, other])


def test_a_trial_that_is_closed_leaves_no_process(children, tmp_path):
    trial = start(children, tmp_path)
    processes = family(trial)
    trial.close()
    assert not any(resident.held(process.pid) for process in processes)
    assert_gone(processes)


def test_without_anybody_to_ask_all_end(children, tmp_path):
    """As when `tune` is killed."""
    trial = start(children, tmp_path)
    processes = family(trial)
    trial._process.stdin.close()
    assert_gone(processes)
    assert trial._process.wait() == 0


def test_without_anybody_to_answer_all_end(children, tmp_path):
    """As when `tune` is killed in the middle of a turn."""
    trial = start(children, tmp_path)
    processes = family(trial)
    trial._process.stdin.write(b'{"train": 0.5}\n')
    trial._process.stdin.close()
    trial._process.stdout.close()
    assert_gone(processes)


@pytest.mark.parametrize("request_first", [False, True])
def test_the_others_do_not_outlive_the_first(request_first, children, tmp_path):
    """At rest, or in the middle of a turn."""
    trial = start(children, tmp_path)
    processes = family(trial)
    if request_first:
        trial._process.stdin.write(b'{"train": 1e6}\n')
    processes[0].kill()
    trial._process.wait()
    assert_gone(processes)


@pytest.mark.parametrize("is_asked", [False, True])
def test_the_end_of_another_is_the_answer_of_the_trial(is_asked, children, tmp_path):
    trial = start(children, tmp_path)
    processes = family(trial)
    if is_asked:
        trial._process.stdin.write(b'{"train": 1e6}\n')
    processes[1].send_signal(signal.SIGKILL)
    with pytest.raises(SideFailed, match=r"^rank 1 was ended by SIGKILL$"):
        trial.ask(TURN)
    assert_gone(processes)


def test_the_end_of_another_before_they_have_met_is_the_answer_too(tmp_path):
    """Nobody would ever come to where the first one waits for it."""
    wish = {"config": config_files.to_yaml(CONFIG), "run": str(tmp_path / "run"), "seconds": None, "processes": 2}
    command = [sys.executable, "-m", "fullstride.studies.tune.trial", json.dumps(wish)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=our_environment()) as first:
        wait_until(lambda: bool(psutil.Process(first.pid).children()))
        psutil.Process(first.pid).children()[0].kill()
        assert json.loads(first.stdout.readline())["error"] == "rank 1 was ended by SIGKILL"
        assert first.wait() == 1


def test_bad_input_is_one_line(children, tmp_path):
    bad = CONFIG.replace(evaluation={"metric": "bleu"})
    with pytest.raises(ValueError, match=r"^evaluation.metric: expected one of loss, acc"):
        start(children, tmp_path, config=bad)


def test_processes_that_cannot_share_a_step_say_so(children, tmp_path):
    with pytest.raises(ValueError, match=r"^processes: expected a number that can share 1 x 7 samples a step alike"):
        start(children, tmp_path, config=CONFIG.replace(micro_batch=7))
