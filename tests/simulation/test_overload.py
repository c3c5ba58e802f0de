"""Under more load than the engines can serve, what is urgent stays in time, and the engines stay busy."""

import random

import pytest
from world import Engine, Gateway, LeastConnections, Mix, World, arrive, in_time

SEEDS = (1, 2, 3)
REPLICAS = 2
SECONDS = 20.0
BATCH_ONLY = Mix(shares={"batch": 1.0})


def run(gate, mix, load, seed):
    """The requests, and the tokens that the engines made while they came."""
    world = World()
    engines = [Engine(world) for _ in range(REPLICAS)]
    rate = load * mix.capacity(REPLICAS)
    requests = arrive(world, gate(world, engines).ask, mix, rate, begin=0.0, end=SECONDS, rng=random.Random(seed))
    world.run(SECONDS)
    made = sum(engine.made for engine in engines)
    world.run(SECONDS + 5.0)  # the last ones have their answers
    return requests, made


def all_seeds(gate, mix, load):
    requests, made = [], 0
    for seed in SEEDS:
        more, tokens = run(gate, mix, load, seed)
        requests += more
        made += tokens
    return requests, made


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.97), (2.0, 0.93), (4.0, 0.52)])
def test_interactive_requests_are_in_time_and_the_engines_busy(load, least):
    requests, made = all_seeds(Gateway, Mix(), load)
    _, plain = all_seeds(LeastConnections, Mix(), load)
    assert in_time(requests) >= least
    assert made >= 0.94 * plain


@pytest.mark.parametrize("load", [1.0, 2.0])
def test_batch_work_alone_has_the_engines(load):
    _, made = all_seeds(Gateway, BATCH_ONLY, load)
    _, plain = all_seeds(LeastConnections, BATCH_ONLY, load)
    assert made >= 0.95 * plain
