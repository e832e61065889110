from fractions import Fraction

import pytest

from fullstride.recipes import length
from fullstride.recipes.length import Length

RUN = Length(steps=100, epoch=Fraction(5, 2))  # two and a half steps an epoch


@pytest.mark.parametrize(
    ("every", "due"),
    [
        (30, [30, 60, 90]),
        ("30 steps", [30, 60, 90]),
        ("1 step", list(range(1, 101))),
        ("10 epochs", [25, 50, 75, 100]),
        ("1 epoch", [3, 5, 8, 10, 13, 15, 18, 20]),
        ("0.4 epochs", list(range(1, 101))),
        (0, []),
    ],
)
def test_something_is_due_at_the_first_step_that_ends_its_epochs(every, due):
    found = [step for step in range(101) if RUN.is_due(every, step)]
    assert found[: len(due)] == due
    assert len(found) == RUN.times(every)


def test_epochs_are_as_many_steps_as_it_takes_to_end_them():
    assert length.of_run(None, 3, Fraction(5, 2)).steps == 8
    assert length.of_run(None, 2, Fraction(5, 2)).steps == 5
    assert length.of_run(None, 0.1, Fraction(1, 10)).steps == 1
    assert length.of_run(7, None, None) == Length(7, None)
    assert length.of_run(None, 0.1, Fraction(10)).steps == 1, "0.1 is a tenth, not the float beside it"


def test_data_without_a_length_has_no_epochs():
    with pytest.raises(ValueError, match=r"^epochs: expected steps, as the data has no length, got epochs 3$"):
        length.of_run(None, 3, None)
    with pytest.raises(ValueError, match=r"^x\.every: expected a number of steps, as the data has no length, got '2"):
        Length(9, None).check("x.every", "2 epochs")
    Length(9, None).check("x.every", "2 steps")
    assert Length(9, None).epochs(3) is None


@pytest.mark.parametrize("every", ["often", "5 weeks", "epochs", "-1 epochs", "2.5 steps", "2.5"])
def test_what_says_no_period_is_refused(every):
    assert not length.is_every(every, 0)
    with pytest.raises(ValueError, match="expected a number of steps, or text like"):
        length.parse(every)


def test_a_share_is_of_the_run_and_a_number_is_itself():
    assert (RUN.of(0.25), RUN.of(4000), RUN.of(0)) == (25, 4000, 0)


def test_a_share_is_the_decimal_and_not_the_float_below_it():
    assert Length(100, None).of(0.29) == 29


def test_a_number_as_text_is_one_of_steps():
    assert length.parse("5") == length.parse("5 steps") == (5, False)
