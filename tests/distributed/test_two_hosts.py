"""Two hosts, as network namespaces, train together by torchrun; their link is cut, restored and slow."""

import contextlib
import sys
from pathlib import Path

import pytest

from fullstride.recipes import config_files
from fullstride.run_folder.metrics import read
from fullstride.train.checkpoints.store import Store

from ..patience import PATIENCE, wait_until
from ..train.runs import assert_same_tensors, final, losses
from . import hosts, training
from .training import train

pytestmark = hosts.needs_hosts
PORT = "29400"
ROOT = Path(__file__).parents[2]


def start(host, node, config, run, first, env=None, command="fullstride", more=()):
    """torchrun on one host. more: options of its own."""
    file = run.with_name(f"{run.name}-{node}.yaml")
    file.write_text(config_files.to_yaml(config))
    words = [
        "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 1,
        "--master-addr", first.address, "--master-port", PORT, *more,
        "-m", *command.split(), "train", "--config", file, "--folder", run if node == 0 else run.with_name("elsewhere"),
        "--no-report", "--quiet",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
    with run.with_name(f"output-{node}").open("w") as output:
        return host.start(command, env=env, stdout=output, stderr=output, cwd=ROOT)


def has_rows(run):
    return (run / "metrics.jsonl").exists() and bool(training.rows(run))


def said(run):
    return [run.with_name(f"output-{node}").read_text() for node in (0, 1)]


def end(processes):
    return [process.wait(PATIENCE) for process in processes]


@contextlib.contextmanager
def two(run, configs, **options):
    with hosts.network(2) as pair:
        yield pair, [start(host, node, configs[node], run, pair[0], **options) for node, host in enumerate(pair)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two processes of this machine."""
    return train(2, training.mlp(), tmp_path_factory.mktemp("whole") / "run")


def test_two_hosts_train_as_two_processes_of_one(whole, tmp_path):
    run = tmp_path / "run"
    with two(run, [training.mlp()] * 2) as (pair, processes):
        assert end(processes) == [0, 0], said(run)
        counted = sum(row["ranks"][0]["sent_mb"] for row in training.rows(run).values())
        assert pair[0].sent_bytes() / 1e6 > counted > 0
    assert_same_tensors(final(whole)[0], final(run)[0])
    assert losses(whole) == losses(run)
    assert not run.with_name("elsewhere").exists()  # a run is one folder, on the first host


def test_a_link_that_is_cut_and_restored_costs_time_alone(whole, tmp_path):
    run = tmp_path / "run"
    with two(run, [training.mlp()] * 2) as (pair, processes):
        pair[1].shape(mbit=0.5)  # so that it takes a while
        wait_until(lambda: has_rows(run) or processes[0].poll() is not None)
        pair[1].cut()
        sent = pair[0].sent_bytes()
        wait_until(lambda: pair[0].sent_bytes() > sent + 200)  # TCP tries again
        steps = len(training.rows(run))
        pair[1].restore()
        pair[1].unshape()
        assert end(processes) == [0, 0], said(run)
    assert steps < training.STEPS
    assert_same_tensors(final(whole)[0], final(run)[0])


def test_a_link_that_stays_cut_ends_the_run_with_a_word_and_what_it_had(tmp_path):
    run = tmp_path / "run"
    config = training.mlp(steps=100_000, distributed={"timeout": 20.0})
    with two(run, [config] * 2) as (pair, processes):
        saved = run / "checkpoints"
        wait_until(lambda: (saved.exists() and bool(Store(saved).steps())) or processes[0].poll() is not None)
        pair[1].cut()
        assert 0 not in end(processes)
    assert "lost another process" in said(run)[0]
    newest = Store(saved).newest()
    assert newest is not None
    assert newest.step >= 25


def test_hosts_with_another_config_are_told_before_the_first_step(tmp_path):
    run = tmp_path / "run"
    with two(run, [training.mlp(), training.mlp(seed=4)]) as (_, processes):
        assert 0 not in end(processes)
    for text in said(run):
        assert "expected the same config in all processes" in text
        assert "start every host with the same command" in text
    assert not (run / "metrics.jsonl").exists()


def test_hosts_with_another_version_of_the_code_are_told(tmp_path):
    run = tmp_path / "run"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other_version.py").write_text(
        "import sys\nfrom fullstride import _source, cli\n_source.commit = lambda: 'abcdef123456'\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    with hosts.network(2) as pair:
        env = {"PYTHONPATH": str(tmp_path / "other")}
        commands = ("fullstride", "other_version")
        processes = [
            start(host, node, training.mlp(), run, pair[0], env=env, command=commands[node])
            for node, host in enumerate(pair)
        ]
        assert 0 not in end(processes)
    assert all("expected the same source in all processes" in text and "abcdef123456" in text for text in said(run))


def test_hosts_that_compute_in_other_precisions_agree_on_fp32_and_say_so(tmp_path):
    run = tmp_path / "run"
    config = training.mlp(precision="auto", steps=3)
    with hosts.network(2) as pair:
        wishes = ("bf16", "fp32")
        processes = [
            start(host, node, config, run, pair[0], env={"FULLSTRIDE_PRECISION": wishes[node]})
            for node, host in enumerate(pair)
        ]
        assert end(processes) == [0, 0], said(run)
    assert "precision: fp32 for all, as bf16 is not faster everywhere: not in rank 1 on" in said(run)[0]
    assert final(run)[1]["state"]["environment"]["precision"] == "fp32"


def test_slow_links_are_shown_as_waiting(tmp_path):
    run = tmp_path / "run"
    with two(run, [training.mlp(steps=10)] * 2) as (pair, processes):
        pair[1].shape(delay_ms=10)
        assert end(processes) == [0, 0], said(run)
    # What one has must come to the other, and the sum come back.
    assert all(rank["wait"] >= 0.020 for rank in training.rows(run)[10]["ranks"])


@pytest.mark.parametrize("rank", [1, 0])
def test_a_process_killed_on_one_host_brings_the_run_back_on_both_by_itself(rank, whole, tmp_path):
    run = tmp_path / "run"
    config = training.mlp(checkpoints={"every": 5})
    command = f"tests.distributed.killing allreduce {rank} 12"
    with two(run, [config] * 2, command=command, more=["--max-restarts", 1]) as (_, processes):
        assert end(processes) == [0, 0], said(run)
    assert_same_tensors(final(whole)[0], final(run)[0])
    assert losses(whole) == losses(run)
    starts = [row for row in read(run) if row["kind"] == "event" and row["event"] == "start"]
    assert len(starts) == 2
