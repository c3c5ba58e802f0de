"""Trials that are given up before their end."""

import numpy as np

from tidegate.control.tuner.stopping import hopeless, least, most


def test_a_trial_that_is_as_good_as_the_best_is_hardly_ever_given_up():
    random = np.random.default_rng(1)
    wrong = 0
    for _ in range(2000):
        rung, whole = random.poisson(10 * 5), random.poisson(10 * 30)
        wrong += hopeless(int(rung), 5.0, int(whole), 30.0)
    assert wrong <= 20


def test_a_trial_of_a_third_of_the_goodput_is_given_up_after_its_first_rung():
    random = np.random.default_rng(2)
    given_up = sum(
        hopeless(int(random.poisson(10 / 3 * 10)), 10.0, int(random.poisson(10 * 30)), 30.0) for _ in range(200)
    )
    assert given_up >= 180


def test_nothing_is_given_up_for_a_best_that_has_shown_nothing():
    assert not hopeless(0, 5.0, 0, 30.0)


def test_bounds_hold_the_true_rate_and_close_in_on_it():
    random = np.random.default_rng(3)
    for seconds in (2.0, 20.0, 200.0):
        counts = random.poisson(4.0 * seconds, 500)
        outside = sum(not least(int(count), seconds) <= 4.0 <= most(int(count), seconds) for count in counts)
        assert outside <= 15
    assert most(800, 200.0) - least(800, 200.0) < most(8, 2.0) - least(8, 2.0)
