"""Refusals that are computed from the queue, and what an engine's death leaves of those who wait."""

import contextlib
import json
import math

import pytest

from gateway.byte_engine import ByteEngine
from gateway.conftest import CHAT
from gateway.held import Clock, Held, at_rest, chat, fixed
from gateway.wire import until
from tidegate.gateway.fleet import LAST_RESORT_S
from tidegate.types import ClassView


def waiting(running) -> int:
    return len(running.gateway.lines.of("m").queue)


@pytest.fixture
async def clients():
    """`await clients(running, count)`: connections that end with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def connect(running, count):
            return [await stack.enter_async_context(await running.connect()) for _ in range(count)]

        yield connect


async def begin(held, client, **fields):
    """Have a request on the engine."""
    count = len(held.gates)
    client.request("POST", CHAT, chat(**fields))
    await until(lambda: len(held.gates) > count, "the engine was asked")


async def wait_in_line(running, clients):
    """Have these clients' requests wait."""
    for client in clients:
        before = waiting(running)
        client.request("POST", CHAT, chat())
        await until(lambda before=before: waiting(running) == before + 1, "it waits")


async def finish(held, clients):
    """Have all of these answered, one after the other."""
    held.always = True
    held.open()
    for client in clients:
        assert (await client.answer()).status == 200


async def test_a_wait_too_long_is_refused_at_once_with_a_time_computed_from_the_queue(engine, gateway, clients):
    """Nothing is known of how long an answer takes, so a second is assumed: two more that wait are two seconds more."""
    told_ms = []
    for max_wait_s, ahead in ((1.5, 1), (3.5, 3)):
        held = Held()
        behind = await engine(held)
        view = ClassView("standard", max_wait_s=max_wait_s)
        running = await gateway(behind.view(), limits=fixed(1), classes=(view,), rules=())
        Clock(running)
        first, last, *others = await clients(running, ahead + 2)
        await begin(held, first)
        await wait_in_line(running, others)
        answer = await last.ask("POST", CHAT, chat())
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (429, "busy")
        told_ms.append(int(answer.headers["retry-after-ms"]))
        assert int(answer.headers["retry-after"]) == math.ceil(told_ms[-1] / 1000)
        assert told_ms[-1] >= (ahead + 1) * 1000
        assert waiting(running) == ahead
        await finish(held, (first, *others))
        assert at_rest(running)
    assert abs(told_ms[1] - told_ms[0] - 2000) <= 1


@pytest.mark.parametrize("bound", [{"queue_requests": 1}, {"queue_bytes": 100}])
async def test_a_queue_that_is_full_by_requests_or_bytes_takes_no_more(engine, gateway, clients, bound):
    held = Held()
    behind = await engine(held)
    running = await gateway(behind.view(), limits=fixed(1, **bound))
    first, second, third = await clients(running, 3)
    await begin(held, first)
    await wait_in_line(running, [second])
    refused = await third.ask("POST", CHAT, chat())
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (429, "busy")
    assert int(refused.headers["retry-after-ms"]) > 0
    await finish(held, (first, second))
    assert at_rest(running)


async def test_streams_whose_engine_dies_move_ahead_of_the_queue_and_past_the_limit(engine, gateway, clients):
    """An engine dies while requests wait and others stream: nothing leaks."""
    one, two = Held(), Held()
    dying, other = await engine(one), await engine(two)
    views = (view.view(name, version="v") for view, name in ((dying, "pool-0"), (other, "pool-1")))
    running = await gateway(*views, limits=fixed(1))
    running.gateway.flights.random = lambda: 0.0
    first, second, third = await clients(running, 3)
    await begin(one, first, stream=True)
    await first.head()
    await first.chunk()
    await begin(two, second, stream=True)
    await wait_in_line(running, [third])
    await dying.stop()
    await until(lambda: len(two.gates) == 2, "the stream goes on at the other")
    assert (running.replica("pool-1").in_flight, waiting(running)) == (2, 1)
    await finish(two, (second, third))
    while await first.chunk():
        pass
    await until(lambda: at_rest(running), "nothing is left behind")
    assert not running.replica("pool-1").report().by_class
    assert running.outcomes == {"done": 3}


async def test_with_every_replica_down_nobody_waits_and_one_that_is_back_serves_within_a_second(
    engine, gateway, clients
):
    """All replicas down with requests queued: 503 with Retry-After, and the queue does not grow."""
    held = Held()
    behind = await engine(held)
    running = await gateway(behind.view(), limits=fixed(1))
    clock = Clock(running)
    first, second, third, fourth = await clients(running, 4)
    await begin(held, first)
    await wait_in_line(running, [second, third])
    await behind.stop()
    assert (await first.answer()).status in {502, 503}
    for client in (second, third):
        answer = await client.answer()
        assert (answer.status, int(answer.headers["retry-after"]) >= 1) == (503, True)
    assert (await fourth.ask("POST", CHAT, chat())).status == 503
    assert waiting(running) == 0
    back = await ByteEngine().start(port=behind.port)
    try:
        clock.now_s += LAST_RESORT_S
        assert (await fourth.ask("POST", CHAT, chat())).status == 200, "a request tries it, without a restart"
        assert at_rest(running)
    finally:
        await back.stop()
