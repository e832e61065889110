import pytest
from benchmarks import check_ratios
from benchmarks.check_ratios import Key
from benchmarks.result_files import File, Spread

from .made_up import CONDITIONS, DEFAULT, kernel, kernels, ratio, side, step, steps

MACHINE = "some-cpu-avx2"
TORCH = CONDITIONS["torch"]
GLU = Key("kernels", "glu", "fp32 8 x 8", "torch")
MLP = Key("steps", "mlp", "", DEFAULT)
OLD = Spread(2.0, 1.9, 2.1)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (Spread(1.7, 1.6, 1.8), True),
        (Spread(1.7, 1.6, 1.95), False),  # a round of now reaches one of then
        (Spread(1.85, 1.84, 1.86), False),  # below all rounds of then, but by less than a tenth
        (Spread(2.0, 1.9, 2.1), False),
        (Spread(3.0, 2.9, 3.1), False),
    ],
)
def test_a_ratio_fell_if_it_is_a_tenth_lower_and_beyond_its_spread(new, expected):
    assert check_ratios.fell(OLD, new) is expected


def test_without_a_recorded_spread_the_median_stands_for_it():
    assert check_ratios.fell(Spread(2.0), Spread(1.7, 1.6, 1.9))
    assert not check_ratios.fell(Spread(2.0), Spread(1.7, 1.6, 2.05))


def test_kernels_and_steps_of_this_machine_alone_are_committed():
    files = [kernels("glu"), steps(), steps(machine="other-avx2"), kernels("rope", suite="kernels_heap_kept")]
    found, notes = check_ratios.committed(files, MACHINE, 2, TORCH)
    assert found == {
        GLU: Spread(2.0, 1.5, 2.25), Key("kernels_heap_kept", "rope", "fp32 8 x 8", "torch"): Spread(2.0, 1.5, 2.25),
        MLP: Spread(2.5, 1.85, 2.6),
    }  # fmt: skip
    assert notes == {}


def test_the_newest_take_of_a_row_counts():
    old = kernels("glu")
    peer = {"name": "torch", "milliseconds": 4.0, "ratio": {"median": 3.0, "lowest": 2.9, "highest": 3.1}}
    new = kernels(kernel("glu", peers=[peer]), date="2026-11-18 00:00:00 UTC")
    both = File(MACHINE, "kernels", [*new.parts, *old.parts])
    assert check_ratios.committed([both], MACHINE, 2, TORCH)[0] == {GLU: Spread(3.0, 2.9, 3.1)}


def test_results_with_another_number_of_cores_are_named_and_not_compared():
    found, notes = check_ratios.committed([kernels("glu", usable_cores=8)], MACHINE, 2, TORCH)
    assert found == {}
    assert notes == {GLU: "committed with 8 cores, here are 2"}


def test_results_of_another_torch_are_named_and_not_compared():
    found, notes = check_ratios.committed([kernels("glu"), steps(torch="2.12.0+cpu")], MACHINE, 2, TORCH)
    assert list(found) == [GLU]
    assert notes == {MLP: "committed with torch 2.12.0+cpu, here is 2.13.0+cpu"}


def test_our_portable_variant_is_no_peer():
    peers = [{"name": name, "milliseconds": 4.0, "ratio": OLD._asdict()} for name in ("torch", "portable")]
    assert check_ratios.kernel_ratios("kernels", [kernel("glu", peers=peers)]) == {GLU: OLD}


def test_the_portable_variant_has_the_name_that_the_kernel_benchmark_gives_it():
    from fullstride.bench.kernels.row import PORTABLE

    assert check_ratios._PORTABLE == PORTABLE


def test_what_failed_of_ours_is_named_last():
    failed = ["steps mlp: fullstride auto: aborted"]
    outcome = check_ratios.compare({MLP: OLD}, {}, {}, [], failed)
    assert check_ratios.verdict(outcome, {MLP: OLD}, {}, {})[1:] == ["FAILED: steps mlp: fullstride auto: aborted"]


def test_a_step_whose_stock_side_died_is_named():
    best = "stock at its best (fused)"
    row = step() | {
        "sides": [side("fullstride auto", 1.0), side(best, 2.0)], "ratios": [ratio("stock at its best", best, 2, 2, 2)],
    }  # fmt: skip
    found, notes = check_ratios.committed([steps(row)], MACHINE, 2, TORCH)
    assert found == {}
    assert notes == {MLP: "one of the two died when it was taken"}


def test_what_fell_is_named_with_both_spreads():
    old, new, again = {GLU: OLD, MLP: OLD}, {GLU: Spread(1.0, 0.9, 1.1), MLP: OLD}, {GLU: Spread(1.2, 1.1, 1.3)}
    outcome = check_ratios.compare(old, new, again)
    assert outcome.fell == [GLU]
    assert check_ratios.verdict(outcome, old, new, again) == [
        "fell by more than 10% beyond their spread, 1 of 2:",
        "  glu fp32 8 x 8 against torch: 2.00x [1.90..2.10] -> 1.20x [1.10..1.30]",
    ]


def test_what_did_not_fall_again_was_noise():
    new, again = {GLU: Spread(1.0, 0.9, 1.1)}, {GLU: Spread(1.9, 1.8, 2.0)}
    outcome = check_ratios.compare({GLU: OLD}, new, again)
    assert outcome.fell == []
    assert outcome.lines[0].endswith("now 1.90x [1.80..2.00]  fell at first, not again")
    assert check_ratios.verdict(outcome, {GLU: OLD}, new, again)[0].startswith("nothing fell by more than 10%")


def test_rows_of_one_side_alone_are_named():
    lines = check_ratios.compare({GLU: OLD}, {MLP: OLD}, {}, ["rope: nothing is committed"]).lines
    assert lines == [
        "not compared:",
        "  glu fp32 8 x 8 against torch: committed 2.00x [1.90..2.10], not measured now",
        f"  mlp against {DEFAULT}: now 2.00x [1.90..2.10], not committed yet",
        "  rope: nothing is committed",
    ]
