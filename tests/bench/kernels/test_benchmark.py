import importlib
import json

import pytest
import torch

from fullstride.bench.kernels import benchmark as kernels
from fullstride.bench.kernels import rows, table
from fullstride.bench.kernels.benchmark import Peer, Result
from fullstride.bench.kernels.row import Row, forward_backward
from fullstride.bench.measure import Spread
from fullstride.machine import streams


@pytest.fixture
def tiny_stream(monkeypatch):
    """A machine whose bandwidth is that of copying a few bytes: quick, and of no meaning."""
    a, b = torch.ones(2, 16)
    monkeypatch.setattr(streams, "stream", lambda mix: streams.Stream(lambda: a.copy_(b), bytes=128))


def result(ratio=2.0, target=None, share=None, target_share=None):
    return Result(
        op="op", case="a case", milliseconds=1.0,
        peers=[Peer("torch", 2.0, Spread(ratio, ratio - 1, ratio + 1), target)],
        gigabytes_per_second=None if share is None else 10.0, mix=None if share is None else "write",
        share_of_bandwidth=None if share is None else Spread(share, share, share), target_share=target_share,
    )  # fmt: skip


def test_a_row_is_measured_against_its_peers_and_the_bandwidth(tiny_stream):
    calls = {"ours": 0, "torch": 0, "other": 0}

    def side(name):
        def run():
            calls[name] += 1

        return run

    peers = {"torch": side("torch"), "other": side("other")}
    row = Row("case", side("ours"), peers, bytes=64, targets={"torch": 1.5}, mix="update")
    measured = kernels.measure("op", row, rounds=3, seconds_per_turn=0)
    assert calls == {"ours": 4, "torch": 4, "other": 4}
    assert [(peer.name, peer.target) for peer in measured.peers] == [("torch", 1.5), ("other", None)]
    assert measured.gigabytes_per_second == pytest.approx(64 / measured.milliseconds / 1e6)
    assert measured.mix == "update"
    assert measured.share_of_bandwidth is not None


def test_a_row_without_bytes_has_no_share():
    measured = kernels.measure("op", Row("case", lambda: None, {}), rounds=1, seconds_per_turn=0)
    assert measured.share_of_bandwidth is measured.gigabytes_per_second is measured.mix is None


def test_targets_are_met_or_missed():
    assert result(2.0, target=2.0).peers[0].met is True
    assert result(1.9, target=2.0).peers[0].met is False
    assert result(1.9).peers[0].met is None
    assert result(share=0.85, target_share=0.85).met_share is True
    assert result(share=0.84, target_share=0.85).met_share is False
    assert result(share=0.84).met_share is None


def test_missed_targets_are_named():
    results = [result(3.0, 2.0), result(1.5, 2.0), result(share=0.5, target_share=0.85)]
    assert table.missed(results) == [
        "op, a case: 1.50x [0.50..2.50] torch, target 2x",
        "op, a case: 50% of write bandwidth, target 85%",
    ]


def test_a_line_tells_time_ratio_target_and_share():
    [line] = table.lines(result(1.5, 2.0, share=0.5, target_share=0.85))
    assert "a case" in line
    assert "1.000 ms  1.50x [0.50..2.50] torch  target 2x MISSED" in line
    assert "10.0 GB/s, 50% of write  target 85% MISSED" in line


def test_json_holds_everything():
    content = json.loads(json.dumps(table.as_json({"cpu": "x"}, [result(1.5, 2.0, share=0.9, target_share=0.85)])))
    assert content["conditions"] == {"cpu": "x"}
    [entry] = content["results"]
    assert entry["peers"][0] == {
        "name": "torch", "milliseconds": 2.0, "ratio": {"median": 1.5, "lowest": 0.5, "highest": 2.5},
        "target": 2.0, "met": False,
    }  # fmt: skip
    assert (entry["share_of_bandwidth"]["median"], entry["target_share"], entry["met_share"]) == (0.9, 0.85, True)
    assert len(content["missed"]) == 1


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no kernel rows named layer_nrom; there are: .*layer_norm"):
        rows.check_names(["layer_nrom", "layer_norm"])


def test_forward_backward_runs_both():
    x = torch.ones(3, requires_grad=True)
    gradients = forward_backward(lambda x: x * x, x, gradient=torch.full((3,), 5.0))()
    assert torch.equal(gradients[0], torch.full((3,), 10.0))


@pytest.mark.parametrize("op", rows.ops())
def test_every_file_of_rows_can_be_loaded(op):
    module = importlib.import_module(f"fullstride.bench.kernels.rows.{op}")
    assert callable(module.rows)


@pytest.mark.parametrize(
    "wrong", [{"mix": "writ"}, {"targets": {"jax": 2.0}}, {"streaming": True}], ids=["mix", "target", "bytes"]
)
def test_rows_that_make_no_sense_are_refused(wrong):
    with pytest.raises(AssertionError):
        Row("case", lambda: None, {"torch": lambda: None}, **wrong)
