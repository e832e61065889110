import logging
import re

import pytest

from fullstride.train.progress.terminal import COMMON, set_up_logging

from .. import processes

package = logging.getLogger("fullstride")
logger = logging.getLogger("fullstride.train.somewhere")


@pytest.fixture
def log(tmp_path):
    """The file that is logged to during the test."""
    undo = set_up_logging(tmp_path / "log.txt")
    yield tmp_path / "log.txt"
    undo()


def test_lines_go_to_standard_error_and_to_the_file(log, capsys):
    logger.info("step %d", 1)
    logger.warning("careful")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.sub(r"\d\d:\d\d:\d\d", "TIME", err) == "TIME step 1\nTIME warning: careful\n"
    lines = [re.sub(r"^[\d-]{10} [\d:,]{12}", "TIME", line) for line in log.read_text().splitlines()]
    assert lines == ["TIME INFO    step 1", "TIME WARNING careful"]


def test_another_process_says_its_name_and_leaves_what_all_come_to_to_the_first(tmp_path, capsys):
    undo = set_up_logging(tmp_path / "log.txt", quiet=True, name="rank 1 on beta")
    logger.warning("slow disk")
    logger.warning("short run", extra=COMMON)
    undo()
    assert re.sub(r"\d\d:\d\d:\d\d", "TIME", capsys.readouterr().err) == "TIME warning: rank 1 on beta: slow disk\n"
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_quiet_leaves_warnings_and_the_file(tmp_path, capsys):
    undo = set_up_logging(tmp_path / "log.txt", quiet=True)
    logger.info("step 1")
    logger.warning("careful")
    undo()
    assert "step 1" not in (err := capsys.readouterr().err)
    assert "careful" in err
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_the_file_is_added_to(tmp_path):
    for number in range(2):
        undo = set_up_logging(tmp_path / "log.txt", quiet=True)
        logger.info("attempt %d", number)
        undo()
    assert [line[-9:] for line in (tmp_path / "log.txt").read_text().splitlines()] == ["attempt 0", "attempt 1"]


def test_undone_it_leaves_logging_as_it_was(tmp_path):
    before = (package.level, package.propagate, list(package.handlers))
    undo = set_up_logging(tmp_path / "log.txt")
    assert (package.level, package.propagate, list(package.handlers)) != before
    undo()
    assert (package.level, package.propagate, list(package.handlers)) == before


def test_a_script_that_logs_to_the_screen_itself_sees_no_line_twice(log, capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, logging.StreamHandler()])
    logger.warning("careful")
    assert capsys.readouterr().err.count("careful") == 1


def test_a_full_disk_is_said_once_and_stops_nothing(capsys):
    undo = set_up_logging("/dev/full")
    logger.info("one")
    logger.info("two")
    undo()
    lines = [line[9:] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["one", "warning: cannot write /dev/full: No space left on device", "two"]


def test_a_wrong_format_stops_nothing():
    code = """
import logging
from fullstride.train.progress.terminal import set_up_logging
set_up_logging(None)
logging.getLogger("fullstride").info("%d", "one")
print("going on")
"""
    out, err = processes.start(code).communicate()
    assert out == "going on\n"
    assert "--- Logging error ---" in err


def test_nobody_who_reads_stops_nothing():
    code = """
import logging, os
from fullstride.train.progress.terminal import set_up_logging
set_up_logging(None)
read, write = os.pipe()
os.dup2(write, 2)
os.close(read)
logging.getLogger("fullstride").info("is anybody there?")
print("going on")
"""
    assert processes.start(code).communicate()[0] == "going on\n"
