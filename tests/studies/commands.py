"""What every command that leaves a study does when it is refused or stopped."""

import signal

from fullstride import cli

from ..cli.commands import one_line
from ..faults.processes import last_line


def refusal(capsys, folder, *words):
    """The one line of a command that ends with exit code 2 and leaves no folder."""
    code: object
    try:
        code = cli.main([*words, "--to", str(folder)])
    except SystemExit as ended:  # the parser's
        code = ended.code
    assert code == 2
    assert not folder.exists()
    return one_line(capsys.readouterr().err)


def assert_stopped(command, number, folder, num_parts):
    """By this signal, with so many parts kept; SIGKILL leaves no time to say so."""
    command.send(number)
    code, text = command.wait()
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 128 + number
        line = f"stopped by {number.name}; {num_parts} parts are kept in {folder}: the same command goes on"
        assert last_line(text) == f"fullstride: {line}"
