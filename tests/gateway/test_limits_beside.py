"""An engine that somebody else uses too: another gateway, which knows nothing of this one."""

import pytest

from tidegate.gateway.limits import LimitState, after, begin
from tidegate.types import LimitOptions, Load

ADAPTIVE = LimitOptions()
SLOTS = 16


def learned(part=1.0):
    return LimitState(slots=SLOTS, limit=SLOTS * part, part=part, proven_s=0.0)


def look(state, running, waiting, in_flight, *, alone=True, now=1.0):
    load = Load(running=running, waiting=waiting)
    return after(state, load, ADAPTIVE, in_flight=in_flight, wait_s=0.0, now=now, alone=alone)


def test_while_something_waits_inside_ours_is_cut_in_proportion():
    state = look(learned(), running=16, waiting=16, in_flight=16)
    assert state.limit == 8
    assert look(learned(0.5), running=16, waiting=4, in_flight=8).limit == pytest.approx(8 * 16 / 20)


def test_one_look_cuts_it_to_half_at_most_and_one_request_is_always_left():
    state = learned()
    for _ in range(20):
        before, state = state, look(state, running=16, waiting=200, in_flight=int(state.limit))
        assert state.limit >= before.limit / 2
    assert state.limit == 1


def test_it_grows_by_one_while_it_is_used_up_and_nothing_waits():
    assert look(learned(0.5), running=16, waiting=0, in_flight=8).limit == 9
    assert look(learned(0.5), running=12, waiting=0, in_flight=5).limit == 8, "who does not need it does not take it"


def test_it_comes_back_once_the_others_are_gone():
    state = learned(0.25)
    for _ in range(7):
        state = look(state, running=4, waiting=0, in_flight=4)
    assert state.limit == SLOTS


@pytest.mark.parametrize(("running", "waiting"), [(16, 1), (16, 0), (15, 0)])
def test_one_request_more_or_less_is_nobody_else(running, waiting):
    assert look(learned(), running=running, waiting=waiting, in_flight=16).limit == SLOTS


def test_where_control_shares_the_limit_out_the_brothers_work_is_no_foreign_work():
    assert look(learned(), running=16, waiting=16, in_flight=16, alone=False).limit == SLOTS


def test_two_that_take_turns_come_to_equal_parts_from_anywhere():
    """Both saturated: what one has waits for what the other has."""
    one, other = learned(1.0), learned(0.125)
    history = []
    for now in range(120):
        had = int(one.limit), int(other.limit)
        running = min(SLOTS, sum(had))
        waiting = sum(had) - running
        one = look(one, running, waiting, had[0], now=now)
        other = look(other, running, waiting, had[1], now=now)
        history.append((one.limit, other.limit))
    late = history[60:]
    assert all(SLOTS - 3 <= a + b <= SLOTS + 4 for a, b in late), "together they fill the engine, and not more"
    ours, theirs = (sum(pair[n] for pair in late) / len(late) for n in (0, 1))
    assert abs(ours - theirs) < 2


def test_slots_that_are_not_known_yet_are_sought_as_before():
    state = begin(ADAPTIVE, None)
    assert look(state, running=8, waiting=0, in_flight=2).part == 1.0
