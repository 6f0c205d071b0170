"""labkit.base.checks: each check lets through what it is for, and names what it refuses."""

import math

import numpy as np
import pytest

from labkit.base.checks import (
    check_bytes,
    check_counts,
    check_seconds,
    check_whole_bytes,
    check_world_size,
    is_whole,
)

NO_NUMBERS = (True, "1", None, [1], 1j)


@pytest.mark.parametrize("check", [check_seconds, check_bytes, check_whole_bytes])
def test_a_size_or_time_is_a_finite_number_from_0_on(check):
    for value in (0, 3, 3.0, np.int64(3), np.float32(3)):
        check("n", value)
    for value in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"^n is {value!r}, expected a .*, 0 or more"):
            check("n", value)
    for value in NO_NUMBERS:
        with pytest.raises(TypeError, match=r"^n is .*, expected a .*, 0 or more"):
            check("n", value)


def test_half_a_byte_is_refused_only_where_bytes_are_whole():
    check_bytes("n", 0.5)
    with pytest.raises(ValueError, match=r"^n is 0\.5, expected a whole number of bytes"):
        check_whole_bytes("n", 0.5)


def test_a_world_has_a_whole_number_of_ranks_and_a_count_is_an_int():
    check_world_size(1)
    check_world_size(np.int64(2))
    check_counts(n_stages=1, n_micro=8)
    for value, error in ((0, ValueError), (1.5, ValueError), (True, TypeError), ("2", TypeError)):
        with pytest.raises(error, match=r"^world_size is .*, expected a whole number of ranks, 1 or more"):
            check_world_size(value)
    for value, error in ((0, ValueError), (1.0, TypeError), (np.int64(1), TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"^n_micro is .*, expected a whole number, 1 or more$"):
            check_counts(n_stages=1, n_micro=value)


def test_whole_is_a_matter_of_type():
    assert is_whole(2) and is_whole(np.int32(2))
    assert not any(map(is_whole, (2.0, True, "2", None)))
