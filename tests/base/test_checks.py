"""labkit.base.checks: each check lets through what it is for, and names what it refuses."""

import math

import numpy as np
import pytest

from labkit.base.checks import check_bytes, check_counts, check_seconds, check_whole_bytes, check_world_size

SIZE, RANKS, COUNT = "a .*, 0 or more", "a whole number of ranks, 1 or more", "a whole number, 1 or more$"
NO_NUMBERS = (True, "1", None, [1], 1j)
CHECKS = [
    *((check, (0, 3, 3.0, np.int64(3), np.float32(3)), (-1, math.inf, math.nan), NO_NUMBERS, SIZE)
      for check in (check_seconds, check_bytes, check_whole_bytes)),
    (check_bytes, (0.5,), (), (), SIZE),
    (check_whole_bytes, (), (0.5,), (), "a whole number of bytes"),
    (lambda _, value: check_world_size(value), (1, np.int64(2)), (0, 1.5, 2.0), (True, "2"), RANKS),
    (lambda _, value: check_counts(n_stages=1, n=value), (1, 8), (0,), (1.0, np.int64(1), True), COUNT),
]  # fmt: skip


@pytest.mark.parametrize(("check", "good", "bad", "of_another_type", "expected"), CHECKS)
def test_a_check_lets_through_what_it_is_for_and_names_what_it_refuses(check, good, bad, of_another_type, expected):
    for value in good:
        check("n", value)
    for values, error in ((bad, ValueError), (of_another_type, TypeError)):
        for value in values:
            with pytest.raises(error, match=rf"^(n|world_size) is .*, expected {expected}"):
                check("n", value)
