"""What a launcher says in the environment, and what of it makes no sense."""

import subprocess
import sys

import pytest

from fullstride.distributed import launched

ONE_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RANK": "2"}, "RANK: expected a number from 0 to 1, below WORLD_SIZE 2; got '2'"),
        ({"RANK": "-1"}, "RANK: expected a number from 0 to 1, below WORLD_SIZE 2; got '-1'"),
        ({"RANK": "first"}, "RANK: expected a number from 0 to 1, below WORLD_SIZE 2; got 'first'"),
        ({"RANK": ""}, "RANK: expected a number from 0 to 1, below WORLD_SIZE 2; got ''"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE: expected it to be set beside RANK 0; torchrun sets both"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: expected the number of processes, got 'two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: expected the number of processes, got '0'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR: expected it to be set beside RANK and WORLD_SIZE; torchrun sets all"),
        ({"MASTER_PORT": ""}, "MASTER_PORT: expected it to be set beside RANK and WORLD_SIZE; torchrun sets all"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT: expected a number below 65536, got 'http'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT: expected a number below 65536, got '65536'"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_line(changes, words):
    environment = {name: value for name, value in (ONE_OF_TWO | changes).items() if value is not None}
    with pytest.raises(ValueError, match="expected") as caught:
        launched.is_one_of_several(environment)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "is_one"),
    [
        ({}, False),
        (ONE_OF_TWO, True),
        (ONE_OF_TWO | {"RANK": "1"}, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),  # torchrun with one process
        ({"RANK": "1", "WORLD_SIZE": "2", launched.STORE_FILE: "/a/file"}, True),  # with no address to meet at
    ],
)
def test_a_process_knows_whether_it_is_one_of_several(environment, is_one):
    assert launched.is_one_of_several(environment) == is_one


@pytest.mark.parametrize(("text", "may"), [("", False), ("0", False), ("3", True), ("often", False)])
def test_a_process_knows_whether_it_may_be_started_again(text, may, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", text)
    assert launched.may_start_again() == may


def test_it_is_known_without_torch():
    code = "import sys; from fullstride.distributed.launched import is_one_of_several; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
