"""Clients that go, stop reading, or close one side: what the handler is told, and what stays in memory."""

import asyncio

import pytest

from gateway.wire import until
from tidegate.http import Limits

BIG = 64 * 1024


def waiting(told):
    """A handler that answers nothing and notes when its client goes."""

    def handler(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)

    return handler


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
async def test_a_client_that_goes_is_noticed_at_once_and_told_once(serve, how):
    told = []
    served = await serve(waiting(told))
    client = await served.connect()
    client.request("GET", "/")
    await until(lambda: served.exchanges)
    if how == "close":
        await client.close()
    else:
        getattr(client, how)()
    await until(lambda: told, "the handler being told", deadline_s=0.5)
    (exchange,) = told
    exchange.start(200)
    exchange.write(b"into the void")
    exchange.finish()
    exchange.respond(200)
    exchange.abort()
    assert exchange.finished
    await until(lambda: not served.server.connections)
    assert len(told) == 1
    await client.close()


async def test_a_client_that_goes_in_mid_stream_is_noticed(serve):
    told = []

    def stream(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)
        exchange.start(200)
        exchange.write(b"data: 1\n\n")

    served = await serve(stream)
    client = await served.connect()
    client.request("GET", "/")
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"
    client.reset()
    await until(lambda: told, deadline_s=0.5)
    assert served.server.busy == 0


async def test_a_client_that_half_closed_still_gets_what_was_answered(serve):
    served = await serve()
    async with await served.connect() as client:
        client.send(b"POST /nc HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
        client.half_close()
        assert (await client.answer()).body == b"ok"
        assert await client.ended()


async def test_a_client_that_goes_while_reading_nothing_is_noticed(serve):
    """Its side is closed while megabytes wait for it: closing must not wait until they are read."""
    told = []

    def flood(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)
        exchange.start(200)
        for _ in range(200):
            exchange.write(b"x" * BIG)

    served = await serve(flood)
    client = await served.connect(receive_bytes=4096)
    client.request("GET", "/")
    await until(lambda: served.exchanges and served.exchanges[0].paused)
    client.half_close()
    await until(lambda: told, deadline_s=0.5)
    await client.close()


async def test_a_finished_answer_is_no_disconnect(serve):
    told = []

    def handler(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)
        exchange.respond(200)

    served = await serve(handler)
    async with await served.connect() as client:
        await client.ask("GET", "/")
    await until(lambda: not served.server.connections)
    assert not told


async def test_a_slow_reader_pauses_and_resumes_the_writer_and_gets_every_byte(serve):
    total, seen = 32 * 1024 * 1024, []
    state = {"written": 0, "paused": False}

    def handler(exchange):
        def pump():
            while not state["paused"] and state["written"] < total:
                exchange.write(b"x" * BIG)
                state["written"] += BIG
                seen.append(exchange.transport.get_write_buffer_size())
            if state["written"] >= total:
                exchange.finish()

        def pause():
            state["paused"] = True

        def resume():
            state["paused"] = False
            asyncio.get_running_loop().call_soon(pump)

        exchange.on_pause, exchange.on_resume = pause, resume
        exchange.start(200)
        pump()

    served = await serve(handler)
    async with await served.connect(receive_bytes=4096) as client:
        client.request("GET", "/")
        await until(lambda: state["paused"])
        assert state["written"] < total
        await asyncio.sleep(0.05)
        held = state["written"]
        await asyncio.sleep(0.05)
        assert state["written"] == held, "nothing more is written while nothing is read"
        assert len((await client.answer()).body) == total
    assert max(seen) <= 4 * BIG


async def test_a_client_that_reads_nothing_is_cut_off_after_the_write_timeout(serve):
    told = []

    def flood(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)
        exchange.start(200)
        for _ in range(200):
            exchange.write(b"x" * BIG)

    served = await serve(flood, Limits(write_timeout_s=60))
    async with await served.connect(receive_bytes=4096) as client:
        client.request("GET", "/")
        await until(lambda: served.exchanges and served.exchanges[0].paused)
        connection, now = served.connection, served.server.now()
        connection.sweep(now + 59)
        assert not connection.lost
        connection.sweep(now + 62)
        await until(lambda: told)


async def test_a_client_that_never_reads_its_last_answer_is_cut_off(serve):
    """Too little waits for it to count as slow; the connection still ends."""
    served = await serve(lambda exchange: exchange.respond(200, (), b"x" * state["size"]))
    state = {"size": 0}
    async with await served.connect(receive_bytes=4096) as client:
        state["size"] = 4 * 1024 * 1024
        client.request("GET", "/", headers=("Connection: close",))
        await until(lambda: served.exchanges)
        connection, now = served.connection, served.server.now()
        connection.paused_since = None
        connection.sweep(now + 62)
        await until(lambda: connection.lost)


async def test_requests_of_a_client_that_reads_nothing_are_not_answered_into_memory(serve):
    served = await serve(lambda exchange: exchange.respond(200, (), b"x" * BIG))
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with await served.connect(receive_bytes=4096) as client:
        for _ in range(10):
            client.send(request * 100)
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        connection = served.connection
        assert connection.transport.get_write_buffer_size() < 8 * BIG
        assert len(served.exchanges) < 200
        for _ in range(1000):
            assert len((await client.answer()).body) == BIG
    assert len(served.exchanges) == 1000


async def test_a_request_that_begins_while_its_client_is_behind_waits_for_it(serve):
    """So that nobody begins a stream whose pause it was never told of."""
    served = await serve(lambda exchange: exchange.respond(200, (), b"x" * 8 * 1024 * 1024))
    async with await served.connect(receive_bytes=4096) as client:
        client.request("GET", "/1")
        await until(lambda: served.exchanges)
        client.request("GET", "/2")
        await asyncio.sleep(0.05)
        assert len(served.exchanges) == 1
        await client.answer()
        await client.answer()
    assert len(served.exchanges) == 2


async def test_bytes_pipelined_behind_a_slow_answer_are_bounded(serve):
    served = await serve(lambda _: None)
    async with await served.connect() as client:
        client.request("GET", "/")
        await until(lambda: served.exchanges)
        for _ in range(500):
            client.send(b"x" * BIG)
        await asyncio.sleep(0.1)
        assert len(served.connection.held) <= 8 * BIG
        client.reset()
    await until(client.writer.transport.is_closing)


async def test_an_aborted_answer_cannot_be_taken_for_a_whole_one(serve):
    """Also where the answer's end is the connection's end (HTTP/1.0)."""

    def handler(exchange):
        exchange.start(200)
        exchange.write(b"half")
        asyncio.get_running_loop().call_later(0.05, exchange.abort)

    served = await serve(handler)
    async with await served.connect() as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert not (await client.answer()).whole
    async with await served.connect() as client:
        assert not (await client.ask("GET", "/")).whole
