"""`fullstride advise`, stopped between its parts and continued."""

import json
import signal

import pytest

from ...faults.processes import Commands, Pause
from ..commands import assert_stopped
from .tiny import WORDS

COMMAND = ["advise", "mlp", *WORDS, "--accumulate", "4", "--seconds", "0.05"]
# The loss is computed once for the memory of the recipe, and once for that of each change.
IN_THE_FIRST_CHANGE = Pause("loss", 1)


@pytest.fixture
def commands(tmp_path):
    started = Commands(tmp_path)
    yield started
    started.close()


def content_of(folder):
    return json.loads((folder / "study.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_between_its_parts_it_goes_on_after_the_last(commands, tmp_path, number):
    folder = tmp_path / "study"
    command = commands.start(*COMMAND, "--to", folder, change=IN_THE_FIRST_CHANGE).until_paused()
    before = content_of(folder)["parts"]
    assert list(before) == ["rates", "check"]
    assert_stopped(command, number, folder, num_parts=2)
    assert content_of(folder)["outcome"] is None
    code, text = commands.start(*COMMAND, "--to", folder).wait()
    assert code == 0, text
    after = content_of(folder)
    assert {name: after["parts"][name] for name in before} == before
    assert len(after["parts"]) > len(before)
    assert after["outcome"]["check"]["milliseconds"] == before["check"]["milliseconds"]
