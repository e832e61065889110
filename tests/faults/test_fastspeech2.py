"""A voice whose training is killed or stopped, in a step, an evaluation and while it is listened to: the same bits."""

import signal

import pytest

from fullstride.recipes.fastspeech2.task import FastSpeech2Task
from fullstride.run_folder import metrics
from fullstride.train.checkpoints.store import Store

from ..recipes.speech_corpus import tiny
from ..train.runs import assert_same_tensors, final, losses
from .processes import Commands, Pause

STEP_4 = 6  # micro-batches before it


@pytest.fixture(scope="session")
def whole(memory_folder):
    """The folder of a run that nothing happened to."""
    output = memory_folder / "voice-output"
    output.mkdir()
    commands = Commands(output)
    code, text = commands.train(memory_folder / "voice", config()).wait()
    commands.close()
    assert code == 0, text
    return memory_folder / "voice"


def config():
    """Six steps of 2 x 4 sentences of 16: three epochs, with dropout. The recogniser is for other tests."""
    return tiny(steps=6, evaluation={"every": 3}, checkpoints={"every": 2, "keep": 9})


def assert_same(run, whole):
    (tensors, documents), (others, other_documents) = final(run), final(whole)
    assert documents == other_documents
    assert_same_tensors(tensors, others)
    assert losses(run) == losses(whole)
    assert scores(run) == scores(whole)
    for name in ("step-000003.wav", "step-000006.wav"):
        assert (run / "samples" / name).read_bytes() == (whole / "samples" / name).read_bytes()


def scores(run):
    rows = [row for row in metrics.read(run) if row["kind"] == "eval"]
    return {row["step"]: [row[name] for name in FastSpeech2Task.metrics] for row in rows}


def test_a_killed_run_resumes_to_the_same_bits(commands, run, whole):
    training = commands.train(run, config(), Pause("loss", STEP_4 + 1, "fastspeech2")).until_paused()
    training.send(signal.SIGKILL)
    assert training.wait()[0] == -signal.SIGKILL
    assert Store(run / "checkpoints").steps() == [2]
    commands.finish(run)
    assert_same(run, whole)


@pytest.mark.parametrize(
    "pause",
    [Pause("loss", STEP_4 - 1, "fastspeech2"), Pause("score", 0, "fastspeech2"), Pause("show", 0, "fastspeech2")],
    ids=["in an accumulation", "in an evaluation", "while it is listened to"],
)
def test_a_stopped_run_resumes_to_the_same_bits(commands, run, whole, pause):
    training = commands.train(run, config(), pause).until_paused()
    training.send(signal.SIGTERM)
    code, text = training.go_on()
    assert code == 143, text
    assert Store(run / "checkpoints").newest().documents["state"]["evaluated"] == 0  # it is done again as a whole
    commands.finish(run)
    assert_same(run, whole)
