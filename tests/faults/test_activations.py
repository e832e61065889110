"""A run whose activations are kept in bf16 is killed: it comes back to the bits of the one that was not."""

import signal

from fullstride.run_folder.folder import RunFolder

from ..train.runs import assert_same_run, losses, small
from .processes import Pause

ROUNDED = small(activations="bf16", model={"hidden": [512, 512]}, checkpoints={"every": 2})  # 8 x 512 are rounded


def test_a_killed_run_resumes_bit_for_bit(commands, run):
    whole, exact = run.with_name("whole"), run.with_name("exact")
    for folder, config in ((whole, ROUNDED), (exact, ROUNDED.replace(activations="same"))):
        code, said = commands.train(folder, config).wait()
        assert code == 0, said
    killed = commands.train(run, ROUNDED, Pause("loss", 11)).until_paused()  # in the middle of the sixth step
    killed.send(signal.SIGKILL)
    assert killed.wait()[0] == -signal.SIGKILL
    again = commands.resume(run, Pause("loss", 3)).until_paused()
    again.send(signal.SIGKILL)
    assert again.wait()[0] == -signal.SIGKILL
    commands.finish(run)
    assert_same_run(run, whole)
    assert "activations: bf16" in RunFolder.read(run).config_yaml
    assert losses(whole) != losses(exact)  # it was rounded
