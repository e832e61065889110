"""`fullstride memory`: what batches cost, with real processes on a recipe that takes seconds."""

import json

import pytest

from fullstride import cli
from fullstride.bench.memory import benchmark, table
from fullstride.bench.memory.benchmark import Batch
from fullstride.machine import heap

from ...cli.commands import one_line
from ...train.runs import small

NUM_WEIGHTS = 12 * 256 + 256 + 256 * 256 + 256 + 256 * 5 + 5


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """Of the three batches, in fp32, where a gradient has one size."""
    file = tmp_path_factory.mktemp("memory") / "memory.json"
    said: list[str] = []
    config = small(model={"hidden": (256, 256), "dropout": 0.0})
    found = benchmark.run(config, [Batch(64, 1), Batch(128, 1), Batch(64, 2)], file, said.append)
    assert json.loads(file.read_text()) == json.loads(json.dumps(found))
    return found | {"said": said[-1]}


def test_each_batch_has_its_bytes(content):
    assert [batch["name"] for batch in content["batches"]] == ["64", "128", "64 x 2"]
    for batch in content["batches"]:
        assert batch["parameters"] == batch["gradients"] == 4 * NUM_WEIGHTS
        assert batch["peak"] >= batch["before"] > 0
        assert batch["precision"] == "fp32"


@pytest.mark.skipif(heap.in_use() is None, reason="malloc does not tell what it has handed out")
def test_accumulating_takes_the_activations_of_one_micro_batch(content):
    first, twice, in_turns = (batch["activations"] for batch in content["batches"])
    assert in_turns == pytest.approx(first, rel=0.05)
    assert twice == pytest.approx(2 * first, rel=0.05)


def test_the_outcome_is_said_in_words(content):
    assert "64 x 2 against 64: activations the same, gradients the same" in content["said"]
    assert "64 x 2 against 128: activations " in content["said"]


def test_a_batch_whose_process_fails_is_named_and_the_others_measured():
    config = small(data={"name": "mnist", "path": "/nowhere"})
    found = benchmark.measure(config, Batch(8, 1))
    assert found["failed"].startswith("its process ended, exit code 1: ")
    assert "no MNIST in /nowhere" in found["failed"]
    failed = Batch(8, 1)._asdict() | {"name": "8"} | found
    assert table.lines([failed])[1].split() == ["8", *"-------"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", [(16, 1)]), ("16,32,16x2", [(16, 1), (32, 1), (16, 2)]), (" 8 x 4 , 1", [(8, 4), (1, 1)])],
)
def test_batches_are_written_as_people_write_them(text, expected):
    assert list(benchmark.parse(text)) == expected


@pytest.mark.parametrize("text", ["", "0", "16x0", "16,", "x2", "16*2", "-1", "16x2x2", "many"])
def test_batches_that_are_none_are_refused_in_one_line(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["memory", "mlp", f"--batches={text}"])
    assert "argument --batches: expected batches like 16,32,16x2, each from 1 on, got" in one_line(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nlp"], "unknown recipe 'nlp'"),
        (["mlp", "--json", "none/x.json"], "cannot write none/x.json: there is no folder none"),
        (["mlp", "--batch", "3"], "--batch"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys):
    assert cli.main(["memory", *words]) == 2
    assert line in one_line(capsys.readouterr().err)
