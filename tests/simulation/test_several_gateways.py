"""Several gateways before the same engines, which do not talk to each other.

What is wanted is what one gateway reaches alone. The bounds here are what holds, a little below it, and from the full
load on more than balancers reach that send everything on: each gateway keeps its own urgent requests first, but none sees
the other's queue, nor when the other takes a slot that is free.
"""

import random
from collections import Counter

import pytest
from world import Engine, Gateway, LeastConnections, Mix, World, arrive, in_time

SEEDS = range(1, 5)
REPLICAS, SLOTS, SECONDS = 2, 16, 20.0


class Several:
    """Gateways, each of which has some of the requests by chance."""

    def __init__(self, gate, count, load, seed, **options):
        self.world = World()
        self.engines = [Engine(self.world, slots=SLOTS) for _ in range(REPLICAS)]
        self.gateways = [gate(self.world, self.engines, **options) for _ in range(count)]
        for which, gateway in enumerate(self.gateways):
            gateway.random = random.Random(10 * seed + which)
        self.of, self.most = {}, Counter()
        mix, chance = Mix(), random.Random(seed)

        def ask(request):
            self.of[id(request)] = which = chance.randrange(count)
            self.gateways[which].ask(request)

        rate = load * mix.capacity(REPLICAS)
        self.requests = arrive(self.world, ask, mix, rate, begin=0.0, end=SECONDS, rng=random.Random(seed + 100))
        self.watch()
        self.world.run(SECONDS)
        self.made = sum(engine.made for engine in self.engines)
        self.world.run(4 * SECONDS)

    def watch(self):
        """Remember the most that each engine ever had after its slots could be known."""
        if 5.0 < self.world.now < SECONDS:
            for engine in self.engines:
                self.most[engine] = max(self.most[engine], len(engine.running) + len(engine.waiting))
        if self.world.now < SECONDS:
            self.world.later(0.01, self.watch)

    def in_time_at(self, which):
        return in_time([one for one in self.requests if self.of[id(one)] == which])


def several(gate, count, load, **options):
    return [Several(gate, count, load, seed, **options) for seed in SEEDS]


def together(runs):
    return in_time([one for run in runs for one in run.requests])


def check(load, least, count, **options):
    runs = several(Gateway, count, load, **options)
    plain = several(LeastConnections, count, load)
    assert together(runs) >= least
    assert sum(run.made for run in runs) >= 0.93 * sum(run.made for run in plain)
    assert all(one.end is not None or one.refused is not None for run in runs for one in run.requests)
    each = [sum(run.in_time_at(which) for run in runs) / len(runs) for which in range(count)]
    assert max(each) - min(each) <= 0.1, "one of them has the engines"
    if load > 0.9:
        assert together(runs) > together(plain)


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.95), (2.0, 0.87), (4.0, 0.57)])
def test_two_that_know_how_many_they_are_have_half_of_every_limit_each(load, least):
    check(load, least, 2, share=2)


@pytest.mark.parametrize(("load", "least"), [(0.7, 0.99), (1.0, 0.86), (2.0, 0.68), (4.0, 0.45)])
def test_two_that_know_nothing_of_each_other_find_their_parts_by_what_the_engines_have(load, least):
    check(load, least, 2)


@pytest.mark.parametrize("load", [2.0, 4.0])
def test_together_they_do_not_fill_the_engines_own_queues(load):
    """Were each to send as much as an engine computes at once, as many again would wait inside it, and in no order."""
    for run in several(Gateway, 2, load):
        assert max(run.most.values()) <= 2.0 * SLOTS
        running = [len(engine.running) for engine in run.engines]
        assert not any(running), "everything has ended"
    for run in several(Gateway, 2, load, share=2):
        assert max(run.most.values()) <= SLOTS + 2 * len(run.gateways)
