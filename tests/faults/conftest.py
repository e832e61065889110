import os
import tempfile
from pathlib import Path

import pytest

from ..train.runs import small
from .processes import Commands


@pytest.fixture(scope="session")
def memory_folder(tmp_path_factory):
    """A folder where syncing takes no time: a kill, unlike a power cut, does not care for it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("runs")
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            yield Path(folder)


@pytest.fixture
def commands(memory_folder):
    with tempfile.TemporaryDirectory(dir=memory_folder) as folder:
        made = Commands(Path(folder))
        yield made
        made.close()


@pytest.fixture
def run(commands, memory_folder):
    with tempfile.TemporaryDirectory(dir=memory_folder) as folder:
        yield Path(folder) / "run"


@pytest.fixture(scope="session")
def whole(memory_folder):
    """The folder of a run of small() that nothing happened to."""
    output = memory_folder / "whole-output"
    output.mkdir()
    commands = Commands(output)
    code, text = commands.train(memory_folder / "whole", small()).wait()
    commands.close()
    assert code == 0, text
    return memory_folder / "whole"
