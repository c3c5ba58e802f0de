"""A slice of `scripts/fuzz`, the same in every run: hostile requests, answers and bodies."""

from collections import Counter

import pytest

from fuzz import fields, requests, responses


@pytest.mark.parametrize("seed", range(4))
def test_what_is_handled_of_any_requests_is_what_two_other_parsers_read(seed):
    """And nothing after a request that was refused, no exception, and no memory beyond the limits."""
    seen: Counter[str] = Counter()
    requests.run(seed, 3000, seen)
    assert seen["handled"] > 1000
    assert seen["by h11 too"] > 1000
    assert seen["refused 400"] > 100


@pytest.mark.parametrize("seed", range(4))
def test_any_answer_is_whole_and_its_own_or_an_error_wherever_it_is_cut(seed):
    """And the next answer on the same connection is its own; whole events that are piped are the same bytes."""
    seen: Counter[str] = Counter()
    responses.run(seed, 1500, seen)
    assert seen["whole by h11 too"] > 300
    assert seen["used again"] > 100
    assert seen["piped events"] > 10


@pytest.mark.parametrize("seed", range(2))
def test_the_fields_of_any_body_are_those_of_another_parser_and_no_key_comes_twice(seed):
    seen: Counter[str] = Counter()
    fields.run(seed, 4000, seen)
    assert seen["read"] > 500
    assert seen["refused, duplicate_key"] > 50
