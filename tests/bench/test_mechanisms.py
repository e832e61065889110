"""The measurement of what a mechanism earns, with real processes and a tiny model. How much is for it to tell."""

import pytest
from benchmarks import mechanisms, own_sides

from fullstride.bench.step.cases import Case
from fullstride.rewriting import MECHANISMS


@pytest.mark.parametrize("mechanism", ["fusion", "overlap"])
def test_both_sides_train_the_same_and_only_one_has_the_mechanism(mechanism, monkeypatch):
    monkeypatch.setattr(own_sides, "TURN", 0.01)
    row = mechanisms.measure(Case("tiny-llama"), mechanism, rounds=1)
    assert row["mechanism"] == mechanism
    assert row["largest_loss_difference"] < 1e-2  # the same data and weights
    for name in ("all_ms", "without_ms", "gain"):
        assert 0 < row[name]["lowest"] <= row[name]["median"] <= row[name]["highest"]
    assert row["gain"]["median"] == pytest.approx(row["without_ms"]["median"] / row["all_ms"]["median"])


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        mechanisms.main(["--only", "fushion"])
    said = capsys.readouterr().err
    assert all(name in said for name in MECHANISMS)
