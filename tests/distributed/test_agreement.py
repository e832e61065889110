"""What all processes must have in common is looked at before the first step, and told alike in all of them."""

import logging
import os

import pytest

from fullstride.distributed import agreement
from fullstride.distributed.world import World
from fullstride.train.trainer import Trainer

from . import training
from .processes import together

HOST = os.uname().nodename
EMPTY: dict[str, str] = {}


class Kept(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def check(world: World, of_rank):
    """(what it ended by, what was warned of); facts of one process are changed."""
    kept = Kept()
    logging.getLogger("fullstride").addHandler(kept)
    said = None
    try:
        agreement.check(world, agreement.facts("recipe: mlp", resumes=False) | of_rank.get(world.rank, EMPTY))
    except ValueError as error:
        said = str(error)
    return said, kept.lines


@pytest.mark.parametrize(
    ("name", "other", "advice"),
    [
        ("fullstride", "0.0.9", "install the same version everywhere"),
        ("source", "abcdef123456", "check out the same commit everywhere"),
        ("torch", "2.4.0", "install the same version everywhere"),
        ("config", "0123456789ab", "start every host with the same command"),
        ("resumes", "goes on with a run", "give every host the same command; a run folder is needed on the first"),
    ],
)
def test_what_differs_is_told_alike_in_all_with_both_ranks(name, other, advice):
    found = together(3, check, {2: {name: other}})
    assert len(set(said for said, _ in found)) == 1
    line = found[0][0]
    assert line is not None
    assert line.startswith(f"expected the same {name} in all processes, got ")
    assert f" in rank 0 on {HOST} and {other} in rank 2 on {HOST}; {advice}" in line
    assert "\n" not in line


def test_the_first_process_may_be_the_other_one():
    (said, _), (others, _) = together(2, check, {0: {"torch": "2.4.0"}})
    assert said == others
    assert said.startswith(f"expected the same torch in all processes, got 2.4.0 in rank 0 on {HOST} and ")


def test_processes_that_are_alike_have_nothing_to_say():
    assert together(2, check, {}) == [(None, [])] * 2


def test_other_cpus_are_named_by_the_first_process_alone():
    own, other, another = ({"cpu": f"CPU {kind}"} for kind in "ABA")
    kinds = "CPU A (2 processes), CPU B (1 processes)"
    (said, lines), *others = together(3, check, {0: own, 1: other, 2: another})
    assert (said, lines) == (None, [f"processes differ in cpu: {kinds}; the slowest sets the pace"])
    assert others == [(None, [])] * 2


def rounds(world: World, of_rank):
    """Whether it is known that processes may round otherwise."""
    return agreement.check(world, agreement.facts("recipe: mlp", resumes=False) | of_rank.get(world.rank, EMPTY))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"cpu": "another"}, True), ({"instructions": "avx2 of old"}, True), ({"python": "3.9"}, False)],
)
def test_other_cpus_and_instructions_may_round_otherwise(changes, expected):
    assert together(2, rounds, {1: changes}) == [expected] * 2


def agree_on_precision(world: World, wishes):
    return agreement.precision(world, wishes[world.rank])


@pytest.mark.parametrize(("wishes", "agreed"), [(["bf16", "bf16"], "bf16"), (["bf16", "fp32"], "fp32")])
def test_all_train_in_what_is_fast_everywhere(wishes, agreed):
    assert together(2, agree_on_precision, wishes) == [agreed] * 2


def train_on_other_cpus(world: World, run):
    describe = agreement.facts

    def facts(*arguments):
        return describe(*arguments) | {"cpu": f"CPU {world.rank}"}

    agreement.facts = facts
    return training.fit(world, training.mlp(steps=2), run)


def test_a_run_on_other_cpus_goes_on(tmp_path):
    run = tmp_path / "run"
    together(2, train_on_other_cpus, run)
    assert sorted(training.rows(run)) == [1, 2]


def ends(world: World, make, *arguments):
    with pytest.raises(ValueError, match="expected the same") as caught:
        make(world, *arguments).fit()
    return str(caught.value)


def with_own_text(world: World, folder, run):
    """Of each process, in a folder of its own, as on hosts that were given other files."""
    own = folder / str(world.rank)
    own.mkdir()
    config = training.llama(own)
    if world.rank:
        (own / "text.txt").write_text("the queen went out, and the king\nwent in.\n" * 20)
    return Trainer(config, run)


def test_other_data_are_told_before_a_folder_is_made(tmp_path):
    run = tmp_path / "run"
    one, other = together(2, ends, with_own_text, tmp_path, run)
    assert one == other
    assert one.startswith("expected the same data in all processes, got ")
    assert f" in rank 0 on {HOST} and " in one
    assert one.endswith(f" in rank 1 on {HOST}; give every host the same files")
    assert not run.exists()


def resumes_in_one(world: World, run, rank):
    if world.rank == rank:
        return Trainer.resume(run)
    return Trainer(training.mlp(steps=2), run)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_resumes_and_one_that_begins_are_told(rank, tmp_path):
    run = training.train(1, training.mlp(steps=2), tmp_path / "run")
    one, other = together(2, ends, resumes_in_one, run, rank)
    assert one == other
    assert "expected the same resumes in all processes" in one
