"""A slice of `scripts/fuzz`, the same in every run: many clients at once before engines that break."""

from collections import Counter

import pytest

from fuzz import storm


@pytest.mark.parametrize("seed", range(2))
def test_no_client_gets_a_byte_of_anothers_answer_or_a_text_with_a_gap_whatever_engines_do(seed):
    seen: Counter[str] = Counter()
    storm.run(seed, 500, seen)
    assert seen["stream whole"] > 200
    assert seen["json whole"] > 50
