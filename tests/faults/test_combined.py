"""Everything that carries state, in one run, killed again and again: it ends as if nothing had happened."""

import signal

import pytest

from ..train.runs import assert_same_run, small
from .processes import Pause

TOGETHER = {
    "steps": 18,
    "accumulate": 3,
    "model": {"hidden": [16, 16, 16]},
    "optimizer": {"name": "lamb", "lookahead": True, "lookahead_k": 4, "state_precision": "bf16"},
    "freeze": {"enabled": True, "patience": 2, "min_active": 1, "threshold": 0.99, "thaw_every": 7},
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lamb_lookahead_freezing_and_accumulation_survive_kills(commands, run, precision):
    config = small(**TOGETHER, precision=precision)
    whole = run.with_name("whole")
    code, text = commands.train(whole, config).wait()
    assert code == 0, text
    assert ": froze " in (whole / "log.txt").read_text()
    command = commands.train(run, config, Pause("loss", 23)).until_paused()  # in mid-step, behind the first checkpoint
    for number, micro_batch in ((signal.SIGKILL, 13), (signal.SIGTERM, 8), (signal.SIGKILL, None)):
        command.send(number)
        if number == signal.SIGTERM:
            assert command.go_on()[0] == 128 + number
        else:
            command.process.join()
        if micro_batch is not None:
            command = commands.resume(run, Pause("loss", micro_batch)).until_paused()
    commands.finish(run)
    assert_same_run(whole, run)
