import pytest

from fullstride.report import words


@pytest.mark.parametrize(
    ("value", "expected"),
    [(12345.6, "12,346"), (45.64, "45.6"), (0.012345, "0.0123"), (1.234e-7, "1.23e-07"), (0, "0"), (999.6, "1,000")],
)
def test_numbers_have_three_digits_that_count(value, expected):
    assert words.significant(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4567, "0.457 s"), (12.34, "12.3 s"), (92, "1 min 32 s"), (3599.7, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_durations_are_read_at_a_glance(seconds, expected):
    assert words.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == expected


def test_accuracies_are_percentages_and_losses_are_not():
    assert words.metric("accuracy", 0.9734) == "97.3\N{NO-BREAK SPACE}%"
    assert words.metric("loss", 0.9734) == "0.973"


def test_energy_has_the_unit_that_suits_it():
    found = [words.energy(joules).replace("\N{NO-BREAK SPACE}", " ") for joules in (12.0, 45_600.0, 7.2e6)]
    assert found == ["12.0 J", "45.6 kJ", "2.00 kWh"]
