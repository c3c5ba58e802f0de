"""Under more load than the engines can serve, what is urgent stays in time, and the engines stay busy.

One run of 20 s at two engines is a few hundred requests: the share in time swings by 3 % with the seed, most at twice the
load (0.92 to 1.0), where a burst in the first seconds meets limits that are still being learned. So eight seeds count
together, and the bounds are what has to hold of all of them; figures of a single seed say nothing.
"""

import random

import pytest
from world import Engine, Gateway, LeastConnections, Mix, World, arrive, in_time

SEEDS = range(1, 9)
SECONDS = 20.0
BATCH_ONLY = Mix(shares={"batch": 1.0})
SLOTS = 16


def run(gate, mix, load, seed, *, replicas=2, seconds=SECONDS, **options):
    """The requests, and the tokens that the engines made while they came."""
    world = World()
    engines = [Engine(world, slots=SLOTS) for _ in range(replicas)]
    rate = load * mix.capacity(replicas)
    ask = gate(world, engines, **options).ask
    requests = arrive(world, ask, mix, rate, begin=0.0, end=seconds, rng=random.Random(seed))
    world.run(seconds)
    made = sum(engine.made for engine in engines)
    world.run(seconds + 3.0)  # the last of the urgent ones have their answers
    return requests, made


def all_seeds(gate, mix, load, seeds=SEEDS, **options):
    requests, made = [], 0
    for seed in seeds:
        more, tokens = run(gate, mix, load, seed, **options)
        requests += more
        made += tokens
    return requests, made


def check(load, least, seeds, *, told=None, **options):
    requests, made = all_seeds(Gateway, Mix(), load, seeds, told=told, **options)
    _, plain = all_seeds(LeastConnections, Mix(), load, seeds, **options)
    assert in_time(requests) >= least
    assert made >= 0.95 * plain
    urgent = [one for one in requests if one.kind == "interactive"]
    assert all(one.end is not None or one.refused is not None for one in urgent), "some are neither served nor refused"


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.985), (2.0, 0.95), (4.0, 0.56)])
def test_interactive_requests_are_in_time_and_the_engines_busy(load, least):
    check(load, least, SEEDS)


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.94), (2.0, 0.86), (4.0, 0.54)])
def test_so_they_are_with_one_engine_where_chance_moves_more(load, least):
    check(load, least, SEEDS, replicas=1)


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.985), (2.0, 0.97), (4.0, 0.55)])
def test_so_they_are_with_ten_engines(load, least):
    check(load, least, SEEDS[:2], replicas=10, seconds=8.0)


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.99), (2.0, 0.98), (4.0, 0.47)])
def test_so_they_are_with_a_hundred_engines(load, least):
    check(load, least, SEEDS[:1], replicas=100, seconds=2.0, told=SLOTS)


def test_a_hundred_engines_whose_slots_are_found_out_under_twice_the_load_cost_a_tenth_in_the_first_seconds():
    check(2.0, 0.85, SEEDS[:1], replicas=100, seconds=2.5)


@pytest.mark.parametrize("load", [1.0, 2.0])
def test_batch_work_alone_has_the_engines(load):
    _, made = all_seeds(Gateway, BATCH_ONLY, load)
    _, plain = all_seeds(LeastConnections, BATCH_ONLY, load)
    assert made >= 0.95 * plain
