"""What an engine says of itself becomes the limit of what it may have."""

import pytest

from tidegate.gateway import limits
from tidegate.types import LimitOptions, Load

ADAPTIVE = LimitOptions()


def load(running=0, waiting=0, *, kv=0.5, kv_tokens=100_000, preemptions=0, slots=None):
    return Load(
        running=running,
        waiting=waiting,
        kv_usage=kv,
        kv_tokens=kv_tokens,
        preemptions_total=preemptions,
        slots=slots,
    )


def looks(state, loads, options=ADAPTIVE, *, in_flight=None, wait_s=0.0, begin_s=0.0, every_s=1.0):
    """All that an engine has is ours, unless `in_flight` says otherwise."""
    for number, one in enumerate(loads):
        now = begin_s + number * every_s
        sent = (one.running or 0) + (one.waiting or 0) if in_flight is None and one is not None else in_flight or 0
        state = limits.after(state, one, options, in_flight=sent, wait_s=wait_s, now=now)
    return state


def saturated(state, slots, *, count=60, begin_s=0.0):
    """An engine with so many slots that is always sent all that its limit allows."""
    for number in range(count):
        sent = int(state.limit or limits.FIRST_LIMIT)
        seen = load(min(sent, slots), max(0, sent - slots))
        state = limits.after(state, seen, ADAPTIVE, in_flight=sent, wait_s=1.0, now=begin_s + number)
    return state


@pytest.mark.parametrize("slots", [1, 16, 256])
def test_told_slots_are_rested_on(slots):
    state = limits.begin(ADAPTIVE, slots)
    assert state.limit == slots
    calm, full = load(slots // 2), load(slots, 50)
    assert looks(state, [calm, full] * 200, wait_s=5.0).limit == slots


def test_what_an_engine_tells_later_holds():
    state = looks(limits.begin(ADAPTIVE, None), [load(4, slots=32)])
    assert (state.limit, state.told) == (32, True)
    assert looks(state, [load(4, slots=12)]).limit == 12


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 16, 48, 256])
def test_slots_are_learned_from_what_runs_while_some_wait(slots):
    state = saturated(limits.begin(ADAPTIVE, None), slots)
    assert state.slots == slots
    assert state.limit == slots


def test_it_keeps_looking_whether_there_are_more_and_comes_back():
    state = saturated(limits.begin(ADAPTIVE, None), 16)
    seen = []
    for minute in range(1, 6):
        state = saturated(state, 16, begin_s=60.0 * minute)
        seen.append(state.limit)
    assert all(16 <= limit <= 17 for limit in seen)


def test_an_engine_that_has_become_larger_is_found_out():
    state = saturated(limits.begin(ADAPTIVE, None), 16)
    assert looks(state, [load(20)], begin_s=61.0).slots == 20


def test_one_that_waits_for_the_next_step_teaches_nothing():
    state = limits.begin(ADAPTIVE, None)
    for running in range(1, 8):  # one is always just about to be taken in
        state = looks(state, [load(running, 1), load(running + 1, 0)], in_flight=running + 1)
        assert state.slots is None
    assert state.limit >= limits.FIRST_LIMIT


def test_waiting_now_and_then_does_not_shrink_what_was_learned():
    state = saturated(limits.begin(ADAPTIVE, None), 16)
    few = [load(11, 1)] * (limits.LOOKS_TO_SHRINK - 1)
    state = looks(state, [*few, load(12, 0)] * 4, in_flight=12)
    assert state.slots == 16
    assert looks(state, [load(11, 5)] * limits.LOOKS_TO_SHRINK, in_flight=16).slots == 11


def test_an_idle_engine_s_limit_does_not_grow():
    state = limits.begin(ADAPTIVE, None)
    assert looks(state, [load(1)] * 500, in_flight=1).limit == limits.FIRST_LIMIT


def test_a_full_cache_lowers_the_limit_and_an_empty_one_brings_it_back():
    state = looks(limits.begin(ADAPTIVE, 64), [load(50, 10, kv=0.99)] * 4)
    assert state.limit == pytest.approx(64 * limits.BACK_OFF**4)
    held = looks(state, [load(40, 0, kv=0.9)] * 10)
    assert held.limit == state.limit
    assert looks(held, [load(30, 0, kv=0.5)] * 30).limit == 64


def test_a_full_cache_with_nobody_waiting_is_well_used():
    assert looks(limits.begin(ADAPTIVE, 64), [load(64, 0, kv=1.0)] * 10).limit == 64


def test_preemption_lowers_the_limit_once_each_time_and_it_recovers():
    state = looks(limits.begin(ADAPTIVE, 64), [load(60, preemptions=7)])
    assert state.limit == 64  # what it had before is not news
    state = looks(state, [load(60, preemptions=8)])
    assert state.limit == pytest.approx(64 * limits.BACK_OFF)
    assert looks(state, [load(50, preemptions=8)] * 20).limit == 64


def test_shortage_never_lowers_the_limit_without_end():
    state = looks(limits.begin(ADAPTIVE, 64), [load(9, 9, kv=1.0, preemptions=number) for number in range(100)])
    assert state.limit == 64 * limits.LEAST_FACTOR
    tiny = looks(limits.begin(ADAPTIVE, 2), [load(1, 9, kv=1.0, preemptions=number) for number in range(100)])
    assert tiny.limit == 1.0


def test_a_cache_that_is_only_its_slots_is_full_when_they_are():
    assert looks(limits.begin(ADAPTIVE, 16), [load(16, 8, kv=1.0, kv_tokens=None)] * 20).limit == 16


@pytest.mark.parametrize("options", [ADAPTIVE, LimitOptions(kind="threshold", sequences=10)])
def test_where_nothing_can_be_read_what_was_known_holds(options):
    state = looks(limits.begin(options, None), [load(8, 0, kv=0.1)] * 3, options, in_flight=8, wait_s=1.0)
    assert looks(state, [None] * 100, options, in_flight=50, wait_s=9.0, begin_s=100.0) == state


def test_an_engine_that_says_nothing_has_no_limit():
    state = looks(limits.begin(ADAPTIVE, None), [Load()] * 5, in_flight=500)
    assert (state.limit, state.slots) == (None, None)


def test_an_engine_that_says_nothing_of_what_waits_has_no_limit_but_the_operator_s():
    assert looks(limits.begin(ADAPTIVE, None), [Load(running=5)]).limit is None
    capped = LimitOptions(sequences=40)
    assert looks(limits.begin(capped, None), [Load(running=5)] * 3, capped).limit == 40


def test_an_operator_s_number_is_the_ceiling_of_what_is_learned():
    capped = LimitOptions(sequences=12)
    assert limits.begin(capped, 64).limit == 12
    assert limits.begin(capped, 4).limit == 4
    state = looks(limits.begin(capped, None), [load(12, 0)] * 50, capped, in_flight=12)
    assert state.limit == 12


@pytest.mark.parametrize("seen", [None, Load(), load(3, 99, kv=1.0, preemptions=5, slots=4)])
def test_a_fixed_limit_is_the_operator_s_whatever_is_seen(seen):
    fixed = LimitOptions(kind="fixed", sequences=24)
    state = limits.begin(fixed, 8)
    assert state.limit == 24
    assert looks(state, [seen] * 20, fixed, in_flight=24, wait_s=9.0).limit == 24
    more = LimitOptions(kind="fixed", sequences=30)
    assert looks(state, [seen], more).limit == 30


THRESHOLD = LimitOptions(kind="threshold", sequences=16)


def test_threshold_grows_by_a_quarter_while_some_wait_up_to_the_slots():
    state = limits.begin(THRESHOLD, 40)
    seen = []
    for number in range(8):
        state = looks(state, [load(16, 5, kv=0.3)], THRESHOLD, wait_s=1.0, begin_s=31.0 * number)
        seen.append(state.limit)
    assert seen[:4] == [20.0, 25.0, 31.25, 39.0625]
    assert seen[4:] == [40.0] * 4


def test_threshold_shrinks_while_the_cache_is_full_and_nobody_waits_and_never_below_one():
    state = limits.begin(THRESHOLD, 40)
    full = load(16, 0, kv=0.95)
    assert looks(state, [full], THRESHOLD).limit == pytest.approx(16 * 0.85)
    assert looks(state, [full] * 100, THRESHOLD, every_s=31.0).limit == 1.0


def test_threshold_moves_at_most_once_in_its_interval():
    state = limits.begin(THRESHOLD, None)
    assert looks(state, [load(16, 5, kv=0.3)] * 30, THRESHOLD, wait_s=1.0).limit == 20.0
    assert looks(state, [load(16, 5, kv=0.3)] * 31, THRESHOLD, wait_s=1.0).limit == 25.0


def test_threshold_rests_between_its_bounds():
    state = limits.begin(THRESHOLD, None)
    assert looks(state, [load(16, 5, kv=0.8)] * 100, THRESHOLD, wait_s=1.0).limit == 16.0
    assert looks(state, [load(16, 0, kv=0.3)] * 100, THRESHOLD, wait_s=0.15).limit == 16.0
