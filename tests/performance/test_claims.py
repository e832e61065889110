"""What others claimed: the measurements with few weights, and what is made of their figures."""

import pytest
from benchmarks import claim_runs, claim_tables, claims, figures, render
from benchmarks.claim_runs import figure, row
from benchmarks.result_files import File, part

from fullstride import recipes

from .made_up import CONDITIONS, DEFAULT, kernel, kernels, ratio, side, step, steps

TINY = recipes.mlp().replace(
    steps=4, micro_batch=64, accumulate=1, threads=1, model={"hidden": [256, 256]},
    data={"num_samples": 200, "num_features": 64, "num_classes": 5, "num_valid": 20, "workers": 0},
    logging={"every": 1},
)  # fmt: skip


def measured(*rows, machine="some-cpu-avx2"):
    found = {"conditions": CONDITIONS, "name": "x", "rounds": 3, "results": list(rows)}
    return File(machine, "claims", [part("python -m benchmarks.claims x", found)])


def lines(*files):
    """Of the rendered block, whose figures all are in the results."""
    text = render.rendered("<!-- begin: claims -->\n<!-- end -->", list(files))
    assert figures.problems(text, list(files)) == []
    return text.splitlines()


def answer(start, *files):
    """The cells of the row of the claim that begins so."""
    [found] = [line for line in lines(*files) if line.startswith(f'| "{start}')]
    return found.strip("| ").split(" | ")


# ---- what is shown -------------------------------------------------------------------------------------------------


def test_without_results_every_claim_is_there_and_not_measured_yet():
    found = lines()[4:-2]
    assert len(found) == len(claim_tables.CLAIMS) == 10
    assert all("| not measured yet |" in line for line in found)


def test_a_row_tells_figure_verdict_machine_command_and_commit():
    cells = answer("LayerNorm", measured(row("layer_norm", "8 x 768", rate=figure("GB/s", [4.0, 5.0, 6.0]),
                                             times_as_fast_as_torch=figure("x", [1.5]))))  # fmt: skip
    assert cells[1].endswith("8 x 768: 5.0 GB/s [4.0..6.0], 1.50x torch's")
    assert cells[2] == "**confirmed**"
    assert cells[3] == "Some CPU, AVX2 only, 2 cores"
    assert cells[4] == "`python -m benchmarks.claims x`, 0123456, 2026-11-16"


def test_a_figure_that_no_result_holds_is_found_in_spite_of_the_quotes():
    files = [measured(row("freezing", "mlp", saved=figure("%", [10.0]), accuracy_lost=figure("points", [0.1])))]
    text = render.rendered("<!-- begin: claims -->\n<!-- end -->", files)
    [problem] = figures.problems(text.replace("10.0 % of", "33.0 % of"), files)
    assert problem.startswith("33.0 %, in block 'claims'")


def fusion(*shares):
    rows = [row("fusion", "1 x 2 x 3", bytes_saved=figure("%", [x]), times_as_fast=figure("x", [1.1])) for x in shares]
    return measured(*rows)


def memory(*halves):
    rows = []
    for fp32, bf16 in halves:
        sizes = {"peak_fp32": figure("MiB", [fp32]), "peak_bf16": figure("MiB", [bf16])}
        rows.append(row("bf16_memory", "mlp, 128", **sizes))
    return measured(*rows)


def lamb(*worse):
    losses = {"loss_with_AdamW": figure("nats", [1.0]), "loss_with_LAMB_and_Lookahead": figure("nats", [1.0])}
    return measured(row("lamb", "mlp", held_out_loss_higher_by=figure("nats", worse), **losses))


def saved(*shares):
    return measured(row("freezing", "mlp", saved=figure("%", shares), accuracy_lost=figure("points", [0.25])))


def accumulated(*peaks):
    rows = []
    for one, several in peaks:
        sizes = {"peak_one": figure("MiB", [one]), "peak_several": figure("MiB", [several])}
        rows.append(row("accumulation", "mlp", **sizes))
    return measured(*rows)


def shorter(*shares):
    names = ("shorter_by_both", "shorter_by_overlap", "shorter_by_our_AdamW")
    both = {name: figure("%", shares) for name in names}
    return measured(row("step", "mlp", **both, time_without=figure("ms", [300.0])))


def adam(rate, default, highest=None):
    def peer(name, median, highest=None):
        spread = {"median": median, "lowest": median, "highest": highest or median}
        return {"name": name, "milliseconds": 1.0, "ratio": spread}

    peers = [peer("torch default", default, highest), peer("torch fused", 1.0)]
    case = "AdamW fp32 weights, fp32 states, 49.8 M parameters"
    return kernels(kernel("adam", case, peers=peers, parameters_per_second=rate))


def over(default, best):
    gains = {DEFAULT: default, "stock at its best": best}
    return step() | {"ratios": [ratio(peer, DEFAULT, gain, gain, gain) for peer, gain in gains.items()]}


def speeds(ours, stock):
    row = step() | {"sides": [side("fullstride auto", 128e3 / ours), side(DEFAULT, 128e3 / stock)]}
    return steps(row)


@pytest.mark.parametrize(
    ("start", "file", "verdict"),
    [
        ("fused", fusion(33.3, 48.0), "confirmed"),
        ("fused", fusion(5.6, 48.0), "depends"),
        ("fused", fusion(5.6), "not confirmed here"),
        ("bf16", memory((1000.0, 520.0)), "confirmed"),
        ("bf16", memory((1000.0, 520.0), (1000.0, 800.0)), "depends"),
        ("bf16", memory((1000.0, 800.0)), "not confirmed here"),
        ("freezing", saved(14.0, 16.0, 18.0), "confirmed"),
        ("freezing", saved(9.0, 10.8, 16.0), "not confirmed here"),
        ("2-4x", steps(step(gain=2.5)), "confirmed"),
        ("2-4x", steps(step(gain=2.5), step("bert", gain=1.5)), "depends"),
        ("2-4x", steps(over(2.5, best=1.5)), "depends"),
        ("2-4x", steps(step(gain=1.5)), "not confirmed here"),
        ("150-200", speeds(400.0, 100.0), "confirmed"),
        ("150-200", speeds(400.0, 200.0), "depends"),
        ("150-200", speeds(100.0, 50.0), "not confirmed here"),
        ("AdamW", adam(1.6e9, 6.5), "confirmed"),
        ("AdamW", adam(1.6e9, 3.0), "depends"),
        ("AdamW", adam(1.6e9, 6.0, highest=6.5), "depends"),
        ("AdamW", adam(1.0e9, 3.0), "not confirmed here"),
        ("accumulation", accumulated((1000.0, 1005.0)), "confirmed"),
        ("accumulation", accumulated((1000.0, 1005.0), (800.0, 1000.0)), "depends"),
        ("accumulation", accumulated((800.0, 1000.0)), "not confirmed here"),
        ("LAMB", lamb(-0.2, -0.1), "confirmed, at its default rate, this recipe"),
        ("LAMB", lamb(-0.2, 0.1), "depends, at its default rate, this recipe"),
        ("LAMB", lamb(0.1, 0.2), "not confirmed here, at its default rate, this recipe"),
        ("a step 14 %", shorter(10.0, 14.5, 15.0), "confirmed"),
        ("a step 14 %", shorter(10.0, 11.0, 15.0), "depends"),  # in the best round alone
        ("a step 14 %", shorter(-3.0, 5.0), "not confirmed here"),
    ],
)
def test_the_verdict_follows_from_the_figures(start, file, verdict):
    assert answer(start, file)[2] == f"**{verdict}**"


def test_a_claim_has_a_row_for_each_machine():
    text = "\n".join(lines(fusion(40.0), fusion(5.0)._replace(machine="other-avx2")))
    assert text.count('| "fused Linear+ReLU saves 33 % of traffic" |') == 2


def test_gains_are_told_from_the_smallest_to_the_largest_with_their_models():
    best = "stock at its best"
    fast = step("bert") | {"ratios": [ratio(peer, DEFAULT, 3.0, 2.9, 3.1) for peer in (DEFAULT, best)]}
    cell = answer("2-4x", steps(step(gain=2.5), fast))[1]
    assert "over stock default from 2.50x [1.85..2.60] (mlp) to 3.00x [2.90..3.10] (bert)" in cell


def test_gains_are_told_over_both_ways_to_run_stock():
    cell = answer("2-4x", steps(over(2.5, best=1.5)))[1]
    assert "over stock default 2.50x [2.50..2.50] (mlp), at least twice as fast in 1 of 1" in cell
    assert "over stock at its best 1.50x [1.50..1.50] (mlp), at least twice as fast in 0 of 1" in cell


def test_what_freezing_saves_is_called_counted_work():
    cell = answer("freezing", saved(14.0, 16.0, 18.0))[1]
    assert "16.0 % [14.0..18.0] of the counted work (products that were not done" in cell


# ---- what is measured ----------------------------------------------------------------------------------------------


def test_bytes_of_a_fused_layer_are_counted():
    fused, apart = claims.fusion_bytes(2, 3, 5)
    assert fused == 4 * (6 + 15 + 5 + 10)
    assert apart == fused + 4 * 20


def test_fusion_and_norms_are_measured_with_a_spread():
    [layer] = claims.fusion(2, [(4, 8, 16)])
    [norm] = claims.norms(2, [(8, 16)])
    found = layer["figures"] | norm["figures"]
    assert set(found) == {"bytes saved", "times as fast", "rate", "times as fast as torch"}
    assert all(0 < own["lowest"] <= own["median"] <= own["highest"] for own in found.values())
    assert lines(measured(layer, norm))


def test_a_step_is_measured_with_and_without_overlap_and_our_adam(monkeypatch, quiet):
    from fullstride.ops.linear import overlaps_weight_grads

    [found] = claims.steps(1, "tiny", seconds_per_turn=0.01)
    assert list(found["figures"]) == ["shorter by overlap", "shorter by our AdamW", "shorter by both", "time without"]
    assert not overlaps_weight_grads()
    assert answer("a step", measured(found))


def test_memory_is_that_of_processes_in_both_precisions_and_with_accumulation():
    rows = claim_runs.memory(1, {"mlp": TINY})
    assert [own["claim"] for own in rows] == ["bf16_memory", "accumulation", "accumulation"]
    sizes = rows[0]["figures"]
    assert sizes["gradients bf16"]["median"] < 0.6 * sizes["gradients fp32"]["median"]
    assert 0 < sizes["grown fp32"]["median"] < sizes["peak fp32"]["median"]
    summed = rows[2]["figures"]
    assert rows[2]["case"] == "mlp in bf16, 128 x 4 against 128"
    assert summed["gradients several"]["median"] > summed["gradients one"]["median"]
    assert lines(measured(*rows))


def test_runs_differ_in_freezing_and_in_the_optimizer_alone(quiet):
    frozen, lamb = claim_runs.training([0, 1], TINY)
    assert frozen["case"] == "mlp, 4 steps, 2 seeds"
    assert frozen["figures"]["saved"]["median"] == 0.0  # nothing freezes in four steps
    assert frozen["figures"]["accuracy lost"]["median"] == 0.0  # so both runs are one
    assert lamb["case"].endswith("rates 0.0003 (AdamW) and 0.01 (LAMB)")
    assert lamb["figures"]["held out loss higher by"]["lowest"] != 0.0
    assert lines(measured(frozen, lamb))


def test_an_unknown_claim_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        claims.main(["memories"])
    assert "invalid choice: 'memories'" in capsys.readouterr().err
