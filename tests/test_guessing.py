"""P_crt: the design's figures to all digits, and each count compared with an enumeration."""

import itertools
import math
from fractions import Fraction

import pytest

from feddig.privacy.accounting import (
    VALUES,
    guess_digest,
    guess_element,
    ordered_count,
    paper_bound,
    uniform_count,
)

SMALL = [(samples, values) for samples in (1, 2, 3, 4, 5) for values in (2, 3, 5, 7)]


def ways(samples: int, total: int, largest: int) -> int:
    """Count the tuples of numbers from 0 to `largest` that add up to `total`, one by one."""
    return sum(sum(numbers) == total for numbers in itertools.product(range(largest + 1), repeat=samples))


def exact_ordered(samples: int, values: int) -> Fraction:
    """The paper's sum, with exact fractions: the mean of 1 / C(SpD + V - 1, V) over V = 1..I."""
    return sum(
        (Fraction(1, math.comb(samples + total - 1, total)) for total in range(1, values + 1)), Fraction()
    ) / Fraction(values)


# --- the design's figures


def test_the_figures_of_the_design() -> None:
    assert f"{paper_bound(2**32):.8f}" == "-8.27582719"
    assert f"{ordered_count(4, 2**8):.8f}" == "-2.70930896"
    assert f"{ordered_count(8, 2**16):.8f}" == "-5.59463118"
    assert f"{uniform_count(4, 2**32):.8f}" == "-28.29681959"


def test_the_papers_rounded_figure_for_a_digest_lies_just_above_the_bound() -> None:
    rounded = 256 * math.log10(22.8 / 2**32)
    assert f"{rounded:.4f}" == "-2118.4064"
    bound = guess_digest(4, 256).paper
    assert bound is not None
    assert f"{bound:.4f}" == "-2118.6118"
    assert bound < rounded


# --- what is counted


@pytest.mark.parametrize(("samples", "values"), SMALL)
def test_the_ordered_count_by_enumeration(samples: int, values: int) -> None:
    """V is uniform over 1..I; of all ordered ways to sum to V with numbers from 0 on, one is right."""
    counted = sum(Fraction(1, ways(samples, total, total)) for total in range(1, values + 1)) / values
    assert counted == exact_ordered(samples, values)
    assert ordered_count(samples, values) == pytest.approx(math.log10(counted), abs=1e-13)


@pytest.mark.parametrize(("samples", "values"), SMALL)
def test_the_uniform_count_by_enumeration(samples: int, values: int) -> None:
    """An attacker who sees the sum guesses any tuple with that sum; count the correct guesses."""
    named: dict[int, tuple[int, ...]] = {}
    everything = list(itertools.product(range(values), repeat=samples))
    for numbers in everything:
        named.setdefault(sum(numbers), numbers)
    right = sum(named[sum(numbers)] == numbers for numbers in everything)
    assert right == samples * (values - 1) + 1
    assert uniform_count(samples, values) == pytest.approx(
        math.log10(Fraction(right, len(everything))), abs=1e-13
    )


@pytest.mark.parametrize("values", [2, 3, 5, 7, 100])
@pytest.mark.parametrize("samples", [3, 4, 8])
def test_the_papers_bound_lies_above_its_own_count(samples: int, values: int) -> None:
    harmonic = math.log10(sum(Fraction(1, total) for total in range(1, values + 1)) / values)
    assert ordered_count(samples, values) <= harmonic
    # ln I + gamma + 1/2I is a little more than the harmonic number, by at most 1/12I^2
    assert 0 <= paper_bound(values) - harmonic < 1 / (12 * values**2)


def test_from_three_samples_on_there_are_at_least_v_ways_in_any_order_and_with_two_there_are_fewer() -> None:
    """Count unordered ways to write V as a sum, which shows why the bound starts at SpD 3."""

    def unordered(samples: int, total: int) -> int:
        numbers = itertools.combinations_with_replacement(range(total + 1), samples)
        return sum(sum(each) == total for each in numbers)

    assert all(unordered(3, total) >= total for total in range(1, 40))
    assert unordered(2, 3) < 3


# --- where the bound ends


@pytest.mark.parametrize("samples", [1, 2])
def test_below_three_samples_there_is_no_bound_and_it_says_why(samples: int) -> None:
    guess = guess_digest(samples, 256)
    assert guess.paper is None
    assert guess.without_bound.startswith(f"the paper's bound holds from SpD 3; at SpD {samples} ")
    assert guess_element(3).without_bound == ""


def test_one_sample_is_no_secret() -> None:
    guess = guess_digest(1, 256)
    assert (guess.ordered, guess.uniform) == (0.0, 0.0)


def test_every_guess_states_its_assumptions() -> None:
    text = " ".join(guess_digest(4, 256).assumptions)
    for word in ("independent", "noise", "every element", "candidate images", "4,294,967,296 values"):
        assert word in text


@pytest.mark.parametrize(("samples", "values"), [(0, 8), (4, 1)])
def test_nothing_is_guessed_of_nothing(samples: int, values: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        guess_element(samples, values)


# --- large numbers


@pytest.mark.parametrize("samples", [2, 3, 4, 8, 64, 65, 66, 67, 70, 200, 5000])
@pytest.mark.parametrize("values", [2, 10, 99, 100, 101, 500])
def test_the_ordered_count_is_right_to_the_last_digits(samples: int, values: int) -> None:
    exact = exact_ordered(samples, values)
    # use logarithms of integers, because the fraction may have thousands of digits
    expected = math.log10(exact.numerator) - math.log10(exact.denominator)
    assert ordered_count(samples, values) == pytest.approx(expected, rel=1e-13, abs=1e-12)


def test_two_samples_of_all_32_bit_values() -> None:
    """H_{I+1} - 1 lies between the integrals of 1/x from 2 to I+2 and from 1.5 to I+1.5 (convexity)."""
    found = 10 ** ordered_count(2, VALUES) * VALUES
    assert math.log((VALUES + 2) / 2) < found < math.log((VALUES + 1.5) / 1.5)
    assert found == pytest.approx(math.log(VALUES) + 0.5772156649015329 - 1 + 1.5 / VALUES, rel=1e-12)


@pytest.mark.parametrize("samples", [3, 1024, 10**6, 2**63 - 1])
def test_many_samples_of_all_32_bit_values(samples: int) -> None:
    """With this many values the second term vanishes, which leaves 1 / (I (SpD - 2))."""
    guess = guess_element(samples)
    assert guess.ordered == pytest.approx(-math.log10(VALUES) - math.log10(samples - 2), rel=1e-9)
    assert guess.uniform == pytest.approx(math.log10(samples) - (samples - 1) * math.log10(VALUES), rel=1e-9)
    assert guess.paper == paper_bound(VALUES)


def test_a_digest_is_as_many_guesses_as_it_has_elements() -> None:
    element, digest = guess_element(4), guess_digest(4, 256)
    assert element.paper is not None
    assert digest.paper == 256 * element.paper
    assert digest.ordered == 256 * element.ordered
    assert digest.uniform == 256 * element.uniform
