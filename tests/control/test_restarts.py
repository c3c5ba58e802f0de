from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.control.restarts import GiveUp, Restart, RestartPolicy, in_a_row, next_step

POLICY = RestartPolicy(first_s=0.1, factor=5.0, longest_s=30.0, jitter=0.0, give_up=None, give_up_unready=3)


def test_each_death_in_a_row_waits_longer_up_to_the_longest():
    delays = [next_step(n, POLICY, 0.5, ever_ready=True) for n in range(1, 7)]
    assert [round(step.delay_s, 3) for step in delays] == [0.1, 0.5, 2.5, 12.5, 30.0, 30.0]


def test_a_process_that_was_never_ready_is_given_up_sooner():
    policy = RestartPolicy(give_up=5, give_up_unready=3)
    assert next_step(3, policy, 0.5, ever_ready=False) == GiveUp(3)
    assert isinstance(next_step(3, policy, 0.5, ever_ready=True), Restart)
    assert next_step(5, policy, 0.5, ever_ready=True) == GiveUp(5)


def test_a_long_good_life_clears_the_record():
    assert in_a_row(2, ready_since=10.0, now=10.0 + POLICY.forget_s, policy=POLICY) == 1
    assert in_a_row(2, ready_since=10.0, now=20.0, policy=POLICY) == 3
    assert in_a_row(0, ready_since=None, now=5.0, policy=POLICY) == 1


@settings(deadline=None)
@given(deaths=st.integers(1, 40), chance=st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_share(deaths, chance):
    policy = RestartPolicy(jitter=0.2, give_up=None)
    step = next_step(deaths, policy, chance, ever_ready=True)
    plain = min(policy.first_s * policy.factor ** (deaths - 1), policy.longest_s)
    assert isinstance(step, Restart)
    assert 0.8 * plain <= step.delay_s + 1e-9
    assert step.delay_s <= 1.2 * plain + 1e-9
