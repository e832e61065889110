"""A CLIP whose training is killed or stopped, in a step, in an evaluation and while it mines: the same bits."""

import signal

import pytest

from fullstride.recipes.clip.task import ClipTask
from fullstride.run_folder import metrics
from fullstride.train.checkpoints.store import Store

from ..recipes.tiny_clip import tiny
from ..train.runs import assert_same_tensors, final, losses
from .processes import Commands, Pause


def config():
    """Eight steps of 2 x 4 pairs of 24, with hard captions, and with mined ones from step 3 on."""
    return tiny(
        steps=8, micro_batch=4, accumulate=2, model={"dropout": 0.1},
        negatives={"hard": 0.5, "mined": 1.0, "pool": 24}, optimizer={"lr": 1e-2},
        evaluation={"every": 3}, checkpoints={"every": 2, "keep": 9, "background": False},
    )  # fmt: skip


STEP_4, STEP_6 = 6, 10  # micro-batches before them


def in_clip(where, number):
    return Pause(where, number, "clip")


@pytest.fixture(scope="session")
def whole(memory_folder):
    """The folder of a run that nothing happened to."""
    output = memory_folder / "clip-output"
    output.mkdir()
    commands = Commands(output)
    code, text = commands.train(memory_folder / "clip", config()).wait()
    commands.close()
    assert code == 0, text
    return memory_folder / "clip"


def rows(run, kind):
    return [row for row in metrics.read(run) if row["kind"] == kind]


def scores(run):
    return {row["step"]: [row[name] for name in ClipTask.metrics] for row in rows(run, "eval")}


def mined(run):
    """The last word on each step: what was done again is told again."""
    return {row["step"]: row["captions"] for row in rows(run, "event") if row["event"] == "mined"}


def assert_same(run, whole):
    (tensors, documents), (others, other_documents) = final(run), final(whole)
    assert documents == other_documents
    assert_same_tensors(tensors, others)
    assert losses(run) == losses(whole)
    assert scores(run) == scores(whole)
    assert mined(run) == mined(whole)


def test_mined_captions_are_trained_on_and_saved_here(whole):
    """Or the tests below would say less than they seem to."""
    assert min(mined(whole).values()) > 0
    store = Store(whole / "checkpoints")
    saved = {step: store.load(store.path(step)).documents for step in (2, 8)}
    assert saved[2]["state"]["data"]["mined"] == []
    assert len(saved[8]["state"]["data"]["mined"]) == mined(whole)[max(mined(whole))]


@pytest.mark.parametrize(
    ("pause", "saved"),
    [
        (in_clip("loss", STEP_6 + 1), [2, 4]), (in_clip("score", 1), [2]), (in_clip("show", 1), [2, 4]),
    ],
    ids=["in a step with mined captions", "in an evaluation", "while it mines again"],
)  # fmt: skip
def test_a_killed_run_resumes_to_the_same_bits(commands, run, whole, pause, saved):
    training = commands.train(run, config(), pause).until_paused()
    training.send(signal.SIGKILL)
    assert training.wait()[0] == -signal.SIGKILL
    assert Store(run / "checkpoints").steps() == saved
    commands.finish(run)
    assert_same(run, whole)


@pytest.mark.parametrize(
    "pause",
    [in_clip("loss", STEP_4 - 1), in_clip("show", 0)],
    ids=["in an accumulation", "while it mines"],
)
def test_a_stopped_run_resumes_to_the_same_bits(commands, run, whole, pause):
    training = commands.train(run, config(), pause).until_paused()
    training.send(signal.SIGTERM)
    code, text = training.go_on()
    assert code == 143, text
    assert Store(run / "checkpoints").newest().documents["state"]["evaluated"] == 0  # it is done again as a whole
    commands.finish(run)
    assert_same(run, whole)
