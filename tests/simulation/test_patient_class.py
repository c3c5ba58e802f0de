"""A class whose requests may wait for five seconds: they wait so long, no longer, and who would is told at once."""

import random
import statistics

import pytest
from world import Engine, Gateway, LeastConnections, Mix, World, arrive, in_time

from tidegate.types import CLASSES, ClassView

SEEDS = (1, 2, 3)
SECONDS, MOST_S = 40.0, 5.0
INSIDE_S = 0.5
"""A request may be sent to an engine a little before there is a slot."""
FIRM = ClassView("patient", max_wait_s=MOST_S)
YIELDS = ClassView("patient", max_wait_s=MOST_S, yields=True, least_share=0.05)
ALONE = Mix({"patient": 1.0}, {"patient": 64})
BESIDE = Mix({"interactive": 0.5, "patient": 0.5}, {"interactive": 32, "patient": 64})


class Run:
    def __init__(self, view, mix, load, seed):
        self.waits_of_refused_s = []
        world = World()
        engines = [Engine(world), Engine(world)]
        gateway = Gateway(world, engines, classes=(*CLASSES, view), seed=seed, on_refused=self._refused(world))
        self.requests, self.made = self._come(world, engines, gateway, (mix, load, seed))
        plain = World()
        engines = [Engine(plain), Engine(plain)]
        _, self.plain = self._come(plain, engines, LeastConnections(plain, engines), (mix, load, seed))
        own = [one for one in self.requests if one.kind == "patient"]
        self.first_tokens_s = [one.first - one.at for one in own if one.end is not None]
        self.served = len(self.first_tokens_s) / len(own)

    def _refused(self, world):
        def refused(request):
            if request.kind == "patient":
                self.waits_of_refused_s.append(world.now - request.at)

        return refused

    @staticmethod
    def _come(world, engines, gate, what):
        mix, load, seed = what
        rate = load * mix.capacity(len(engines))
        requests = arrive(world, gate.ask, mix, rate, begin=0.0, end=SECONDS, rng=random.Random(seed))
        world.run(SECONDS)
        made = sum(engine.made for engine in engines)
        world.run(SECONDS + 50.0)
        return requests, made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("load", [0.7, 1.0])
@pytest.mark.parametrize("mix", [ALONE, BESIDE], ids=["alone", "beside chats"])
@pytest.mark.parametrize("view", [FIRM, YIELDS], ids=["firm", "yields"])
def test_who_can_be_served_within_five_seconds_is_not_refused(view, mix, load, seed):
    run = Run(view, mix, load, seed)
    assert run.served >= 0.99
    assert max(run.first_tokens_s) <= MOST_S + INSIDE_S


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("load", [2.0, 4.0])
@pytest.mark.parametrize("mix", [ALONE, BESIDE], ids=["alone", "beside chats"])
@pytest.mark.parametrize("view", [FIRM, YIELDS], ids=["firm", "yields"])
def test_with_more_than_can_be_served_they_wait_for_five_seconds_at_most_and_the_others_are_told_at_once(
    view, mix, load, seed
):
    """Of the refused nine in ten have not waited at all: what they would have waited was foreseen."""
    run = Run(view, mix, load, seed)
    assert max(run.first_tokens_s) <= MOST_S + INSIDE_S
    assert max(run.waits_of_refused_s) <= MOST_S + 0.1
    assert statistics.mean(not waited_s for waited_s in run.waits_of_refused_s) >= 0.9
    assert run.made >= 0.94 * run.plain


@pytest.mark.parametrize("seed", SEEDS)
def test_the_queue_is_used_before_anybody_is_refused(seed):
    """At twice the load alone, half of them are served, and these wait for most of the time that they have."""
    run = Run(FIRM, ALONE, 2.0, seed)
    assert run.served >= 0.54
    assert statistics.median(run.first_tokens_s) >= 0.75 * MOST_S
    assert run.made >= 0.98 * run.plain


def test_chats_beside_them_stay_in_time_where_they_yield():
    requests = [one for seed in SEEDS for one in Run(YIELDS, BESIDE, 2.0, seed).requests]
    assert in_time(requests) >= 0.95
