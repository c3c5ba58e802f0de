"""A client that goes away: the engine is let go at once, the permit is back, and it is nobody's fault."""

import asyncio
import json
import socket

import pytest

from gateway.byte_engine import STREAM_HEAD, ByteEngine, chunk, event
from gateway.wire import until
from tidegate.types import DialectName, Outcome

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
STREAM = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
GOINGS = ["close", "reset", "half_close"]


async def leave(client, how: str) -> None:
    if how == "close":
        client.writer.close()
    else:
        getattr(client, how)()


@pytest.mark.parametrize("how", GOINGS)
async def test_in_the_middle_of_a_stream(gateway, engine, how):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, STREAM)
        await client.head()
        await client.chunk()
        await leave(client, how)
        await until(lambda: one.left == 1, "the engine being let go", deadline_s=0.5)
    await running.ended(Outcome.CANCELLED)
    assert running.replica().failures == 0


@pytest.mark.parametrize("how", GOINGS)
@pytest.mark.parametrize("dialect", list(DialectName))
async def test_while_a_json_answer_is_computed(gateway, engine, how, dialect):
    async def script(wire, asked):
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view(dialect=dialect))
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        await until(lambda: one.asked)
        await leave(client, how)
        await until(lambda: one.left == 1, "the engine being let go", deadline_s=0.5)
    await running.ended(Outcome.CANCELLED)
    assert running.replica().failures == 0


async def test_while_a_json_answer_is_put_together_from_a_stream(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view(dialect=DialectName.LLAMACPP))
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        await until(lambda: one.asked)
        await asyncio.sleep(0.01)
        client.reset()
        await until(lambda: one.left == 1, deadline_s=0.5)
    await running.ended(Outcome.CANCELLED)


@pytest.mark.parametrize("how", GOINGS)
async def test_while_the_engine_is_being_connected_to(gateway, how):
    """Its backlog is full, so connecting takes as long as it takes."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(full.getsockname())
        waiting.append(sock)
    one = ByteEngine()
    one.port = full.getsockname()[1]
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, BODY)
        await until(lambda: running.gateway.flights.tasks)
        await asyncio.sleep(0.02)
        assert running.replica().in_flight == 1
        await leave(client, how)
        await until(lambda: not running.gateway.flights.tasks, deadline_s=0.5)
    await running.ended(Outcome.CANCELLED)
    for sock in (full, *waiting):
        sock.close()


async def test_while_nothing_of_a_slow_read_stream_is_read(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD)
        while True:
            wire.writer.write(chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
            await wire.writer.drain()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect(receive_bytes=4096) as client:
        client.request("POST", CHAT, STREAM)
        await client.head()
        await until(lambda: next(iter(running.gateway.server.connections)).paused_since is not None)
        client.reset()
        await until(lambda: one.wires[0].gone, "the engine being let go", deadline_s=1)
    await running.ended(Outcome.CANCELLED)


async def test_while_tokens_are_counted(gateway, engine):
    async def script(wire, asked):
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", "/tokenize", b'{"model":"m","prompt":"x"}')
        await until(lambda: one.asked)
        client.reset()
        await until(lambda: one.left == 1, deadline_s=0.5)


async def test_a_hundred_at_once_leave_nothing_behind(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view())
    clients = [await running.connect() for _ in range(100)]
    for client in clients:
        client.request("POST", CHAT, STREAM)
    await until(lambda: running.replica().in_flight == 100)
    await until(lambda: len(one.asked) == 100)
    for client in clients:
        client.reset()
    await running.ended(Outcome.CANCELLED, 100)
    await until(lambda: one.left == 100)


async def test_a_gateway_that_is_closed_lets_every_engine_go(gateway, engine):
    async def script(wire, asked):
        await wire.send(STREAM_HEAD, chunk(event("a")))
        await wire.until_gone()

    one = await engine(script)
    running = await gateway(one.view())
    async with await running.connect() as client:
        client.request("POST", CHAT, STREAM)
        await client.head()
        assert not await running.gateway.close(0.05)
        await until(lambda: one.left == 1)
    await running.ended(Outcome.CANCELLED)
