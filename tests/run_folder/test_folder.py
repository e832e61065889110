import os
import re
import signal
import socket
from pathlib import Path

import pytest

from fullstride.run_folder import folder as folder_module
from fullstride.run_folder import lock
from fullstride.run_folder.folder import RunFolder
from fullstride.run_folder.lock import FolderInUse

from ..train import processes

HOLD = """
import sys
from pathlib import Path
from fullstride.run_folder.folder import RunFolder
folder = RunFolder.open(Path(sys.argv[1]))
"""
WAIT = HOLD + "print('ready', flush=True); sys.stdin.readline()"
# A data worker, say, that does not notice that its parent was killed.
LEAVE_A_CHILD = HOLD + """
import os, signal
if os.fork() == 0: print('ready', flush=True); sys.stdin.readline(); os._exit(0)
signal.pause()
"""


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that nobody works on."""
    RunFolder.create(tmp_path / "run", "steps: 10\n").close()
    return tmp_path / "run"


def test_a_new_run_holds_its_config(tmp_path):
    with RunFolder.create(tmp_path / "a" / "b", "steps: 10\n") as folder:
        assert folder.path == tmp_path / "a" / "b"
        assert (folder.path / "config.yaml").read_text() == "steps: 10\n"
        assert folder.checkpoints.is_dir()
        assert sorted(os.listdir(folder.path)) == ["checkpoints", "config.yaml", "run.lock"]


def test_a_run_can_be_opened_again(run):
    with RunFolder.open(run) as folder:
        assert folder.config_yaml == "steps: 10\n"


def test_runs_without_a_path_are_named_by_recipe_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder.create(None, "", recipe="mlp") as folder:
        assert re.fullmatch(r"runs/mlp-\d{8}-\d{6}", str(folder.path))


def test_runs_of_one_second_get_numbers(tmp_path, monkeypatch):
    class Frozen(folder_module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 16, 3, 4, 5)

    monkeypatch.setattr(folder_module, "datetime", Frozen)
    names = []
    for _ in range(3):
        with RunFolder.create(None, "", recipe="mlp", parent=tmp_path) as folder:
            names.append(folder.path.name)
    assert names == ["mlp-20261116-030405", "mlp-20261116-030405-2", "mlp-20261116-030405-3"]


def test_a_second_run_in_a_folder_is_refused_with_the_way_to_go_on(run):
    with pytest.raises(ValueError, match=f"^{run} holds a run already: go on with it by `fullstride resume {run}`"):
        RunFolder.create(run, "steps: 20\n")
    assert (run / "config.yaml").read_text() == "steps: 10\n"
    RunFolder.open(run).close()  # the refusal left no lock


def test_what_is_not_ours_is_not_written_over(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match=r"holds report\.html but no config\.yaml: give a new or an empty folder$"):
        RunFolder.create(tmp_path, "")


def test_a_run_may_start_in_a_folder_with_other_things(tmp_path):
    (tmp_path / "slurm-17.out").touch()
    RunFolder.create(tmp_path, "").close()


def test_a_run_that_died_before_its_config_was_there_may_start_again(tmp_path):
    (tmp_path / "run.lock").write_text("process 1 on elsewhere\n")
    (tmp_path / "config.yaml.partial").write_text("st")
    RunFolder.create(tmp_path, "steps: 10\n").close()
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "config.yaml", "run.lock"]


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(run):
    process = processes.start(WAIT, str(run))
    assert process.stdout.readline() == "ready\n"
    message = f"^{run} is in use by process {process.pid} on {socket.gethostname()}: "
    with pytest.raises(FolderInUse, match=message):
        RunFolder.open(run)
    with pytest.raises(FolderInUse, match=message):
        RunFolder.create(run, "")
    assert RunFolder.read(run).config_yaml == "steps: 10\n"  # looking is allowed
    process.communicate("\n")
    RunFolder.open(run).close()


def test_a_folder_is_not_used_twice_by_one_process(run):
    with RunFolder.open(run), pytest.raises(FolderInUse):
        RunFolder.open(run)


def test_a_killed_process_leaves_no_lock(run):
    process = processes.start(WAIT, str(run))
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    RunFolder.open(run).close()


def test_children_of_a_killed_process_do_not_hold_its_lock(run):
    process = processes.start(LEAVE_A_CHILD, str(run))
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(FolderInUse):  # the child's end of it does not unlock the parent's
        RunFolder.open(run)
    process.send_signal(signal.SIGKILL)
    process.wait()
    RunFolder.open(run).close()
    process.communicate("\n")  # now the child may end


def test_a_file_is_whole_or_not_there(run, monkeypatch):
    folder = RunFolder.read(run)
    folder.write("machine.json", "{}")

    def fail(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        folder.write("machine.json", '{"cores": 2}')
    assert (run / "machine.json").read_text() == "{}"
    assert not (run / "machine.json.partial").exists()


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    for look in (RunFolder.open, RunFolder.read):
        with pytest.raises(ValueError, match=f"^there is no run folder {tmp_path / 'none'}: give one that"):
            look(tmp_path / "none")


def test_a_config_that_is_not_text_is_named(tmp_path):
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"config.yaml: expected YAML, got a file that is not text"):
        RunFolder.read(tmp_path)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run folder, it has no config.yaml: give a folder that"):
        RunFolder.open(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_runs_points_to_the_newest_of_them(run):
    with pytest.raises(ValueError, match=rf": did you mean {run}\?$"):
        RunFolder.open(run.parent)


def test_a_file_in_the_place_of_a_run_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match=f"^{path} cannot be a run folder: it, or what it lies in, is a file$"):
            RunFolder.create(path, "")


def test_a_place_that_cannot_be_written_is_named():
    with pytest.raises(ValueError, match=r"^cannot make the run folder /proc/run: .*; give one that can be written$"):
        RunFolder.create(Path("/proc/run"), "")


def test_a_run_that_cannot_be_written_is_named_but_can_be_read(run):
    (run / "run.lock").unlink()
    (run / "run.lock").mkdir()  # what even root cannot open for writing
    with pytest.raises(ValueError, match=f"^cannot write in the run folder {run}: "):
        RunFolder.open(run)
    assert RunFolder.read(run).config_yaml == "steps: 10\n"


def test_a_file_system_without_locks_gets_a_warning(run, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    RunFolder.open(run).close()
    assert "cannot be locked here (Function not implemented)" in caplog.text
