"""When a replica leaves and when it comes back: rules without a socket, time handed in."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.health import (
    BAD_TO_LEAVE,
    FIRST_HOLD_S,
    GOOD_TO_RETURN,
    LONGEST_HOLD_S,
    Failed,
    Failure,
    Health,
    Succeeded,
    Watched,
    after,
)

SUSPICIONS = [kind for kind in Failure if kind is not Failure.CONNECT]
GOOD, SOUND = Succeeded(), Health()


def run(*events, state=SOUND, now=0.0, alone=False):
    for event in events:
        state = after(state, event, now, alone=alone)
    return state


@pytest.mark.parametrize("kind", Failure)
def test_three_failures_in_a_row_take_a_replica_out_and_two_successes_bring_it_back(kind):
    bad = Failed(kind)
    assert run(bad, bad).out is None
    assert run(bad, bad, bad).out is kind
    assert run(bad, bad, bad, GOOD).out is kind
    assert run(bad, bad, bad, GOOD, bad, GOOD).out is kind, "in a row"
    back = run(bad, bad, bad, GOOD, GOOD)
    assert back.out is None
    assert back.sound


def test_a_success_between_failures_begins_the_count_anew():
    bad = Failed(Failure.STATUS)
    assert run(bad, bad, GOOD, bad, bad, GOOD, bad, bad).out is None


@pytest.mark.parametrize("kind", SUSPICIONS)
def test_the_last_replica_of_a_pool_is_never_taken_out_on_suspicion(kind):
    state = run(*[Failed(kind)] * 50, alone=True)
    assert state.out is None
    assert run(Failed(kind), state=state, alone=False).out is kind, "with others there the next failure does"


def test_a_port_that_refuses_takes_out_even_the_last_one():
    assert run(*[Failed(Failure.CONNECT)] * 3, alone=True).rank == 3


def test_one_failed_connection_puts_others_first_until_something_good_comes():
    doubted = run(Failed(Failure.CONNECT))
    assert (doubted.out, doubted.rank) == (None, 1)
    assert run(GOOD, state=doubted).rank == 0
    assert run(Failed(Failure.STATUS)).rank == 0


def test_what_is_wrong_with_one_that_is_out_is_the_last_that_was_seen():
    refused = run(*[Failed(Failure.CONNECT)] * 3)
    assert refused.rank == 3
    loading = run(Failed(Failure.STATUS), state=refused)
    assert (loading.out, loading.rank) == (Failure.STATUS, 2)
    assert run(Failed(Failure.CONNECT), state=loading).rank == 3


def watched(seconds, *, busy=True, moved=False, patience_s=30.0, start=0.0, state=SOUND, alone=False):
    """A look every second."""
    for second in range(seconds):
        state = after(state, Watched(busy, moved, patience_s), start + second, alone=alone)
    return state


def test_work_without_progress_is_stuck_after_its_patience_and_three_looks():
    assert watched(32).out is None
    assert watched(33).out is Failure.STUCK
    assert watched(33, alone=True).out is None


def test_a_long_prompt_is_given_its_time():
    assert watched(300, patience_s=360.0).out is None
    assert watched(363, patience_s=360.0).out is Failure.STUCK


def test_one_sign_of_life_begins_the_wait_anew():
    state = watched(31)
    state = watched(1, moved=True, start=31.0, state=state)
    state = watched(29, start=32.0, state=state)
    assert (state.out, state.still) == (None, 0)


def test_a_replica_without_work_is_never_stuck():
    assert watched(1000, busy=False) == Health()
    state = watched(31)
    assert watched(1, busy=False, start=31.0, state=state) == Health()


def test_slowness_alone_is_nothing():
    state = Health()
    for second in range(0, 3000, 29):  # something moves every 29 s
        state = after(state, Watched(busy=True, moved=True, patience_s=30.0), second, alone=False)
        state = after(state, Watched(busy=True, moved=False, patience_s=30.0), second + 28, alone=False)
    assert state.out is None


def test_one_that_was_stuck_comes_back_when_it_moves():
    state = watched(33)
    state = watched(1, moved=True, start=40.0, state=state)
    assert state.out is Failure.STUCK
    state = watched(1, moved=True, start=41.0, state=state)
    assert state.out is None
    assert watched(30, start=42.0, state=state).out is None, "and has its whole patience again"


def test_progress_of_others_requests_does_not_excuse_errors():
    state = run(*[Failed(Failure.STATUS)] * 3)
    assert watched(10, moved=True, state=state).out is Failure.STATUS


def test_one_that_falls_back_again_and_again_is_kept_out_longer_each_time():
    now, state, holds = 0.0, Health(), []
    for _ in range(8):
        state = run(*[Failed(Failure.STATUS)] * 3, state=state, now=now)
        left = now
        while state.out is not None:  # probed every 0.25 s, and every probe succeeds
            now += 0.25
            state = run(GOOD, state=state, now=now)
        holds.append(now - left)
    assert holds == [0.5, FIRST_HOLD_S, 2.0, 4.0, 8.0, 16.0, LONGEST_HOLD_S, LONGEST_HOLD_S]
    now += 31.0
    state = run(*[Failed(Failure.STATUS)] * 3, state=state, now=now)
    assert run(GOOD, GOOD, state=state, now=now + 0.5).out is None, "a calm while makes it a new matter"


def test_one_that_was_gone_comes_back_with_its_second_success_however_often_it_went():
    state = Health()
    for second in range(10):
        state = run(*[Failed(Failure.CONNECT)] * 3, GOOD, GOOD, state=state, now=float(second))
        assert state.sound


events = st.one_of(
    st.just(GOOD),
    st.builds(Failed, st.sampled_from(Failure)),
    st.builds(Watched, busy=st.booleans(), moved=st.booleans(), patience_s=st.sampled_from([1.0, 30.0])),
)
steps = st.lists(st.tuples(events, st.floats(0.0, 40.0), st.booleans()), max_size=80)


@given(steps)
def test_whatever_happens_the_rules_hold(course):
    """Nobody leaves without three bad signs, returns without two good ones, or leaves alone on suspicion."""
    state, now, bad, good, still = Health(), 0.0, 0, 0, 0
    for event, pause, alone in course:
        now += pause
        before, state = state, after(state, event, now, alone=alone)
        match event:
            case Succeeded():
                bad, good = 0, good + 1
            case Failed():
                bad, good = bad + 1, 0
            case Watched():
                still = still + 1 if event.busy and not event.moved else 0
                good += event.moved
        if before.out is None and state.out is not None:
            assert max(bad, still) >= BAD_TO_LEAVE
            assert not alone or state.out is Failure.CONNECT
            assert not isinstance(event, Succeeded)
            good = 0
        if before.out is not None and state.out is None:
            assert good >= GOOD_TO_RETURN
            assert state.sound
            assert now >= before.until_s
            bad = 0
        assert (state.rank == 0) == (state.out is None and not state.doubt)
        assert state.until_s <= now + LONGEST_HOLD_S
        msgspec.json.encode(state)


@given(st.lists(st.booleans(), min_size=400, max_size=400))
def test_nobody_flaps(answers):
    """However probes and requests turn out, four events a second: a replica leaves on suspicion 11 times in 100 s at most."""
    state, leaves = Health(), 0
    for number, good in enumerate(answers):
        event = GOOD if good else Failed(Failure.STATUS)
        before, state = state, after(state, event, number / 4, alone=False)
        leaves += before.out is None and state.out is not None
    assert leaves <= 11
