import importlib
import json
import sys
import types
from dataclasses import replace

import pytest
import torch

from fullstride import _native
from fullstride.bench.kernels import benchmark as kernels
from fullstride.bench.kernels import rows, table
from fullstride.bench.kernels.benchmark import MOST_PORTABLE, Peer, Result, peers_of
from fullstride.bench.kernels.row import PORTABLE, Row, forward_backward
from fullstride.bench.measure import Spread
from fullstride.machine import streams


@pytest.fixture
def tiny_stream(monkeypatch):
    """A machine whose bandwidth is that of copying a few bytes: quick, and of no meaning."""
    a, b = torch.ones(2, 16)
    monkeypatch.setattr(streams, "stream", lambda mix: streams.Stream(lambda: a.copy_(b), bytes=128))


@pytest.fixture
def portable():
    """A machine that has no better variant."""
    with _native.use_isa(PORTABLE):
        yield


def result(ratio=2.0, target=None, share=None, target_share=None, **work):
    return Result(
        op="op", case="a case", milliseconds=1.0,
        peers=[Peer("torch", 2.0, Spread(ratio, ratio - 1, ratio + 1), target)],
        gigabytes_per_second=None if share is None else 10.0, mix=None if share is None else "write",
        share_of_bandwidth=None if share is None else Spread(share, share, share), target_share=target_share, **work,
    )  # fmt: skip


def test_a_row_is_measured_against_its_peers_and_the_bandwidth(tiny_stream, portable):
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
    assert measured.left_out == {}


def test_work_becomes_rates_in_units_that_people_know(tiny_stream):
    row = Row("case", lambda: None, {}, bytes=64, mix=None, flops=6000, precision="bf16", parameters=500)
    measured = kernels.measure("op", row, rounds=1, seconds_per_turn=0, peaks={"fp32": 1.0, "bf16": 8.0})
    seconds = measured.milliseconds / 1e3
    assert measured.gflops == pytest.approx(6e-6 / seconds)
    assert measured.share_of_peak == pytest.approx(6e-6 / seconds / 8)
    assert measured.precision == "bf16"
    assert measured.parameters_per_second == pytest.approx(500 / seconds)
    assert measured.gigabytes_per_second == pytest.approx(64e-9 / seconds)
    assert measured.share_of_bandwidth is measured.mix is None  # in the cache


def test_a_machine_without_a_peak_has_no_share_of_it():
    row = Row("case", lambda: None, {}, flops=6000, precision="bf16")
    measured = kernels.measure("op", row, rounds=1, seconds_per_turn=0, peaks={"fp32": 1.0, "bf16": None})
    assert measured.gflops is not None
    assert measured.share_of_peak is None


def test_the_portable_variant_takes_turns_of_its_own():
    if _native.isa() == PORTABLE:
        pytest.skip("there is no other variant here")
    best, seen = _native.isa(), []
    row = Row("case", lambda: seen.append(_native.isa()), {"torch": lambda: seen.append("torch")})
    measured = kernels.measure("op", row, rounds=2, seconds_per_turn=0)
    assert seen == [best, "torch", PORTABLE] * 3  # once to warm up
    assert [peer.name for peer in measured.peers] == ["torch", PORTABLE]
    assert _native.isa() == best


def test_there_is_no_portable_peer_where_nothing_else_runs(portable):
    row = Row("case", lambda: None, {}, left_out={PORTABLE: "the products are torch's"})
    assert peers_of(row) == ({}, {})


def test_large_products_are_left_out_of_the_portable_variant_and_that_is_said():
    if _native.isa() == PORTABLE:
        pytest.skip("there is no other variant here")
    below, above = (Row("case", lambda: None, {}, flops=MOST_PORTABLE + more) for more in (0, 1))
    assert list(peers_of(below)[0]) == [PORTABLE]
    assert peers_of(above) == ({}, {PORTABLE: "more than 20 GFLOP a call"})


def test_the_peak_is_measured_for_rows_with_flops_alone_and_leaves_the_variant(monkeypatch):
    asked = []

    def measure_peaks():
        asked.append(_native.isa())
        _native._bind(PORTABLE)  # as trying the matrix unit may change it
        return {"fp32": 4.0}

    monkeypatch.setattr("fullstride.bench.step.benchmark.measure_peaks", measure_peaks)
    monkeypatch.setattr(rows, "ops", lambda: ["first"])
    given = [Row(str(flops), lambda: None, {}, flops=flops) for flops in (None, 1, 2)]
    module = types.SimpleNamespace(rows=lambda: iter(given))
    monkeypatch.setitem(sys.modules, f"{rows.__name__}.first", module)
    kernels.product_peaks.cache_clear()
    before = _native.isa()
    try:
        found = list(kernels.run(rounds=1))
    finally:
        kernels.product_peaks.cache_clear()
    assert [r.share_of_peak is None for r in found] == [True, False, False]
    assert asked == [before]
    assert _native.isa() == before


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


def test_a_line_tells_rates_in_their_units():
    [line] = table.lines(result(gflops=123.45, precision="bf16", share_of_peak=0.5))
    assert line.endswith(" 123.5 GFLOP/s, 50% of bf16 peak")
    [line] = table.lines(result(share=0.5, parameters_per_second=1.234e9))
    assert line.endswith(" 1.23 G parameters/s; 10.0 GB/s, 50% of write")
    in_cache = replace(result(), gigabytes_per_second=3.0)
    assert table.lines(in_cache)[0].endswith(" 3.0 GB/s")


def test_what_is_left_out_is_named_below():
    lines = table.lines(result(left_out={"portable": "more than 20 GFLOP a call"}))
    assert len(lines) == 2
    assert lines[1].strip() == "portable: left out, more than 20 GFLOP a call"
    assert lines[1].index("portable") == lines[0].index("2.00x")


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
    assert entry["gflops"] is entry["share_of_peak"] is entry["parameters_per_second"] is entry["precision"] is None


def test_json_holds_rates_and_what_was_left_out():
    work = {"gflops": 12.0, "precision": "fp32", "share_of_peak": 0.5, "parameters_per_second": 3e9}
    [entry] = table.as_json({}, [result(**work, left_out={"torch": "slow"})])["results"]
    assert {name: entry[name] for name in work} == work
    assert entry["left_out"] == {"torch": "slow"}


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
    "wrong",
    [
        {"mix": "writ"}, {"targets": {"jax": 2.0}}, {"streaming": True}, {"streaming": True, "bytes": 8, "mix": None},
        {"left_out": {"torch": "slow"}},
    ],
    ids=["mix", "target", "bytes", "in cache", "left out"],
)  # fmt: skip
def test_rows_that_make_no_sense_are_refused(wrong):
    with pytest.raises(AssertionError):
        Row("case", lambda: None, {"torch": lambda: None}, **wrong)
