"""A stream on its way from an engine to a client: the same bytes, whole events, one write each, at once."""

import asyncio
import json

import pytest

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk, event, streams
from gateway.wire import until

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "你好"}], "stream": True}).encode()
CHAT = "/v1/chat/completions"
EVENTS = [event("盘古"), event("😀👩‍👩‍👧"), event("a"), b": a comment\n\n", event("龘\\n"), DONE]


def borders(ending: bytes = b"\n\n"):
    """Byte positions in the stream at which an event ends."""
    at, found = 0, set()
    for one in EVENTS:
        at += len(one) + 2 * (len(ending) - 2) // 2
        found.add(at)
    return found


@pytest.mark.parametrize("framing", ["a chunk an event", "one chunk", "two chunks", "until close"])
async def test_chinese_and_emoji_survive_a_cut_at_every_byte(gateway, engine, framing):
    """Whatever byte TCP cuts at, the client gets the same bytes, and each piece it gets ends where an event ends."""
    payload = b"".join(EVENTS)
    cut = {"at": 0}

    async def script(wire, asked):
        if framing == "until close":
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            await wire.send(payload[: cut["at"]], payload[cut["at"] :])
            wire.close()
            return
        if framing == "two chunks":
            await wire.send(STREAM_HEAD, chunk(payload[: cut["at"]]), chunk(payload[cut["at"] :]), LAST_CHUNK)
            return
        framed = b"".join(map(chunk, EVENTS)) if framing == "a chunk an event" else chunk(payload)
        whole = STREAM_HEAD + framed + LAST_CHUNK
        await wire.send(whole[: cut["at"]], whole[cut["at"] :])

    one = await engine(script)
    running = await gateway(one.view())
    ends = borders()
    total = len(payload) + (0 if framing in {"until close", "two chunks"} else len(STREAM_HEAD) + 50)
    async with await running.connect() as client:
        for cut["at"] in range(1, total - 1):
            answer = await client.ask("POST", CHAT, BODY)
            assert answer.body == payload, cut
            assert answer.whole
            at = 0
            for piece in answer.pieces:
                at += len(piece)
                assert at in ends, (cut, piece)
    assert running.outcomes == {"done": total - 2}


async def test_an_event_leaves_before_the_next_one_comes_in_one_write(gateway, engine):
    """The engine sends an event only when the client has the one before: nothing is held back."""
    seen = asyncio.Queue()

    async def script(wire, asked):
        await wire.send(STREAM_HEAD)
        for one in EVENTS:
            await wire.send(chunk(one))
            assert await asyncio.wait_for(seen.get(), 2) == one
        await wire.send(LAST_CHUNK)

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        head = await client.head()
        assert head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert head.headers["cache-control"] == "no-cache"
        assert head.headers["x-tidegate-replica"] == "pool-0"
        assert head.headers["x-request-id"]
        while piece := await client.chunk():
            seen.put_nowait(piece)


async def test_an_event_leaves_in_one_write(gateway, engine):
    one = await engine(streams(*EVENTS))
    running = await gateway(one.view())
    writes = []
    async with await running.connect() as client:
        await client.ask("GET", "/health")
        (connection,) = running.gateway.server.connections
        transport = connection.transport

        class Counting:
            def write(self, data):
                writes.append(bytes(data))
                transport.write(data)

            def __getattr__(self, name):
                return getattr(transport, name)

        connection.transport = Counting()
        connection.write = running.gateway.server.outbox.writer(connection.transport)
        assert (await client.ask("POST", CHAT, BODY)).pieces == EVENTS
    head, _, first = writes[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    framed = [*map(chunk, EVENTS), b"0\r\n\r\n"]
    assert first + b"".join(writes[1:]) == b"".join(framed)
    assert all(any(event in write for write in writes) for event in framed)


async def test_events_of_other_line_ends_are_whole_events_too(gateway, engine):
    events = [one.replace(b"\n\n", b"\r\n\r\n") for one in EVENTS]
    one = await engine(streams(*(half for one in events for half in (one[:7], one[7:]))))
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert answer.pieces == events


async def test_a_tail_over_64_kib_flows_before_its_event_ends(gateway, engine):
    go_on = asyncio.Event()
    long = event("长" * 40_000)

    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(long[:70_000]))
        await go_on.wait()
        await wire.send(chunk(long[70_000:]), chunk(DONE), LAST_CHUNK)

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        await client.head()
        received = b""
        while len(received) < 65_000:
            received += await client.chunk()
        go_on.set()
        while piece := await client.chunk():
            received += piece
        assert received == long + DONE


async def test_a_tail_under_64_kib_waits_for_its_end(gateway, engine):
    go_on = asyncio.Event()
    one_event = event("a" * 60_000)

    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(EVENTS[0] + one_event[:50_000]))
        await go_on.wait()
        await wire.send(chunk(one_event[50_000:]), LAST_CHUNK)

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        await client.head()
        assert await client.chunk() == EVENTS[0]
        go_on.set()
        assert await client.chunk() == one_event
        assert await client.chunk() == b""


async def test_what_an_engine_leaves_unfinished_at_its_end_is_passed_on(gateway, engine):
    one = await engine(streams(EVENTS[0], b"data: no blank line after this"))
    running = await gateway(one.view())
    async with await running.connect() as client:
        answer = await client.ask("POST", CHAT, BODY)
        assert answer.body == EVENTS[0] + b"data: no blank line after this"


async def test_a_slow_client_pauses_the_engine_and_gets_every_byte(gateway, engine):
    """Of 64 MiB that an engine would send, little leaves it while its client reads nothing."""
    size, count = 64 * 1024, 1024
    sent = {"bytes": 0}

    async def script(wire, asked):
        await wire.send(STREAM_HEAD)
        big = b"data: " + b"x" * (size - 8) + b"\n\n"
        for _ in range(count):
            wire.writer.write(chunk(big))
            await wire.writer.drain()
            sent["bytes"] += size
        await wire.send(LAST_CHUNK)

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect(receive_bytes=4096) as client:
        client.request("POST", CHAT, BODY)
        await client.head()
        last = -1
        while sent["bytes"] != last:
            last = sent["bytes"]
            await asyncio.sleep(0.1)
        assert sent["bytes"] < size * count / 2, "the engine had to wait"
        (connection,) = running.gateway.server.connections
        assert connection.transport.get_write_buffer_size() < 1024 * 1024
        total = 0
        while piece := await client.chunk():
            total += len(piece)
        assert total == size * count
    await until(lambda: running.outcomes == {"done": 1})


async def test_a_pool_connection_is_not_left_paused_by_a_slow_client(gateway, engine):
    """The answer's last write finds the client slow: the connection to the engine is free already, and must read."""
    body = b'{"text":"%b"}' % (b"x" * 240_000)

    async def script(wire, asked):
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    one = await engine(script)
    running = await gateway(one.view())
    json_body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    slow = [await running.connect(receive_bytes=2048) for _ in range(3)]
    async with await running.connect() as quick:
        for client in slow:
            for _ in range(40):
                client.request("POST", CHAT, json_body)
        connections = running.gateway.server.connections
        await until(lambda: sum(one.paused_since is not None for one in connections) == len(slow))
        for _ in range(5):
            answer = await asyncio.wait_for(quick.ask("POST", CHAT, json_body), 2)
            assert answer.body == body
        for client in slow:
            client.reset()


async def test_http_1_0_gets_the_stream_without_chunks(gateway, engine):
    one = await engine(streams(*EVENTS))
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.send(b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(BODY), BODY))
        answer = await client.answer()
        assert answer.body == b"".join(EVENTS)
