"""What a key may use is never exceeded, however requests overlap, and what was not needed comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import RateLimited
from tidegate.gateway.buckets import DAY_S, Bucket, Day
from tidegate.gateway.quotas import Quotas, duration
from tidegate.types import KeyView

START_UNIX_S = 1_000 * DAY_S + 3600.0


class Clock:
    def __init__(self):
        self.s = 1_000.0

    def now(self):
        return self.s

    def unix(self):
        return START_UNIX_S + self.s - 1_000.0


@pytest.fixture
def clock():
    return Clock()


def key(digest="d", **limits):
    return KeyView(digest, "anna", "t", **limits)


def quota_of(clock, **limits):
    quotas = Quotas(clock.now, clock.unix)
    quotas.apply([key(**limits)])
    return quotas.of(key())


steps = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "end", "cancel", "wait"]),
        st.integers(0, 400),
        st.floats(0, 30, allow_nan=False),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_never_more_than_the_limit_and_one_burst_is_given_in_any_stretch_of_time(script):
    clock = Clock()
    requests, tokens, per_day, at_once = 5, 1_000, 3_000, 3
    quota = quota_of(
        clock,
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        tokens_per_day=per_day,
        concurrent_streams=at_once,
    )
    leases, granted = [], []  # granted: [time, requests, tokens], what was given back taken off again
    for what, amount, seconds in script:
        if what == "wait":
            clock.s += seconds
        elif what == "enter":
            try:
                lease = quota.enter(amount // 2, amount)
            except RateLimited:
                continue
            entry = [clock.s, 1, amount // 2 + amount]
            granted.append(entry)
            leases.append((lease, entry))
        elif leases:
            lease, entry = leases.pop(amount % len(leases))
            if what == "cancel":
                lease.cancel()
                entry[1] = entry[2] = 0
            else:
                used = min(amount, entry[2])
                lease.end(used)
                entry[2] = used
        assert len(leases) <= at_once
        for position, (begin, _, _) in enumerate(granted):
            span = granted[position:]
            minutes = (span[-1][0] - begin) / 60
            assert sum(one[1] for one in span) <= requests * (1 + minutes) + 1e-3
            assert sum(one[2] for one in span) <= tokens * (1 + minutes) + 1e-3
        assert sum(one[2] for one in granted) <= per_day
    for lease, _ in leases:
        lease.end(0)
    assert quota.slots.taken == 0


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(-20, 50), st.floats(0, 40, allow_nan=False)), max_size=60),
    st.integers(1, 100),
)
def test_a_wait_that_was_told_is_long_enough_and_not_too_long(script, limit):
    bucket, now = Bucket(limit, 60.0, 0.0), 0.0
    for wanted, unused, seconds in script:
        units = min(wanted, bucket.most)
        wait_s = bucket.wait_s(units, now)
        if wait_s > 0.1:
            assert bucket.wait_s(units, now + wait_s * 0.98) > 0
        now += wait_s
        assert bucket.wait_s(units, now) < 1e-3
        taken = bucket.take(units, now)
        now += seconds
        bucket.settle(min(unused, units), taken, now)


def test_what_comes_back_late_is_worth_only_what_is_not_there_again_already():
    """Without that, streams that end at one moment would pour minutes of allowance into it."""
    bucket = Bucket(600, 60.0, 0.0)
    first, second = bucket.take(300, 0.0), bucket.take(300, 0.0)
    bucket.take(300, 30.0)  # the 300 that came back by themselves
    bucket.settle(300, first, 30.0)
    assert bucket.left(30.0) == 300
    bucket.settle(300, second, 30.0)
    assert bucket.left(30.0) == 300, "with neither taken, the bucket would have been full, and 300 taken from it"


def test_a_key_is_told_when_to_come_back(clock):
    quota = quota_of(clock, requests_per_minute=3)
    for _ in range(3):
        quota.enter()
    with pytest.raises(RateLimited) as caught:
        quota.enter()
    assert (caught.value.code, caught.value.retry_after_s) == ("rate_limit_exceeded", pytest.approx(20.0))
    assert "3 requests per min; try again in 20s" in caught.value.message
    clock.s += 19.9
    with pytest.raises(RateLimited):
        quota.enter()
    clock.s += 0.2
    quota.enter()


def test_a_refused_request_takes_nothing(clock):
    quota = quota_of(clock, requests_per_minute=10, tokens_per_minute=100)
    quota.enter(90)
    for _ in range(20):
        with pytest.raises(RateLimited, match="100 tokens per min"):
            quota.enter(90)
    assert quota.requests.left(clock.s) == 9
    assert quota.tokens.left(clock.s) == 10


def test_what_was_not_needed_comes_back_and_what_was_needed_beyond_is_charged(clock):
    quota = quota_of(clock, tokens_per_minute=600)
    quota.enter(100, 200).end(50)
    assert quota.tokens.left(clock.s) == 550
    quota.enter(100, 200).end(750)
    assert quota.tokens.left(clock.s) == 0
    assert quota.tokens.wait_s(1, clock.s) == pytest.approx(20.1)  # a debt of 200 at 10 a second


def test_a_lease_ends_once(clock):
    quota = quota_of(clock, tokens_per_minute=600, concurrent_streams=2, requests_per_minute=10)
    lease = quota.enter(100)
    lease.end(20)
    lease.end(0)
    lease.cancel()
    assert quota.tokens.left(clock.s) == 580
    assert quota.slots.taken == 0
    assert quota.requests.left(clock.s) == 9


def test_a_cost_that_nobody_knows_is_what_was_taken(clock):
    quota = quota_of(clock, tokens_per_minute=600)
    quota.enter(100, 100).end(None)
    assert quota.tokens.left(clock.s) == 400


def test_a_request_that_was_not_served_counts_for_nothing(clock):
    quota = quota_of(clock, requests_per_minute=1, tokens_per_day=100, concurrent_streams=1)
    quota.enter(50, 50).cancel()
    quota.enter(50, 50)


def test_an_answer_longer_than_the_whole_limit_is_refused_for_good(clock):
    quota = quota_of(clock, tokens_per_minute=100)
    with pytest.raises(RateLimited, match="100 at most at once; ask for fewer with max_tokens") as caught:
        quota.enter(10, 101)
    assert (caught.value.code, caught.value.param, caught.value.retry_after_s) == (
        "tokens_limit_exceeded",
        "max_tokens",
        None,
    )
    quota.enter(1_000, 100)  # a guess about the prompt alone keeps nobody out


def test_a_day_ends_at_midnight_utc(clock):
    quota = quota_of(clock, tokens_per_day=100)
    late = quota.enter(60)
    with pytest.raises(RateLimited, match="100 tokens per day; try again in 23h0m0s") as caught:
        quota.enter(60)
    assert (caught.value.code, caught.value.retry_after_s) == ("insufficient_quota", pytest.approx(23 * 3600))
    clock.s += 23 * 3600
    quota.enter(60)
    late.end(0)  # what was taken yesterday does not come back today
    assert quota.day.left(clock.unix()) == 40


def test_so_many_at_once(clock):
    quota = quota_of(clock, concurrent_streams=2)
    first = quota.enter()
    quota.enter()
    with pytest.raises(RateLimited, match="2 answers at once"):
        quota.enter()
    first.end(10)
    quota.enter()


def test_quotas_outlive_snapshots_for_as_long_as_there_is_the_key(clock):
    quotas = Quotas(clock.now, clock.unix)
    one = key("1", requests_per_minute=2)
    quotas.apply([one, key("2", requests_per_minute=2)])
    quotas.of(one).enter()
    quotas.apply([one])
    assert quotas.of(one).requests.left(clock.s) == 1
    assert quotas.of(key("2")) is None
    assert len(quotas._quotas) == 1
    quotas.apply([])
    quotas.apply([one])
    assert quotas.of(one).requests.left(clock.s) == 2


def test_another_limit_keeps_what_was_used(clock):
    quotas = Quotas(clock.now, clock.unix)
    small = {"requests_per_minute": 3, "tokens_per_day": 300, "concurrent_streams": 1}
    quotas.apply([key(**small)])
    quota = quotas.of(key())
    lease = quota.enter(100)
    quotas.apply([key(requests_per_minute=10, tokens_per_day=1_000, concurrent_streams=2)])
    assert quotas.of(key()) is quota
    assert (quota.requests.left(clock.s), quota.day.left(clock.unix()), quota.slots.taken) == (9, 900, 1)
    quotas.apply([key(**small)])
    assert (quota.requests.left(clock.s), quota.day.left(clock.unix())) == (2, 200)
    quotas.apply([key(tokens_per_day=300)])
    assert (quota.requests, quota.slots) == (None, None)
    lease.end(0)
    assert quota.day.left(clock.unix()) == 300


def test_processes_that_share_a_limit_have_a_part_each(clock):
    parts = []
    for _ in range(4):
        quotas = Quotas(clock.now, clock.unix)
        quotas.apply([key(requests_per_minute=100, tokens_per_day=1_000, concurrent_streams=8)], processes=4)
        parts.append(quotas.of(key()))
    assert sum(part.requests.left(clock.s) for part in parts) == 100
    assert sum(part.day.left(clock.unix()) for part in parts) == 1_000
    assert sum(part.slots.limit for part in parts) == 8


def test_what_is_left_is_told_as_openai_tells_it(clock):
    quota = quota_of(clock, requests_per_minute=60, tokens_per_minute=6_000)
    assert quota.headers().count(b"\r\n") == 6
    quota.enter(1_000, 500)
    assert dict(line.split(b": ") for line in quota.headers().split(b"\r\n")[:-1]) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1s",
        b"x-ratelimit-limit-tokens": b"6000",
        b"x-ratelimit-remaining-tokens": b"4500",
        b"x-ratelimit-reset-tokens": b"15s",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0881, "89ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (361.2, "6m2s"),
        (82_740, "22h59m0s"),
    ],
)
def test_spans_of_time_are_written_as_openai_writes_them(seconds, text):
    assert duration(seconds) == text


def test_a_day_meter_forgets_yesterday():
    day = Day(10, START_UNIX_S)
    day.take(10, START_UNIX_S)
    assert day.full_in_s(0, START_UNIX_S) == DAY_S - 3600
    assert day.left(START_UNIX_S + DAY_S) == 10
    assert day.full_in_s(10, START_UNIX_S + DAY_S) == 0
