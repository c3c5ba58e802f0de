"""What is told from what was seen lately: arrivals, how long requests take, and what each class may have for that."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.gateway.shares import (
    ARRIVALS_S,
    ASSUMED_S,
    RETURN_SHARE,
    RUSH_S,
    UNKNOWN_PAUSE_S,
    WAIT_SHARE,
    Arrivals,
    ClassState,
    room_for_yielding,
    service_rate,
)
from tidegate.types import CLASSES, ClassView

INTERACTIVE, STANDARD, BATCH, LONG = CLASSES
pure = settings(max_examples=300, deadline=None, derandomize=True)


def counted(per_s, seconds, every_s=0.1, *, arrivals=None, begin=0.0):
    """Arrivals that came evenly for so long, asked about every so often."""
    arrivals = arrivals or Arrivals()
    for look in range(1, round(seconds / every_s) + 1):
        arrivals.count += round(per_s * every_s)
        arrivals.rate(begin + look * every_s)
    return arrivals


# arrivals


def test_nothing_came_while_nothing_came():
    arrivals = Arrivals()
    assert [arrivals.rate(now) for now in (0.0, 5.0, 5.0, 1e6)] == [0.0] * 4


@pytest.mark.parametrize("per_s", [10, 100, 2000])
@pytest.mark.parametrize("every_s", [0.1, 0.5, 1.0])
def test_a_steady_rate_is_told_within_seconds_however_often_it_is_asked_for(per_s, every_s):
    arrivals = counted(per_s, 5.0, every_s)
    assert arrivals.rate(5.0) == pytest.approx(per_s, rel=0.25)
    counted(per_s, 20.0, every_s, arrivals=arrivals, begin=5.0)
    assert arrivals.rate(25.0) == pytest.approx(per_s, rel=0.03)


def test_those_that_came_since_the_last_look_count_once():
    arrivals = Arrivals()
    arrivals.count = 30
    first = arrivals.rate(10.0)
    assert arrivals.count == 0
    assert arrivals.rate(10.0) == pytest.approx(first)


def test_the_first_one_is_no_storm():
    """A single request of which nothing more is known is not a thousand a second."""
    arrivals = Arrivals()
    arrivals.count = 1
    assert arrivals.rate(3.0) <= 2.0
    assert arrivals.rate(3.001) <= 2.0


def test_what_is_over_is_forgotten():
    arrivals = counted(100, 20.0)
    begin = arrivals.rate(20.0)
    assert arrivals.rate(20.0 + ARRIVALS_S) == pytest.approx(begin / math.e, rel=0.01)
    assert arrivals.rate(20.0 + 10 * ARRIVALS_S) < 0.01 * begin
    assert arrivals.rate(1e5) == 0.0


def test_a_rate_that_doubles_is_seen_within_seconds():
    arrivals = counted(50, 20.0)
    counted(100, 2 * ARRIVALS_S, arrivals=arrivals, begin=20.0)
    assert 90 <= arrivals.rate(20.0 + 2 * ARRIVALS_S) <= 101


def test_a_burst_in_one_look_is_told_as_spread_over_the_time_since_the_last():
    """Looks of a second and looks of a tenth see the same: what a rate is does not depend on who asks."""
    often, seldom = counted(40, 10.0, 0.1), counted(40, 10.0, 1.0)
    assert often.rate(10.0) == pytest.approx(seldom.rate(10.0), rel=0.15)


@pure
@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-0.01, 20.0)), max_size=40))
def test_whatever_comes_a_rate_is_a_number_and_no_more_than_all_at_once(steps):
    """`-0.01`: a caller's clock may be read a little before another's."""
    arrivals, now, total = Arrivals(), 100.0, 0
    for count, passed_s in steps:
        arrivals.count += count
        total += count
        now += passed_s
        assert 0.0 <= arrivals.rate(now) <= total / 0.5 + 1e-6


# one class


def ended(view, *durations_s):
    state = ClassState(view)
    for one in durations_s:
        state.ended(one)
    return state


def test_until_one_has_ended_a_second_is_assumed():
    state = ClassState(STANDARD)
    assert state.holds_s == ASSUMED_S
    state.ended(3.0)
    assert state.holds_s == 3.0


def test_the_first_few_count_alike_and_later_the_last_ones_more():
    assert ended(STANDARD, 1.0, 3.0, 5.0).holds_s == pytest.approx(3.0)
    state = ended(STANDARD, *[1.0] * 200)
    for _ in range(60):
        state.ended(2.0)
    assert 1.9 < state.holds_s < 2.0


def test_demand_is_arrivals_times_how_long_one_holds_a_slot():
    state = ended(STANDARD, 0.5)
    state.arrivals = counted(100, 20.0)
    assert state.demand(20.0) == pytest.approx(50, rel=0.05)


def test_where_all_take_much_the_same_time_it_is_known_when_one_ends():
    state = ended(INTERACTIVE, 1.0, 1.1, 0.9, 1.0, 1.05)
    assert [state.ends_within(0.05, age_s, 0.0, None) for age_s in (0.0, 0.5, 0.9, 0.97, 1.5)] == [
        0.0,
        0.0,
        0.0,
        1.0,
        1.0,
    ]


def test_where_they_do_not_one_is_as_likely_to_end_as_another():
    state = ended(STANDARD, 0.1, 4.0, 0.2, 3.7)
    assert (
        state.ends_within(0.05, 0.0, 0.0, None) == state.ends_within(0.05, 9.0, 0.0, None) == pytest.approx(0.05 / 2.0)
    )
    assert state.ends_within(50.0, 0.0, 0.0, None) == 1.0


def test_one_that_waits_inside_its_engine_is_not_on_its_way_and_its_age_counts_from_its_first_word():
    """An answer takes a second, 0.1 of it until its first word; this one had to wait for a slot in the engine."""
    state = ended(INTERACTIVE, 1.0, 1.0, 1.0, 1.0)
    state.began(0.1)
    assert state.ends_within(0.05, 1.2, 0.0, 0.0) == 0.0, "nothing of it has come"
    assert state.ends_within(0.05, 1.2, 0.0, 0.7) == 0.0, "it began half a second ago"
    assert state.ends_within(0.05, 1.6, 0.0, 0.7) == 1.0
    assert state.ends_within(0.05, 1.2, 0.0, None) == 1.0, "it comes whole: its age is all there is"


def test_of_one_that_has_ended_nothing_is_told_of_the_next():
    assert ended(STANDARD, 4.0).ends_within(0.05, 3.97, 0.0, None) == pytest.approx(0.05 / 4.0)


def test_the_wait_ends_where_the_first_token_would_come_too_late():
    """A target of 0.5 s with first tokens that take 0.2 s after the permit leaves 0.3 s; without a target `max_wait_s`."""
    state = ClassState(INTERACTIVE)
    assert state.max_wait_s == pytest.approx(0.4)
    state.began(0.2)
    assert state.max_wait_s == pytest.approx(0.3)
    state.began(1.2)
    assert state.max_wait_s == pytest.approx(0.5 - 0.25)
    plain = ClassState(STANDARD)
    plain.began(9.0)
    assert plain.max_wait_s == 30.0


def test_on_slow_engines_nobody_is_refused_for_a_wait_that_is_short_beside_its_answer():
    state = ended(INTERACTIVE, 30.0)
    state.began(25.0)
    assert state.max_wait_s == pytest.approx(WAIT_SHARE * 30.0)


def test_those_that_are_refused_are_told_different_times_as_they_could_be_served():
    state = ended(INTERACTIVE, 1.0)
    told = [state.retry_after_s(5.0, 20.0, now=100.0) for _ in range(50)]
    pause_s = 1.0 / (RETURN_SHARE * 20.0)
    assert told[0] == pytest.approx(5.0 + pause_s)
    assert [later - sooner for sooner, later in itertools.pairwise(told)] == pytest.approx([pause_s] * 49)


def test_times_that_were_given_away_are_over_when_they_have_passed():
    state = ended(INTERACTIVE, 1.0)
    for _ in range(50):
        state.retry_after_s(5.0, 20.0, now=100.0)
    assert state.retry_after_s(5.0, 20.0, now=1000.0) == pytest.approx(5.0 + 1.0 / (RETURN_SHARE * 20.0))


def test_nobody_is_told_to_come_again_while_a_rush_may_still_go_on():
    state = ended(INTERACTIVE, 1.0)
    told = [state.retry_after_s(0.5, 20.0, now=100.0) for _ in range(3)]
    pause_s = 1.0 / (RETURN_SHARE * 20.0)
    assert told == pytest.approx([RUSH_S + number * pause_s for number in (1, 2, 3)])


@pytest.mark.parametrize(("ends", "rate"), [(0, 20.0), (1, 0.0)], ids=["none has ended", "no rate is known"])
def test_while_nothing_is_known_those_that_are_refused_come_again_soon(ends, rate):
    state = ended(INTERACTIVE, *[1.0] * ends)
    assert state.retry_after_s(0.0, rate, now=5.0) == pytest.approx(UNKNOWN_PAUSE_S)
    assert state.retry_after_s(0.0, rate, now=5.0) == pytest.approx(2 * UNKNOWN_PAUSE_S)


# what those that yield may have

ROOM = st.fixed_dictionaries(
    {
        "total": st.floats(1.0, 3200.0),
        "demand": st.floats(0.0, 5000.0),
        "queued": st.integers(0, 2000),
        "least_share": st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0]),
        "idle": st.floats(0.0, 3200.0),
    }
)


def test_with_no_demand_of_others_they_may_have_everything():
    assert room_for_yielding(32.0, 0.0, 0, 0.05) == 32
    assert room_for_yielding(32.9, 0.009, 0, 0.0) == 32


def test_what_others_ask_for_is_left_to_them_and_something_for_chance():
    assert room_for_yielding(32.0, 16.0, 0, 0.05) == math.floor(32 - 16 - 0.3 * 4)
    assert room_for_yielding(32.0, 0.0, 1, 0.05) == 32


def test_the_least_share_is_theirs_under_any_demand_and_one_slot_at_least():
    assert room_for_yielding(32.0, 1000.0, 500, 0.05) == 2
    assert room_for_yielding(4.0, 1000.0, 500, 0.05) == 1
    assert room_for_yielding(32.0, 1000.0, 500, 0.0) == 0


def test_slots_that_stand_idle_are_theirs_while_nobody_waits():
    assert room_for_yielding(32.0, 30.0, 0, 0.0, idle=16.0) == 32
    assert room_for_yielding(32.0, 30.0, 1, 0.0, idle=16.0) < 32
    assert room_for_yielding(32.0, 30.0, 0, 0.0, idle=1.0) < 32


@pure
@given(ROOM, st.floats(0.0, 100.0))
def test_more_demand_never_leaves_them_more_and_never_less_than_the_least_share(room, more):
    slots = room_for_yielding(**room)
    assert 0 <= slots <= max(1, math.ceil(room["total"]))
    if room["least_share"]:
        assert slots >= min(math.floor(room["total"]), max(1, math.ceil(room["least_share"] * room["total"])))
    busier = room_for_yielding(**{**room, "demand": room["demand"] + more})
    assert busier <= slots
    assert room_for_yielding(**{**room, "queued": room["queued"] + 1}) <= slots


# rate of service


def states(*views, holds_s=1.0, per_s=()):
    """Classes whose requests hold a slot for so long, with so many arrivals a second."""
    made = {view.name: ended(view, holds_s) for view in views}
    for name, rate in dict(per_s).items():
        made[name].arrivals = counted(rate, 30.0)
    return made


NOW = 30.0


def test_a_class_alone_is_served_as_fast_as_slots_come_free():
    alone = states(*CLASSES, holds_s=0.5)
    assert service_rate(STANDARD, alone, 32.0, NOW, {}) == pytest.approx(64.0)


def test_classes_that_ask_for_more_than_there_is_share_by_weight():
    both = states(INTERACTIVE, STANDARD, holds_s=2.0, per_s={"interactive": 1000, "standard": 1000})
    queued = {"interactive": 50, "standard": 50}
    fast, slow = (service_rate(view, both, 40.0, NOW, queued) for view in (INTERACTIVE, STANDARD))
    assert (fast, slow) == pytest.approx((40 / 2 * 0.8, 40 / 2 * 0.2))


def test_what_a_class_does_not_ask_for_is_the_others():
    both = states(INTERACTIVE, STANDARD, per_s={"interactive": 10, "standard": 1000})
    assert service_rate(STANDARD, both, 40.0, NOW, {"standard": 9}) == pytest.approx(30.0, rel=0.05)


def test_the_least_share_of_those_that_yield_is_not_the_others_while_they_wait():
    both = states(INTERACTIVE, BATCH, per_s={"interactive": 1000, "batch": 1000})
    assert service_rate(INTERACTIVE, both, 40.0, NOW, {"batch": 5}) == pytest.approx(38.0)
    assert service_rate(INTERACTIVE, both, 40.0, NOW, {}) == pytest.approx(40.0)


def test_those_that_yield_are_served_from_what_the_demand_of_the_others_leaves():
    both = states(INTERACTIVE, BATCH, per_s={"interactive": 20, "batch": 1000})
    left = service_rate(BATCH, both, 40.0, NOW, {"batch": 5})
    assert left == pytest.approx(room_for_yielding(40.0, both["interactive"].demand(NOW), 0, 0.05))
    assert 17 <= left <= 20
    full = states(INTERACTIVE, BATCH, per_s={"interactive": 1000, "batch": 1000})
    assert service_rate(BATCH, full, 40.0, NOW, {"interactive": 99, "batch": 5}) == pytest.approx(2.0)


@pure
@given(
    st.lists(st.floats(0.25, 64.0), min_size=2, max_size=5),
    st.floats(1.0, 3200.0),
    st.lists(st.sampled_from([0, 10, 100, 1000]), min_size=5, max_size=5),
    st.floats(0.02, 30.0),
)
def test_every_class_is_served_at_its_share_by_weight_at_least_and_all_together_at_no_more_than_there_is(
    weights, total, rates, holds_s
):
    views = [ClassView(f"c{number}", weight=weight) for number, weight in enumerate(weights)]
    known = states(*views, holds_s=holds_s, per_s={view.name: rate for view, rate in zip(views, rates, strict=False)})
    queued = {view.name: 1 for view in views}
    speeds = [service_rate(view, known, total, NOW, queued) for view in views]
    for view, speed in zip(views, speeds, strict=True):
        assert speed >= (1 - 1e-9) * total * view.weight / sum(weights) / holds_s
        assert speed <= (1 + 1e-9) * total / holds_s
    if all(known[view.name].demand(NOW) >= total for view in views):
        assert sum(speeds) == pytest.approx(total / holds_s)
