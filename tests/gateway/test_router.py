"""Which replica gets a request."""

import itertools
import random
from dataclasses import dataclass

from tidegate.gateway.router import least_work_of_two


@dataclass
class Loaded:
    in_flight: int


def numbers(*values):
    return iter(values).__next__


def test_nobody_and_one_need_no_choice():
    assert least_work_of_two([], numbers()) is None
    one = Loaded(9)
    assert least_work_of_two([one], numbers()) is one


def test_the_less_loaded_of_the_two_is_chosen():
    idle, busy = Loaded(0), Loaded(5)
    for first, second in itertools.product((0.0, 0.49, 0.5, 0.999), repeat=2):
        assert least_work_of_two([idle, busy], numbers(first, second)) is idle
        assert least_work_of_two([busy, idle], numbers(first, second)) is idle


def test_two_different_ones_are_looked_at():
    many = [Loaded(n) for n in range(5)]
    for first, second in itertools.product(range(5), range(4)):
        chosen = least_work_of_two(many, numbers(first / 5, second / 4))
        other = second + (second >= first)
        assert other != first
        assert chosen.in_flight == min(first, other)


def test_load_stays_even():
    """With work that never ends, no replica is more than a few requests above another."""
    dice = random.Random(1)
    fleet = [Loaded(0) for _ in range(10)]
    for _ in range(10_000):
        least_work_of_two(fleet, dice.random).in_flight += 1
    assert max(one.in_flight for one in fleet) - min(one.in_flight for one in fleet) < 12
