"""Requests that wait for room: who goes, who is refused, who is next, and what class and length they are given."""

import asyncio
import json
import math
import re
import time

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk, event, json_head
from gateway.conftest import CHAT, key_view
from gateway.wire import until
from tidegate.types import (
    CLASSES,
    RULES,
    ClassView,
    DialectName,
    FleetSnapshot,
    GatewayOptions,
    LimitOptions,
    ModelView,
    Outcome,
    ReplicaState,
    RuleView,
    TenantView,
)

ANSWER = b'{"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
ONE = LimitOptions(kind="fixed", sequences=1)
WAITING = "a request waiting"


def body(text: str = "x", **fields) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def classes(**changed) -> tuple[ClassView, ...]:
    """The built-in classes, with a `standard` of the test's own."""
    return tuple(ClassView("standard", **changed) if one.name == "standard" else one for one in CLASSES)


class Held:
    """An engine's script: it begins every answer, and ends each when `release` has been called for it."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(0)

    async def __call__(self, wire, asked) -> None:
        stream = asked.json.get("stream")
        if stream:
            await wire.send(STREAM_HEAD, chunk(event("a")))
        free, gone = (asyncio.ensure_future(one) for one in (self.free.acquire(), wire.until_gone()))
        await asyncio.wait((free, gone), return_when=asyncio.FIRST_COMPLETED)
        free.cancel()
        gone.cancel()
        if wire.gone:  # so that a test that fails ends
            return
        if stream:
            last = chunk(event("b", finish_reason="stop")), chunk(DONE), LAST_CHUNK
            await wire.send(*last)
        else:
            await wire.send(json_head(len(ANSWER)) + ANSWER)

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self.free.release()


@pytest.fixture
async def one_slot(gateway):
    """`await one_slot(views…)`: a gateway whose replicas have room for one request each. At the end nothing is held."""
    begun = []

    async def start(*views, limits=ONE, **snapshot):
        running = await gateway(*views, limits=limits, **snapshot)
        begun.append((running, running.gateway.lines.of("m")))
        return begun[-1]

    yield start
    for running, line in begun:
        replicas = running.gateway.fleet.replicas.values()
        await until(lambda them=replicas: not any(one.in_flight or one.jobs for one in them), "replicas without work")
        assert not running.gateway.metrics.in_flight
        assert {name: state.in_flight for name, state in line.states.items()} == dict.fromkeys(line.states, 0)
        assert (line.queue.count, line.queue.bytes, list(line.queue)) == (0, 0, [])


def later(running, seconds: float) -> None:
    """The gateway's clock is ahead from now on."""
    running.gateway.now = running.gateway.flights.now = lambda: time.monotonic() + seconds


def requests(running) -> dict[tuple[str, str], int]:
    """Ended requests by class and outcome."""
    running.gateway.metrics.settle()
    found: dict[tuple[str, str], int] = {}
    for (_, klass, outcome, _), count in running.gateway.metrics.requests.items():
        found[klass, outcome] = found.get((klass, outcome), 0) + count
    return found


# clients that go


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_a_client_that_goes_while_it_waits_leaves_the_queue_and_the_next_one_is_granted(one_slot, engine, how):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second, await running.connect() as third:
        first.request("POST", CHAT, body("first"))
        await until(lambda: one.asked)
        second.request("POST", CHAT, body("second"))
        await until(lambda: line.queue.count == 1, WAITING)
        third.request("POST", CHAT, body("third"))
        await until(lambda: line.queue.count == 2, "two waiting")
        if how == "close":
            second.writer.close()
        else:
            getattr(second, how)()
        await until(lambda: line.queue.count == 1, "the one that goes having left the queue")
        assert running.outcomes == {"cancelled": 1}
        assert (running.replica().in_flight, line.states["standard"].in_flight) == (1, 1)
        running.gateway.lines.close()  # the end itself grants the next one, not a look at the queue later
        held.release(2)
        assert (await first.answer()).status == (await third.answer()).status == 200
    assert [asked.json["messages"][0]["content"] for asked in one.asked] == ["first", "third"]
    assert running.outcomes == {"cancelled": 1, "done": 2}
    assert requests(running) == {("standard", "cancelled"): 1, ("standard", "done"): 2}
    assert running.replica().failures == 0


# refusals


@pytest.mark.parametrize(
    ("limits", "most_wait_s"),
    [(ONE, 0.0), (LimitOptions(kind="fixed", sequences=1, queue_requests=0), 30.0)],
    ids=["a wait longer than the class allows", "a queue that is full"],
)
async def test_a_request_that_would_wait_too_long_is_told_at_once_when_to_come_again(
    one_slot, engine, limits, most_wait_s
):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view(), limits=limits, classes=classes(max_wait_s=most_wait_s))
    async with await running.connect() as first, await running.connect() as second:
        held.release()
        assert (await first.ask("POST", CHAT, body())).status == 200
        assert line.states["standard"].duration_s > 0
        first.request("POST", CHAT, body())
        await until(lambda: len(one.asked) == 2)
        told_ms = []
        for _ in range(2):
            answer = await second.ask("POST", CHAT, body())
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"], error["type"]) == (429, "busy", "rate_limit_error")
            assert set(error) == {"message", "type", "param", "code"}
            assert (answer.headers["x-tidegate-class"], "x-request-id" in answer.headers) == ("standard", True)
            assert "x-tidegate-queue-ms" not in answer.headers
            told_ms.append(int(answer.headers["retry-after-ms"]))
            assert int(answer.headers["retry-after"]) == max(1, math.ceil(told_ms[-1] / 1000))
            said_s = float(re.search(r"come again in ([\d.]+) s", error["message"])[1])
            assert abs(said_s - told_ms[-1] / 1000) < 0.06
        assert (line.queue.count, line.states["standard"].refused) == (0, 2)
        assert running.gateway.metrics.refused == {(429, "busy"): 2}
        held.release()
        assert (await first.answer()).status == 200
    assert len(one.asked) == 2
    assert running.outcomes == {"done": 2}


async def test_a_request_that_has_waited_for_as_long_as_its_class_allows_is_refused(one_slot, engine):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body())
        await until(lambda: one.asked)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, WAITING)
        later(running, 31.0)
        answer = await second.answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (429, "busy")
        assert answer.headers["x-tidegate-class"] == "standard"
        told_ms = int(answer.headers["retry-after-ms"])
        assert int(answer.headers["retry-after"]) == max(1, math.ceil(told_ms / 1000))
        held.release()
        assert (await first.answer()).status == 200
    assert len(one.asked) == 1


# permits


async def test_a_permit_is_held_until_the_last_byte_of_a_stream(one_slot, engine):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body(stream=True))
        assert (await first.head()).status == 200
        assert await first.chunk() == event("a")
        second.request("POST", CHAT, body(stream=True))
        await until(lambda: line.queue.count == 1, WAITING)
        later(running, 2.0)  # the queue is looked at, again and again, and the permit is still held
        line.look()
        assert (len(one.asked), line.queue.count, running.replica().in_flight) == (1, 1, 1)
        held.release()
        while await first.chunk():
            pass
        assert (await second.head()).status == 200
        assert len(one.asked) == 2
        assert (line.queue.count, running.replica().in_flight) == (0, 1)
        held.release()
        while await second.chunk():
            pass
    await running.ended(Outcome.DONE, 2)


# the fleet


async def test_what_waits_is_told_when_no_replica_is_left_and_served_when_one_is_back(one_slot, engine):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())

    def fleet(number: int, state: ReplicaState) -> None:
        views = (one.view(state=state),)
        running.gateway.apply(FleetSnapshot(number=number, models=(ModelView("m"),), replicas=views, limits=ONE))

    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body())
        await until(lambda: one.asked)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, WAITING)
        fleet(2, ReplicaState.STARTING)
        answer = await second.answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "no_replica_ready")
        assert answer.headers["retry-after"] == "2"
        assert answer.headers["retry-after-ms"] == "2000"
        assert line.queue.count == 0
        refused = await second.ask("POST", CHAT, body())
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        fleet(3, ReplicaState.READY)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, "the first one's permit still being held")
        held.release(2)
        assert (await first.answer()).status == (await second.answer()).status == 200
    assert len(one.asked) == 2
    assert running.outcomes == {"done": 2, "failed": 1}


async def test_a_request_that_waits_goes_to_a_replica_that_comes(one_slot, engine):
    held, free = Held(), Held()
    one, other = await engine(held), await engine(free)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body())
        await until(lambda: one.asked)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, WAITING)
        free.release()
        views = (one.view(), other.view("pool-1"))
        running.gateway.apply(FleetSnapshot(number=2, models=(ModelView("m"),), replicas=views, limits=ONE))
        assert (await second.answer()).status == 200
        held.release()
        assert (await first.answer()).status == 200
    assert (len(one.asked), len(other.asked)) == (1, 1)


async def test_what_waits_is_told_when_the_engine_dies_and_served_when_it_is_back(one_slot, engine):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body())
        await until(lambda: one.asked)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, WAITING)
        held.release()  # the first one's script ends with its connection
        await one.stop()
        assert (await first.answer()).status in {502, 503}
        answer = await second.answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "no_replica_ready")
        assert answer.headers["retry-after"] == "2"
        assert line.queue.count == 0
        await one.start(Held())
        one.script.release()
        later(running, 60.0)  # one request in a while may try a replica that nobody could connect to
        assert (await second.ask("POST", CHAT, body())).status == 200
    assert running.outcomes == {"done": 1, "failed": 2}


@pytest.mark.parametrize("gone", ["the path", "the model"])
async def test_what_waits_is_told_when_the_fleet_no_longer_has_what_it_asks_for(one_slot, engine, gone):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    content = json.dumps({"model": "m", "text_1": "a", "text_2": "b"}).encode()
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", "/v1/score", content)
        await until(lambda: one.asked)
        second.request("POST", "/v1/score", content)
        await until(lambda: line.queue.count == 1, WAITING)
        snapshot = FleetSnapshot(number=2, limits=ONE)
        if gone == "the path":
            views = (one.view(dialect=DialectName.LLAMACPP),)
            snapshot = FleetSnapshot(number=2, models=(ModelView("m"),), replicas=views, limits=ONE)
        running.gateway.apply(snapshot)
        held.release()
        assert (await first.answer()).status == 200
        answer = await second.answer()
        assert answer.status == (404 if gone == "the path" else 503)
        assert line.queue.count == 0
    assert len(one.asked) == 1


async def test_what_waits_beyond_the_time_of_a_whole_answer_is_ended(one_slot, engine):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view(), options=GatewayOptions(total_timeout_s=5.0))
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body())
        await until(lambda: one.asked)
        second.request("POST", CHAT, body())
        await until(lambda: line.queue.count == 1, WAITING)
        running.gateway.flights.look(time.monotonic() + 6.0)
        assert (await first.answer()).status == (await second.answer()).status == 504
        held.release()
    assert running.outcomes == {"failed": 2}


# classes


@pytest.mark.parametrize(
    ("rule", "asked", "path", "fields", "klass"),
    [
        (None, "streaming", CHAT, {}, "interactive"),
        (None, "Batch", CHAT, {}, "batch"),
        (None, "no such type", CHAT, {}, "standard"),
        (None, "", CHAT, {}, "standard"),
        (RuleView("batch", tenant="t"), "", CHAT, {}, "batch"),
        (RuleView("batch", tenant="another"), "", CHAT, {}, "standard"),
        (RuleView("batch", path="/v1/completions"), "", "/v1/completions", {}, "batch"),
        (RuleView("batch", path="/v1/completions"), "", CHAT, {}, "standard"),
        (RuleView("long", prompt_tokens_from=500), "", CHAT, {"user": "x" * 5000}, "long"),
        (RuleView("long", prompt_tokens_from=500), "", CHAT, {}, "standard"),
        (RuleView("long", max_tokens_from=100), "", CHAT, {"max_tokens": 100}, "long"),
        (RuleView("long", max_tokens_from=100), "", CHAT, {"max_tokens": 99}, "standard"),
    ],
)
async def test_a_request_is_of_the_class_that_it_asks_for_or_that_a_rule_gives_it(
    one_slot, engine, *, rule, asked, path, fields, klass
):
    held = Held()
    one = await engine(held)
    rules = RULES if rule is None else (rule, *RULES)
    running, line = await one_slot(one.view(), rules=rules, keys=(key_view("k"),), keys_required=True)
    held.release()
    headers = ("Authorization: Bearer k", *([f"X-Request-Type: {asked}"] if asked else []))
    content = body(prompt="x", **fields) if path != CHAT else body(**fields)
    async with await running.connect() as client:
        answer = await client.ask("POST", path, content, headers)
    assert (answer.status, answer.headers["x-tidegate-class"]) == (200, klass)
    assert requests(running) == {(klass, "done"): 1}
    assert {name: state.done for name, state in line.states.items() if state.done} == {klass: 1}
    (used,) = running.gateway.accounting.take_usage()
    assert (used.klass, used.tenant) == (klass, "t")


# the length of answers


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(
    ("klass", "tenant", "asked", "sent"),
    [
        ({"max_tokens_most": 50}, {}, 500, 50),
        ({"max_tokens_most": 50}, {}, 10, 10),
        ({"max_tokens": 100}, {}, 500, 500),
        ({}, {"max_tokens_most": 20}, 500, 20),
        ({"max_tokens_most": 50}, {"max_tokens_most": 20}, 500, 20),
        ({"max_tokens_most": 20}, {"max_tokens_most": 50}, 500, 20),
    ],
)
async def test_the_most_that_class_and_tenant_allow_reaches_the_engine(
    one_slot, engine, *, name, klass, tenant, asked, sent
):
    assert await sent_lengths(one_slot, engine, klass, tenant, {name: asked}) == {name: sent}


@pytest.mark.parametrize(
    ("klass", "tenant", "sent"),
    [
        ({}, {}, {}),
        ({"max_tokens": 100}, {}, {"max_tokens": 100}),
        ({}, {"max_tokens": 30}, {"max_tokens": 30}),
        ({"max_tokens": 100}, {"max_tokens": 30}, {"max_tokens": 30}),
        ({"max_tokens": 100, "max_tokens_most": 50}, {}, {"max_tokens": 50}),
        ({"max_tokens_most": 50}, {}, {"max_tokens": 50}),
    ],
)
async def test_the_default_of_class_and_tenant_reaches_the_engine(one_slot, engine, klass, tenant, sent):
    assert await sent_lengths(one_slot, engine, klass, tenant, {}) == sent


async def test_both_names_of_the_longest_answer_are_cut(one_slot, engine):
    asked = {"max_tokens": 500, "max_completion_tokens": 600}
    sent = await sent_lengths(one_slot, engine, {"max_tokens_most": 50}, {}, asked)
    assert sent == {"max_tokens": 50, "max_completion_tokens": 50}


async def sent_lengths(one_slot, engine, klass, tenant, asked) -> dict[str, int]:
    """What an engine is told of the longest answer."""
    held = Held()
    one = await engine(held)
    running, _ = await one_slot(
        one.view(),
        classes=classes(**klass),
        tenants=(TenantView("t", **tenant),),
        keys=(key_view("k"),),
        keys_required=True,
    )
    held.release()
    async with await running.connect() as client:
        assert (await client.ask("POST", CHAT, body(**asked), ("Authorization: Bearer k",))).status == 200
    return {name: value for name, value in one.asked[0].json.items() if name.startswith("max_")}


# what a client is told


@pytest.mark.parametrize("stream", [False, True], ids=["a JSON answer", "a stream"])
async def test_an_answer_says_how_long_it_has_waited(one_slot, engine, stream):
    held = Held()
    one = await engine(held)
    running, line = await one_slot(one.view())
    async with await running.connect() as first, await running.connect() as second:
        first.request("POST", CHAT, body(stream=stream))
        await until(lambda: one.asked)
        second.request("POST", CHAT, body(stream=stream))
        await until(lambda: line.queue.count == 1, WAITING)
        later(running, 9.0)
        held.release(2)
        answers = [await first.answer(), await second.answer()]
    waited = [int(answer.headers["x-tidegate-queue-ms"]) for answer in answers]
    assert waited[0] == 0
    assert 9000 <= waited[1] < 30_000
    assert [answer.status for answer in answers] == [200, 200]
