"""A replica dies under a stream, or fails a request: what the client sees of it."""

import asyncio
import json

import pytest
from msgspec import structs

from gateway.byte_engine import DONE, ByteEngine, event, streams
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.types import DialectName, GatewayOptions, ModelView, ReplicaState, ReplicaView

CHAT = "/v1/chat/completions"
TOKENS = 24


def view(server, name, version="v1", **more):
    return ReplicaView(
        id=name,
        pool="pool",
        model="m",
        url=server.url,
        dialect=DialectName.LLAMACPP,
        state=ReplicaState.READY,
        version=version,
        **more,
    )


@pytest.fixture
async def pair():
    """Two engines of the same version, which would say the same."""
    options = FakeServerOptions(model="m", dialect=DialectName.LLAMACPP, tokens=TOKENS, gap_ms=1, record=True)
    async with FakeServer(options) as one, FakeServer(options) as other:
        yield one, other


async def stream(running, path=CHAT, **fields):
    if path == CHAT:
        fields.setdefault("messages", [{"role": "user", "content": "tell me"}])
    body = json.dumps({"model": "m", "stream": True, **fields}).encode()
    async with await running.connect() as client:
        answer = await client.ask("POST", path, body)
    events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event.startswith(b"data: ")]
    return answer, [json.loads(event) for event in events if event != b"[DONE]"], events[-1] == b"[DONE]"


def text_of(events):
    return "".join(
        choice.get("text") or choice.get("delta", {}).get("content") or ""
        for event in events
        for choice in event["choices"]
    )


async def begin(gateway, pair, *, fault, **options):
    """A gateway whose first choice is the engine with the fault."""
    one, other = pair
    one.set_fault(fault)
    running = await gateway(
        view(one, "pool-0"), view(other, "pool-1"), models=(ModelView("m"),), options=GatewayOptions(**options)
    )
    running.gateway.flights.random = lambda: 0.0
    return running


WHOLE = " ".join(f"词{number}" for number in range(TOKENS))


@pytest.mark.parametrize("fault", ["close@5x1", "reset@9x1", "half_event_close@3x1", "bad_chunk@7x1", "close@1x1"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_the_text_goes_on_where_it_stopped_without_a_gap_and_with_nothing_twice(gateway, pair, fault, path):
    running = await begin(gateway, pair, fault=fault)
    fields = {} if path == CHAT else {"prompt": "tell me"}
    _, events, done = await stream(running, path, **fields)
    assert text_of(events).strip() == WHOLE
    assert done
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1
    assert not any("error" in event for event in events)
    if path == CHAT:
        assert sum("role" in event["choices"][0]["delta"] for event in events) == 1
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"][0]["finish_reason"]] == [
        "stop"
    ]
    assert running.outcomes == {"done": 1}


async def test_max_tokens_counts_both_parts_and_usage_is_that_of_one_answer(gateway, pair):
    running = await begin(gateway, pair, fault="close@5x1")
    _, events, done = await stream(running, max_tokens=12, stream_options={"include_usage": True})
    assert text_of(events).split() == WHOLE.split()[:12]
    assert done
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert json.loads(pair[1].requests[-1].body)["max_tokens"] == 7


async def test_tokens_that_came_joined_in_one_event_are_counted_one_by_one(gateway, pair):
    """vLLM joins what it has computed while it could not send."""
    other, words = pair[1], [f"词{number} " for number in range(6)]
    joined = [event("".join(words[at : at + 3])) for at in (0, 3)]
    engine = await ByteEngine().start(streams(*joined))
    try:
        dying = engine.view("pool-0", version="v1", dialect=DialectName.LLAMACPP)
        running = await gateway(dying, view(other, "pool-1"), models=(ModelView("m"),))
        running.gateway.flights.random = lambda: 0.0
        _, events, done = await stream(running, max_tokens=12, stream_options={"include_usage": True})
    finally:
        await engine.stop()
    assert json.loads(other.requests[-1].body)["max_tokens"] == 12 - 6
    assert (len(text_of(events).split()), done) == (12, True)
    assert events[-1]["usage"]["completion_tokens"] == 12


async def test_a_replica_that_dies_after_its_last_token_leaves_nothing_to_ask(gateway, pair):
    running = await begin(gateway, pair, fault="close@6x1")
    _, events, done = await stream(running, max_tokens=6)
    assert text_of(events).split() == WHOLE.split()[:6]
    assert (done, events[-1]["choices"][0]["finish_reason"]) == (True, "length")


async def test_it_moves_again_when_the_second_replica_dies_too(gateway, pair):
    one, other = pair
    other.set_fault("close@4x1")
    options = FakeServerOptions(model="m", dialect=DialectName.LLAMACPP, tokens=TOKENS)
    async with FakeServer(options) as third:
        one.set_fault("close@5x1")
        running = await gateway(view(one, "pool-0"), view(other, "pool-1"), view(third, "pool-2"))
        running.gateway.flights.random = lambda: 0.0
        _, events, done = await stream(running)
    assert (text_of(events).strip(), done) == (WHOLE, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_what_cannot_be_continued_ends_with_an_error_event_and_without_done(gateway, pair, fields):
    running = await begin(gateway, pair, fault="close@5x1")
    _, events, done = await stream(running, **fields)
    assert events[-1]["error"]["code"] == "engine_failed"
    assert not done
    assert running.outcomes == {"failed": 1}


async def test_no_replica_of_another_version_goes_on_with_it(gateway, pair):
    one, other = pair
    one.set_fault("close@5x1")
    running = await gateway(view(one, "pool-0"), view(other, "pool-1", version="v2"))
    running.gateway.flights.random = lambda: 0.0
    _, events, done = await stream(running)
    assert (events[-1]["error"]["code"], done) == ("engine_failed", False)
    assert not other.requests


async def test_a_replica_that_does_not_continue_as_it_would_have_gone_on_is_not_asked(gateway, pair):
    one, other = pair
    one.set_fault("close@5x1")
    running = await gateway(view(one, "pool-0"), view(other, "pool-1", continues=False))
    running.gateway.flights.random = lambda: 0.0
    _, events, done = await stream(running)
    assert (events[-1]["error"]["code"], done) == ("engine_failed", False)


async def test_a_stream_past_its_bound_is_not_kept(gateway, pair):
    running = await begin(gateway, pair, fault="close@20x1", keep_stream_bytes=100)
    flights = running.gateway.flights
    feed, looked = flights.options, []

    def options():
        return feed()

    flights.options = options

    async def look_at_each_event():
        while not looked:
            for flight in flights.active:
                if flight.measure() > 100:
                    flights.look(flights.now())
                    looked.append(1)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(look_at_each_event())
    _, events, done = await stream(running)
    await task
    assert (events[-1]["error"]["code"], done) == ("engine_failed", False)


async def test_a_stalled_stream_is_moved_and_comments_are_no_progress(gateway, pair):
    running = await begin(gateway, pair, fault="comments@5x1", stall_timeout_s=30.0)
    flights = running.gateway.flights
    real, ahead = flights.now, [0.0]
    flights.now = lambda: real() + ahead[0]

    async def pass_the_time():
        while not any(flight.measure() for flight in flights.active):
            await asyncio.sleep(0)
        while not pair[1].requests:
            flights.look(flights.now())
            ahead[0] += 20
            for _ in range(50):
                await asyncio.sleep(0)

    task = asyncio.ensure_future(pass_the_time())
    _, events, done = await stream(running)
    await task
    assert (text_of(events).strip(), done) == (WHOLE, True)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("wants_stream", [True, False])
async def test_an_engines_error_is_not_passed_on_while_another_engine_answers(gateway, pair, status, wants_stream):
    running = await begin(gateway, pair, fault=f"status={status}")
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": wants_stream}
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, json.dumps(body).encode())
    assert answer.status == 200
    assert answer.headers["x-tidegate-replica"] == "pool-1"


async def test_with_no_other_engine_its_error_is_passed_on(gateway, pair):
    one, _ = pair
    one.set_fault("status=503")
    running = await gateway(view(one, "pool-0"))
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, json.dumps({"model": "m", "messages": [{"role": "user"}]}).encode())
    assert answer.status == 503


async def test_usage_is_asked_for_and_shown_only_to_who_asked(gateway, pair):
    running = await gateway(view(pair[0], "pool-0"))
    _, events, done = await stream(running)
    assert done
    assert all(event["choices"] for event in events)
    _, events, done = await stream(running, stream_options={"include_usage": True})
    assert done
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == TOKENS
    assert json.loads(pair[0].requests[0].body)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("dialect", [DialectName.LLAMACPP, DialectName.VLLM])
@pytest.mark.parametrize("wants_stream", [True, False])
async def test_a_prompt_that_is_too_long_is_said_as_openai_says_it_with_both_numbers(gateway, dialect, wants_stream):
    options = FakeServerOptions(model="m", dialect=dialect, context_tokens=64)
    async with FakeServer(options) as server:
        server.set_fault("context_length")
        one = view(server, "pool-0")
        running = await gateway(structs.replace(one, dialect=dialect))
        body = {"model": "m", "stream": wants_stream, "messages": [{"role": "user", "content": "x " * 200}]}
        async with await running.connect() as client:
            answer = await client.ask("POST", CHAT, json.dumps(body).encode())
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "64 tokens" in error["message"]


async def test_a_client_that_waits_is_told_so_and_then_errors_come_as_events(gateway):
    held = asyncio.Event()

    async def script(wire, asked):
        await held.wait()
        wire.close()

    engine = await ByteEngine().start(script)
    running = await gateway(engine.view(), options=GatewayOptions(keepalive_after_s=1.0))
    flights = running.gateway.flights
    async with await running.connect() as client:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        client.request("POST", CHAT, json.dumps(body).encode())
        while not flights.active:
            await asyncio.sleep(0)
        flights.look(flights.now() + 1.5)
        held.set()
        answer = await client.answer()
    assert answer.status == 200
    assert answer.body.startswith(b": waiting\n\n")
    assert json.loads(answer.body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == "engine_failed"
    await engine.stop()


@pytest.mark.parametrize("wants_stream", [True, False])
async def test_llama_cpps_null_before_the_answers_to_several_prompts_is_not_passed_on(gateway, engine, wants_stream):
    def piece(index, text, **more):
        choice = {"index": index, "text": text, "finish_reason": None, **more}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"

    events = [b"data: null\n\n", piece(0, "a", finish_reason="stop"), piece(1, "b", finish_reason="stop"), DONE]
    one = await engine(streams(*events))
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    body = {"model": "m", "prompt": ["x", "y"], "stream": wants_stream}
    async with await running.connect() as client:
        answer = await client.ask("POST", "/v1/completions", json.dumps(body).encode())
    assert answer.status == 200
    if wants_stream:
        assert answer.body == b"".join(events[1:])
    else:
        assert [choice["text"] for choice in json.loads(answer.body)["choices"]] == ["a", "b"]


async def test_the_answers_of_a_stuck_replica_are_asked_for_elsewhere(gateway, pair):
    one, _ = pair
    one.set_fault("stall@5x1")
    running = await gateway(view(one, "pool-0"), view(pair[1], "pool-1"))
    flights = running.gateway.flights
    flights.random = lambda: 0.0

    async def find_it_stuck():
        while not any(flight.measure() for flight in flights.active):
            await asyncio.sleep(0)
        replica = running.replica("pool-0")
        for _ in range(3):
            replica.failed("stuck")

    task = asyncio.ensure_future(find_it_stuck())
    _, events, done = await stream(running)
    await task
    assert (text_of(events).strip(), done) == (WHOLE, True)
