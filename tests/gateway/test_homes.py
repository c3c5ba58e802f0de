"""Where conversations are at home: evenly spread, seldom moved, and never where there is too much already."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.gateway.router import BOUND, at_home

KEYS = [b'"user-%d"' % number for number in range(10_000)]
REPLICAS = 10
pure = settings(max_examples=20, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Home:
    name: bytes
    in_flight: int = 0


@dataclass
class Busy:
    name: bytes
    in_flight: int = 0


def named(*names):
    return [Home(name) for name in names]


def homes(fleet, keys=KEYS):
    return {key: at_home(fleet, key).name for key in keys}


def check_even(fleet, keys=KEYS):
    """No replica has a fifth more or less than its part."""
    counts = Counter(homes(fleet, keys).values())
    part = len(keys) / len(fleet)
    assert all(0.8 * part <= counts[one.name] <= 1.2 * part for one in fleet), counts


@pytest.mark.parametrize(
    "names",
    [
        [b"%d" % n for n in range(REPLICAS)],
        [b"default-%d" % n for n in range(REPLICAS)],
        [b"pool-%03d" % n for n in range(REPLICAS)],
        [b"http://10.0.0.%d:8000" % n for n in range(REPLICAS)],
        [b"gpu%d-a" % n for n in range(REPLICAS)],
        [b"a" * (n + 1) for n in range(REPLICAS)],
        [f"副本-{n}".encode() for n in range(REPLICAS)],
        [bytes([n]) for n in range(REPLICAS)],
    ],
    ids=lambda names: names[-1].decode(),
)
def test_conversations_are_spread_evenly_whatever_replicas_are_called(names):
    check_even(named(*names))


@pure
@given(st.sets(st.binary(max_size=24), min_size=REPLICAS, max_size=REPLICAS))
def test_they_are_with_any_names_at_all(names):
    check_even(named(*sorted(names)))


@pytest.mark.parametrize(
    "keys",
    [
        [b"%d" % n for n in range(10_000)],
        [b"x" * 500 + b"%05d" % n for n in range(10_000)],
        [bytes([n % 256, n // 256]) for n in range(10_000)],
    ],
    ids=["numbers", "long beginnings that are the same", "bytes"],
)
def test_they_are_whatever_conversations_are_called(keys):
    check_even(named(*(b"default-%d" % n for n in range(REPLICAS))), keys)


def test_without_a_replica_there_is_no_home_and_with_one_it_is_everybody_s():
    assert at_home([], b"key") is None
    (only,) = named(b"only")
    assert at_home([only], b"key") is only
    busy = Home(b"busy", 10_000)
    assert at_home([busy], b"key") is busy


def test_every_gateway_comes_to_the_same_answer_in_whatever_order_it_knows_replicas():
    fleet = named(*(b"r%d" % n for n in range(REPLICAS)))
    known = homes(fleet)
    for seed in range(3):
        shuffled = random.Random(seed).sample(fleet, len(fleet))
        assert homes(shuffled) == known


@pure
@given(st.integers(2, 12), st.data())
def test_when_a_replica_goes_only_its_conversations_move_and_they_come_back_with_it(count, data):
    fleet = named(*(b"default-%d" % n for n in range(count)))
    gone = data.draw(st.sampled_from(fleet))
    keys = KEYS[:2000]
    before, after = homes(fleet, keys), homes([one for one in fleet if one is not gone], keys)
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == gone.name}
    assert homes([*(one for one in fleet if one is not gone), Home(gone.name)], keys) == before


def test_those_of_a_replica_that_has_gone_are_spread_over_all_that_are_left():
    fleet = named(*(b"default-%d" % n for n in range(REPLICAS)))
    before, after = homes(fleet), homes(fleet[1:])
    heirs = Counter(after[key] for key in KEYS if before[key] == fleet[0].name)
    assert len(heirs) == REPLICAS - 1
    assert max(heirs.values()) <= 1.5 * sum(heirs.values()) / (REPLICAS - 1)


def test_a_conversation_is_at_home_whatever_the_load_of_others_is_below_the_bound():
    idle = named(*(b"r%d" % n for n in range(REPLICAS)))
    known = homes(idle, KEYS[:500])
    rng = random.Random(1)
    even = [Home(one.name, 95 + rng.randrange(10)) for one in idle]  # 95 to 104: all below 1.25 times the mean
    assert homes(even, KEYS[:500]) == known


def test_where_its_replica_has_too_much_a_conversation_goes_to_the_next_and_always_to_the_same():
    fleet = [Busy(b"r%d" % n, 10) for n in range(REPLICAS)]
    key = KEYS[0]
    first = at_home(fleet, key)
    first.in_flight = 14
    second = at_home(fleet, key)
    assert second is not first
    assert at_home(fleet, key) is second
    assert second.name == at_home([one for one in fleet if one is not first], key).name
    first.in_flight = 10
    assert at_home(fleet, key) is first


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 400), min_size=2, max_size=12), st.binary(max_size=30))
def test_nobody_is_sent_where_the_bound_is_reached(loads, key):
    fleet = [Home(b"r%d" % number, load) for number, load in enumerate(loads)]
    chosen = at_home(fleet, key)
    assert chosen.in_flight < BOUND * (sum(loads) + 1) / len(loads)


@pytest.mark.parametrize("popular", [1, 3, 100])
def test_however_popular_a_conversation_is_no_replica_has_more_than_a_quarter_more_than_the_mean(popular):
    """Requests come, and of those that are there some end, over and over; a few conversations are most of them."""
    rng = random.Random(popular)
    fleet = [Busy(b"r%d" % n) for n in range(REPLICAS)]
    running = []
    for _ in range(20_000):
        if running and rng.random() < len(running) / 400:
            running.pop(rng.randrange(len(running))).in_flight -= 1
            continue
        chosen = at_home(fleet, KEYS[rng.randrange(popular)])
        chosen.in_flight += 1
        running.append(chosen)
        assert chosen.in_flight <= BOUND * len(running) / REPLICAS + 1
    assert len(running) > 150
