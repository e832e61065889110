"""fullstride train and resume --nproc: the command as a person starts it, and all that it started."""

import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fullstride import cli
from fullstride.cli import processes
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store
from fullstride.train.errors import PEER_LOST

from ..distributed.listening import listeners
from ..patience import PATIENCE, wait_until
from ..train.runs import assert_same_tensors, final, losses
from .commands import TINY, one_line, train

STEPS = 300  # so many that a signal after the first row comes long before the last one
LONG = ["--steps", str(STEPS), "--evaluation.every", "100", "--checkpoints.every", "100", "--quiet"]
ENDLESS = ["--steps", "1000000", "--schedule.name", "constant"]


class Command:
    """`fullstride ...` that runs."""

    def __init__(self, folder, *words):
        self._files = [folder / f"{name}-{len(list(folder.iterdir()))}" for name in ("out", "err")]
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            command = [sys.executable, "-m", "fullstride", *map(str, words), "--no-report"]
            self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, start_new_session=True)

    @property
    def ranks(self):
        """Process ids, by rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found: dict[int, int] = {}
        for pid in children:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {int(each[5:]): int(pid) for each in variables if each.startswith(b"RANK=")}
        return found

    def wait(self):
        """Exit code, output, errors."""
        code = self.process.wait(PATIENCE)
        return code, *(file.read_text() for file in self._files)


def has_rows(run):
    return (run / "metrics.jsonl").exists() and any(row["kind"] == "train" for row in read(run))


def is_gone(pid):
    """A zombie is: who has to reap it may be busy."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def begin(folder, *more):
    """A run that has come to its first row: the command, the processes, the folder."""
    run = folder / "run"
    command = Command(folder, "train", "mlp", "--run", run, *TINY, *LONG, "--nproc", "2", *more)
    wait_until(lambda: has_rows(run) or command.process.poll() is not None)
    return command, command.ranks, run


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# ---- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(what the command said, the folder) of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    run = folder / "run"
    return Command(folder, "train", "mlp", "--run", run, *TINY, *LONG, "--nproc=2").wait(), run


def test_the_result_is_said_once(whole):
    (code, out, err), run = whole
    assert (code, err) == (0, "")
    assert [len(re.findall(pattern, out, re.MULTILINE)) for pattern in ("^done ", "^best ", "^run ")] == [1, 1, 1]
    assert f"run     {run}\n" in out


def test_a_run_is_one_folder_like_that_of_one_process(whole, tmp_path):
    run = whole[1]
    train(tmp_path / "alone", *LONG)
    names = [sorted(str(file.relative_to(each)) for file in each.rglob("*")) for each in (run, tmp_path / "alone")]
    assert names[0] == names[1]
    assert [path.name for path in run.parent.iterdir() if path.is_dir()] == ["run"]


def test_rows_have_what_each_process_did(whole):
    rows = [row for row in read(whole[1]) if row["kind"] == "train"]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(len(row["ranks"]) == 2 for row in rows)
    assert all(rank["wall"] > 0 and rank["resident_mb"] > 0 for rank in rows[-1]["ranks"])


# ---- signals ---------------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_stops_all_and_the_run_goes_on_to_the_same_bits(number, whole, tmp_path):
    goes_on = number == signal.SIGTERM  # once is enough
    command, ranks, run = begin(tmp_path, *([] if goes_on else ENDLESS))
    command.process.send_signal(number)
    code, out, err = command.wait()
    assert (code, out) == (128 + number, ""), err
    assert one_line(err) == f"fullstride: stopped by {number.name}"
    assert all(map(is_gone, ranks.values()))
    steps = [step for step, _ in losses(run)]
    assert Store(run / "checkpoints").steps()[-1] == steps[-1]  # that under way was finished and saved
    if goes_on:
        assert 1 <= steps[-1] < STEPS
        assert Command(tmp_path, "resume", run, "--quiet", "--nproc", "2").wait()[0] == 0
        assert_same_tensors(final(whole[1])[0], final(run)[0])
        assert losses(whole[1]) == losses(run)


@linux
def test_a_process_that_is_killed_is_named_with_the_signal_and_what_to_do(tmp_path):
    command, ranks, run = begin(tmp_path, *ENDLESS)
    os.kill(ranks[1], signal.SIGKILL)
    code, out, err = command.wait()
    assert (code, out) == (128 + signal.SIGKILL, "")
    assert f"fullstride: rank 1 was killed by SIGKILL; go on with: fullstride resume {run}\n" in err
    assert all(map(is_gone, ranks.values()))
    assert Store(run / "checkpoints").newest().step >= 1  # by the first process, which had all that is needed


@linux
def test_when_the_command_is_killed_its_processes_save_and_end_by_themselves(tmp_path):
    command, ranks, run = begin(tmp_path, *ENDLESS)
    command.process.kill()
    assert command.wait()[0] == -signal.SIGKILL
    wait_until(lambda: all(map(is_gone, ranks.values())))
    assert Store(run / "checkpoints").steps()[-1] == losses(run)[-1][0]


@linux
def test_nothing_listens_beyond_the_loopback_interface(tmp_path):
    command, ranks, _ = begin(tmp_path, *ENDLESS)
    try:
        found = [address for pid in (command.process.pid, *ranks.values()) for address, _ in listeners(pid)]
    finally:
        command.process.send_signal(signal.SIGTERM)
        command.wait()
    assert found  # gloo's
    assert {ipaddress.ip_address(address).is_loopback for address in found} == {True}


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_processes_that_cannot_share_a_step_are_refused_once_and_leave_no_run(tmp_path):
    words = ["train", "mlp", *TINY, "--micro-batch", "3", "--nproc", "2"]
    code, out, err = Command(tmp_path, *words).wait()
    assert (code, out) == (2, "")
    expected = "fullstride: processes: expected a number that can share 1 x 3 samples a step alike, such as 3; got 2;"
    assert one_line(err).startswith(expected)
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (["--distributed.local-steps", "2", "--distributed.islands", "3"], "distributed.islands: expected a divisor"),
        (["--precision", "fp16", "--distributed.gradients", "bf16"], "distributed.gradients: expected fp32 or auto in"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_room_for_the_right_command(fields, line, tmp_path):
    words = ["train", "mlp", *TINY, "--accumulate", "2", "--nproc", "2", "--folder", tmp_path / "run", *fields]
    code, out, err = Command(tmp_path, *words).wait()
    assert (code, out) == (2, "")
    assert one_line(err).startswith(f"fullstride: {line}")
    assert not (tmp_path / "run").exists()


def contents(folder):
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "run.lock"]
    return {file.relative_to(folder): file.read_bytes() for file in files}


@pytest.mark.parametrize("starts", [["--nproc", "2", "--restarts", "1"], None], ids=["nproc", "torchrun"])
def test_a_restart_leaves_a_run_of_another_command_alone(starts, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[1], run)
    before = contents(run)
    words = ["train", "mlp", "--folder", run, *TINY, *LONG, "--optimizer.lr", "0.5"]
    if starts is None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        options = ["--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "1", "--master-addr", "127.0.0.1",
                   "--master-port", str(port)]  # fmt: skip
        command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "fullstride", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = Command(tmp_path, *words, *starts).wait()
    assert code != 0
    assert out == ""
    assert f"{run} holds a run already" in err
    assert contents(run) == before


def test_what_all_processes_come_to_is_said_once(tmp_path):
    words = ["train", "mlp", *TINY, "--nproc", "2", "--accumulate", "2", "--distributed.local-steps", "2", "--quiet"]
    code, _, err = Command(tmp_path, *words).wait()
    assert code == 0
    assert err.count("meetings of the islands") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "mlp", "--restarts", "2"], "--restarts: expected --nproc with it, got it alone"),
        (["resume", "nowhere", "--restarts", "2"], "--restarts: expected --nproc with it, got it alone"),
        (["train", "mlp", "--nproc", "2", "--steps", "many"], "--steps: expected a whole number or None, got many"),
        (["resume", "nowhere", "--nproc", "2"], "there is no run folder nowhere"),
    ],
)
def test_what_is_wrong_is_told_once_before_any_process_is_started(words, line, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert one_line(err).startswith(f"fullstride: {line}")
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_processes_starts_no_more_of_them(monkeypatch, capfd):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "mlp", *TINY, "--nproc", "2"]) == 2
    assert "torchrun has --nproc-per-node" in one_line(capfd.readouterr().err)


def test_what_a_launcher_says_without_sense_is_told_in_a_line(monkeypatch, capfd):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert cli.main(["train", "mlp", *TINY]) == 2
    line = "fullstride: WORLD_SIZE: expected the number of processes, got 'two'"
    assert one_line(capfd.readouterr().err).startswith(line)


@pytest.mark.parametrize("word", ["--npro", "--nproc-per-node", "--restart"])
def test_options_are_not_shortened(word, capfd):
    """Processes would be started with them, and start processes."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["resume", "nowhere", word, "2"])
    assert caught.value.code == 2
    assert f"unknown option '{word}'" in capfd.readouterr().err


# ---- what processes are told -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [["--nproc", "2"], ["--nproc=2"], ["--restarts", "3", "--nproc=2"], ["--run", "a"], ["--folder=a"], []],
    ids=" ".join,
)
def test_processes_are_given_the_command_without_what_is_the_launchers(own):
    others = ["train", "mlp", "--steps", "5", "--quiet"]
    for place in range(2, len(others), 2):
        assert processes._without([*others[:place], *own, *others[place:]]) == others


def test_options_that_only_begin_alike_are_left():
    others = ["train", "mlp", "--nprocess=2", "--running", "1"]
    assert processes._without(others) == others


@pytest.mark.parametrize(("codes", "code", "said"), [
    ({0: PEER_LOST, 1: -9}, 137, "rank 1 was killed by SIGKILL"),
    ({0: PEER_LOST, 1: 3}, 3, ""),
    ({0: -11, 1: PEER_LOST}, 139, "rank 0 was killed by SIGSEGV"),
    ({1: -9, 0: -15}, 137, "rank 1 was killed by SIGKILL"),
    ({1: 2, 0: 143}, 2, ""),
    ({0: PEER_LOST, 1: -15}, 143, "rank 1 was killed by SIGTERM"),
])  # fmt: skip
def test_of_several_that_ended_the_one_that_is_why_counts(codes, code, said):
    from fullstride.distributed.launching import of_failures

    assert of_failures(codes, PEER_LOST) == (code, said)
