"""Streams of every shape that engines give their events: the same bytes, what they cost told, nothing taken for more."""

import json

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk, streams
from gateway.wire import until
from tidegate.types import ModelView, Outcome

CHAT = "/v1/chat/completions"


def compact(text, finish=None, *, last=False, **more):
    """An event as engines in C++ and Rust write it; `last`: its reason stands at its end."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    fields = {"model": "m", **more, "choices": [choice]} if last else {"choices": [choice], "model": "m", **more}
    return b"data: " + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7,"total_tokens":10}}\n\n'
STOP = compact("", "stop")


async def served(gateway, engine, ask, script, **fields):
    """What a client gets, and what the gateway makes of it."""
    records = []
    running = await gateway((await engine(script)).view())
    tell = running.gateway.flights._record
    running.gateway.flights._record = lambda record: (records.append(record), tell(record))
    answer = await ask(running, stream=True, **fields)
    await until(lambda: records)
    return answer, records[0]


async def in_pieces(wire, asked, *pieces):
    await wire.send(STREAM_HEAD, *pieces, LAST_CHUNK)


def scripted(*pieces):
    async def script(wire, asked):
        await in_pieces(wire, asked, *pieces)

    return script


SHAPES = {
    "endings that vary": [chunk(compact("词", last=number % 3 == 0, n=number % 2)) for number in range(12)],
    "several events a chunk": [chunk(compact("a") + compact("b")), chunk(compact("c")), chunk(compact("d") * 5)],
    "several chunks a packet": [
        chunk(compact("a")),
        chunk(compact("b")) + chunk(compact("c")),
        chunk(compact("d")) * 3,
    ],
    "a finish_reason that is content": [
        chunk(compact('"finish_reason":null}]}\n\n')),
        chunk(compact('finish_reason":"stop"')),
        chunk(compact('"finish_reason":"stop"}],"usage":{"prompt_tokens":1}')),
        chunk(compact("x", last=True)),
    ],
    "comments between": [
        chunk(compact("a")),
        chunk(b": ping\n\n"),
        chunk(compact("b")),
        chunk(b":\n\n" + compact("c")),
    ],
    "CRLF": [chunk(compact(text).replace(b"\n", b"\r\n")) for text in "abcd"],
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
async def test_a_stream_of_any_shape_is_the_same_bytes_and_its_cost_is_told(gateway, engine, ask, shape):
    events = b"".join(b"".join(_payloads(piece)) for piece in shape)
    script = scripted(chunk(compact("", role="assistant")), *shape, chunk(STOP), chunk(USAGE), chunk(DONE))
    answer, record = await served(gateway, engine, ask, script)
    assert answer.body == compact("", role="assistant") + events + STOP + DONE
    assert answer.whole
    assert (record.outcome, record.prompt_tokens, record.completion_tokens) == (Outcome.DONE, 3, 7)


def _payloads(piece):
    while piece:
        size, _, rest = piece.partition(b"\r\n")
        yield rest[: int(size, 16)]
        piece = rest[int(size, 16) + 2 :]


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(
    "end",
    [
        [chunk(STOP + USAGE), chunk(DONE)],
        [chunk(STOP + USAGE + DONE)],
        [chunk(STOP), chunk(USAGE + DONE)],
        [chunk(compact("z") + STOP + USAGE), chunk(DONE)],
        [chunk(compact("z")) + chunk(STOP) + chunk(USAGE) + chunk(DONE)],
    ],
)
async def test_usage_in_the_packet_or_chunk_of_the_finish_is_counted_and_only_shown_to_who_asked(
    gateway, engine, ask, end, asked
):
    options = {"stream_options": {"include_usage": True}} if asked else {}
    script = scripted(*[chunk(compact("词"))] * 4, *end)
    answer, record = await served(gateway, engine, ask, script, **options)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 7)
    assert (USAGE in answer.body) == asked
    assert answer.body.endswith(DONE)
    assert answer.body.count(STOP) == 1


@pytest.mark.parametrize("last", [True, False])
async def test_events_around_the_size_up_to_which_they_are_known_by_their_length_pass_whole(gateway, engine, ask, last):
    def sized(payload_bytes):
        return compact("x" * (payload_bytes - len(compact("", last=last))), last=last)

    payloads = [sized(size) for size in (4083, 4087, 4088, 4089, 4090, 4094, 4095, 4096, 4097, 9000)]
    assert {4090, 4094, 4095, 4096, 4097} <= {len(chunk(payload)) for payload in payloads}
    events = [compact("a", last=last), *payloads]
    answer, record = await served(gateway, engine, ask, streams(*events, STOP, DONE))
    assert answer.body == b"".join((*events, STOP, DONE))
    assert answer.pieces == [*events, STOP, DONE]
    assert record.outcome is Outcome.DONE


async def test_comments_alone_are_no_progress_wherever_they_come(gateway, engine, ask):
    """An engine that hangs and has its front say so every second is asked for elsewhere like any that hangs."""
    seen = []

    async def script(wire, asked):
        await wire.send(STREAM_HEAD, *[chunk(compact("a"))] * 3)
        flight = await one_flight()
        for number in range(20):
            await wire.send(chunk(b": ping %d\n\n" % number))
            seen.append(flight._relay.progress)
        await wire.send(chunk(b":\n\n"), chunk(STOP), chunk(DONE), LAST_CHUNK)

    async def one_flight():
        await until(lambda: running.gateway.flights.active)
        (flight,) = running.gateway.flights.active
        await until(lambda: flight._relay is not None and flight._relay.progress == 3)
        return flight

    running = await gateway((await engine(script)).view())
    answer = await ask(running, stream=True)
    assert set(seen) == {3}
    assert answer.body.count(b": ping") == 20


async def test_a_stream_that_loses_what_it_kept_leaves_the_connection_it_once_had_to_who_has_it_now(
    gateway, engine, ask
):
    """Its engine ended it in good order and serves the next client, while it waits for another engine to go on."""
    unfinished = scripted(*[chunk(compact("mine"))] * 4)

    async def first(wire, asked):
        if "second" not in asked.body.decode():
            await unfinished(wire, asked)
            return
        await wire.send(STREAM_HEAD, *[chunk(compact("theirs"))] * 4)
        await until(lambda: one_lost)
        await wire.send(*[chunk(compact("theirs too"))] * 4, chunk(STOP), chunk(DONE), LAST_CHUNK)

    async def other(wire, asked):
        await until(lambda: one_lost)
        await wire.send(STREAM_HEAD, chunk(compact(" rest")), chunk(STOP), chunk(DONE), LAST_CHUNK)

    one_lost = []
    front, behind = await engine(first), await engine(other)
    running = await gateway(front.view(continues=True), behind.view("pool-1", continues=True), models=(ModelView("m"),))
    running.gateway.flights.random = lambda: 0.0
    async with await running.connect() as mine, await running.connect() as theirs:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "first"}]}
        mine.request("POST", CHAT, json.dumps(body).encode())
        await until(lambda: behind.asked)
        (flight,) = running.gateway.flights.active
        body["messages"][0]["content"] = "second"
        theirs.request("POST", CHAT, json.dumps(body).encode())
        await until(lambda: len(front.asked) == 2 and len(front.wires) == 1)
        await until(lambda: any(one.pipe for one in running.replica().endpoint.connections))
        flight.lose()
        one_lost.append(True)
        got, other_got = await mine.answer(), await theirs.answer()
    assert b"theirs" not in got.body
    assert b"rest" in got.body
    assert other_got.body.count(b"theirs too") == 4
    assert b"mine" not in other_got.body


async def test_an_idle_connection_holds_neither_the_last_stream_nor_its_client(gateway, engine, ask):
    running = await gateway((await engine(streams(*[compact("x" * 999)] * 9, STOP, DONE))).view())
    await ask(running, stream=True)
    (connection,) = running.replica().endpoint.connections
    for held in (connection.keep, connection.forward, connection.pipe):
        assert getattr(held, "__self__", None) is None


async def test_events_whose_first_ends_otherwise_are_soon_known_by_their_ending(gateway, engine, ask):
    """As vLLM's do."""
    asked = []

    async def script(wire, request):
        await wire.send(STREAM_HEAD, chunk(compact("a", last=True).replace(b"]}\n", b'],"prompt":null}\n')))
        for text in "bcdefgh":
            await wire.send(chunk(compact(text, last=True)))
            (connection,) = running.replica().endpoint.connections
            asked.append(connection.ending)
        await wire.send(chunk(STOP), chunk(DONE), LAST_CHUNK)

    running = await gateway((await engine(script)).view())
    assert (await ask(running, stream=True)).whole
    assert asked[-1] == b'finish_reason":null}]}\n\n\r\n'
