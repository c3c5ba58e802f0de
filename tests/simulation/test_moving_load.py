"""Load that rises and falls, clients that come again when they are told to, and prompts that hold up an engine."""

import random
import statistics

import pytest
from world import Engine, Gateway, Mix, Request, World, arrive, in_time

SEEDS = (1, 2, 3)
CHAT = Mix({"interactive": 1.0}, {"interactive": 32})


def engines(world):
    return [Engine(world), Engine(world)]


def first_tokens(requests):
    return sorted(one.first - one.at for one in requests if one.first is not None)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_refused_and_comes_again_when_told_is_let_in(seed):
    """Three times what can be served for ten seconds, then half of it. Nobody is told to wait for longer than it takes."""
    world, told, let_in, come_again = World(), [], [], []

    def refused(request):
        if request.returns:
            return
        request.returns = 1
        told.append(request.refused)

        def again():
            request.refused = None
            gateway.ask(request)
            let_in.append(request.refused is None)
            come_again.append(request)

        world.later(request.refused, again)

    gateway = Gateway(world, engines(world), seed=seed, on_refused=refused)
    rng, capacity = random.Random(seed), CHAT.capacity(2)
    arrive(world, gateway.ask, CHAT, 3.0 * capacity, begin=0, end=10, rng=rng)
    arrive(world, gateway.ask, CHAT, 0.5 * capacity, begin=10, end=120, rng=rng)
    world.run(300)
    assert len(told) > 300
    assert statistics.mean(let_in) >= 0.9
    cleared_s = max(one.end for one in come_again if one.end is not None) - 10
    assert statistics.median(told) <= 1.5 * cleared_s


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_step_of_the_load_chats_are_in_time_again_within_seconds_and_limits_rest(seed):
    world, mix = World(), Mix()
    gateway = Gateway(world, engines(world), seed=seed)
    rng, capacity = random.Random(seed), mix.capacity(2)
    arrive(world, gateway.ask, mix, 0.5 * capacity, begin=0, end=10, rng=rng)
    arrive(world, gateway.ask, mix, 3.0 * capacity, begin=10, end=20, rng=rng)
    after = arrive(world, gateway.ask, mix, 0.5 * capacity, begin=20, end=40, rng=rng)
    world.run(200)
    assert in_time([one for one in after if one.at > 25]) >= 0.99
    assert {tuple(limits) for at, limits in gateway.limits if at > 16} == {(16.0, 16.0)}


@pytest.mark.parametrize("seed", SEEDS)
def test_long_prompts_do_not_stand_before_short_chats(seed):
    """A prompt of 16,384 tokens a second, each of which holds up its engine for four, beside chats at 0.3 times what
    two engines can serve of the usual mix."""

    def p99(longs):
        world = World()
        gateway = Gateway(world, engines(world), seed=seed)
        chats = arrive(world, gateway.ask, CHAT, 0.3 * Mix().capacity(2), begin=0, end=120, rng=random.Random(seed))
        for second in range(3, 120) if longs else ():
            ask = Request("long", float(second), 32, 16_384)
            world.at(float(second), lambda ask=ask: gateway.ask(ask))
        world.run(400)
        assert all(one.first is not None for one in chats)
        firsts = first_tokens(chats)
        return firsts[int(0.99 * len(firsts))]

    assert p99(longs=True) <= 1.2 * p99(longs=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_conversation_keeps_nobody_from_its_replica_once_its_prompt_is_read(seed):
    """A prompt of 4,100 tokens and an answer of 1,500 every 20 s, beside chats at 0.6 times what two engines serve."""
    world = World()
    gateway = Gateway(world, engines(world), seed=seed)
    chats = arrive(world, gateway.ask, CHAT, 0.6 * CHAT.capacity(2), begin=0, end=100, rng=random.Random(seed))
    for second in range(3, 100, 20):
        ask = Request("standard", float(second), 1500, 4100)
        world.at(float(second), lambda ask=ask: gateway.ask(ask))
    world.run(300)
    assert in_time(chats) >= 0.99
