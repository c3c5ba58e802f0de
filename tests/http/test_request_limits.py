"""What a client may take before it is cut off: sizes, counts, times."""

import asyncio

import pytest

from gateway.wire import Client, until
from tidegate.http import Limits

SMALL = Limits(max_head_bytes=1024, max_headers=20, max_body_bytes=2000)
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


async def refused(served, data: bytes, *, pieces: int = 1) -> int:
    """The status with which `data` is refused."""
    handled = len(served.exchanges)
    async with await served.connect() as client:
        step = -(-len(data) // pieces)
        for start in range(0, len(data), step):
            client.send(data[start : start + step])
            await asyncio.sleep(0)
        answer = await client.answer()
        assert answer.headers["connection"] == "close"
        assert await client.ended()
    assert len(served.exchanges) == handled
    return answer.status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Content-Length: 2001\r\n\r\n", 413),
        (CHUNKED + b"7d1\r\n" + b"x" * 2001 + b"\r\n0\r\n\r\n", 413),
        (CHUNKED + b"1\r\nx\r\n" * 2001 + b"0\r\n\r\n", 413),
        (HEAD + b"X: " + b"x" * 1024 + b"\r\n\r\n", 431),
        (HEAD + b"X: " + b"x" * 5000, 431),
        (b"GET /" + b"x" * 5000, 431),
        (HEAD + b"X: a\r\n" * 5000, 431),
        (HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(20)) + b"\r\n", 431),
        (HEAD + b"Expect: the unexpected\r\n\r\n", 417),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (CHUNKED + b"1;" + b"x" * 5000, 431),
        (CHUNKED + b"1\r\nx\r\n0\r\nTrailer: " + b"x" * 5000, 431),
        (CHUNKED + b"1\r\nx\r\n0\r\n" + b"Trailer: x\r\n" * 500, 431),
    ],
    ids=lambda value: value if isinstance(value, int) else value[22:60].decode(),
)
@pytest.mark.parametrize("pieces", [20, 200])
async def test_what_is_too_large_is_refused_with_the_status_that_says_so(serve, data, status, pieces):
    served = await serve(limits=SMALL)
    assert await refused(served, data, pieces=pieces) == status


async def test_a_pipelined_head_has_the_same_limit(serve):
    served = await serve(limits=SMALL)
    async with await served.connect() as client:
        client.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD + b"X: " + b"x" * 2000 + b"\r\n\r\n")
        assert (await client.answer()).headers["x-path"] == "/first"
        assert await client.ended()
    assert len(served.exchanges) == 1


async def test_a_large_body_behind_a_small_head_is_no_large_head(serve):
    served = await serve(limits=Limits(max_head_bytes=1024))
    async with await served.connect() as client:
        body = b"x" * 300_000
        assert (await client.ask("POST", "/", body)).body == body


async def test_a_body_of_the_largest_size_is_taken(serve):
    served = await serve(limits=SMALL)
    async with await served.connect() as client:
        assert (await client.ask("POST", "/", b"x" * 2000)).body == b"x" * 2000
        client.send(CHUNKED + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")
        assert (await client.answer()).body == b"x" * 2000


async def test_a_client_that_is_still_sending_a_refused_body_can_read_why(serve):
    served = await serve(limits=SMALL)
    async with await served.connect() as client:
        client.send(HEAD + b"Content-Length: 20000000\r\n\r\n")
        for _ in range(200):
            client.send(b"x" * 100_000)
            await asyncio.sleep(0)
        await client.writer.drain()
        assert (await client.answer()).status == 413


async def test_a_refused_client_that_does_not_close_is_cut_off(serve):
    served = await serve(limits=SMALL)
    async with await served.connect() as client:
        client.send(HEAD + b"Content-Length: 2001\r\n\r\n")
        await client.answer()
        assert await client.ended()
        connection = served.connection
        connection.sweep(served.server.now())
        connection.sweep(served.server.now() + 4)
        await until(lambda: connection.lost)


async def drip(served, data: bytes) -> Client:
    """A client that has sent `data`, and the server has seen it."""
    client = await served.connect()
    client.send(data)
    await until(lambda: served.server.connections and (served.connection.head_bytes or served.connection.head_done))
    return client


async def test_a_head_that_drips_is_cut_off_with_408_when_its_time_is_over(serve):
    served = await serve(limits=Limits(head_timeout_s=10))
    async with await drip(served, b"GET / HTTP/1.1\r\nX: ") as client:
        connection, started = served.connection, served.server.now()
        for seconds in range(1, 9):
            client.send(b"x")
            connection.sweep(started + seconds)
            await asyncio.sleep(0)
        assert not connection.closing
        connection.sweep(started + 12)
        answer = await client.answer()
        assert answer.status == 408
        assert b"head" in answer.body


async def test_a_body_that_drips_is_cut_off_with_408_when_its_time_is_over(serve):
    served = await serve(limits=Limits(head_timeout_s=10, body_timeout_s=60))
    async with await drip(served, HEAD + b"Content-Length: 100\r\n\r\nx") as client:
        connection, started = served.connection, served.server.now()
        connection.sweep(started + 59)
        assert not connection.closing
        client.send(b"x")
        await asyncio.sleep(0.01)
        connection.sweep(started + 62)
        answer = await client.answer()
        assert answer.status == 408
        assert b"body" in answer.body
    assert not served.exchanges


async def test_a_connection_without_a_request_is_closed_when_its_time_is_over(serve):
    served = await serve(limits=Limits(head_timeout_s=10, idle_timeout_s=75))
    async with await served.connect() as fresh:
        await until(lambda: served.server.connections)
        served.connection.sweep(served.server.now() + 12)
        assert await fresh.ended()
    await until(lambda: not served.server.connections)
    async with await served.connect() as client:
        await client.ask("GET", "/")
        served.connection.sweep(served.server.now() + 70)
        assert (await client.ask("GET", "/")).status == 200
        served.connection.sweep(served.server.now() + 78)
        assert await client.ended()


async def test_a_slow_answer_is_not_the_clients_fault(serve):
    served = await serve(lambda _: None)
    async with await served.connect() as client:
        client.request("GET", "/")
        await until(lambda: served.exchanges)
        served.connection.sweep(served.server.now() + 10_000)
        served.exchanges[0].respond(200, (), b"at last")
        assert (await client.answer()).body == b"at last"


async def test_one_connection_too_many_is_told_so_and_the_others_are_served(serve):
    served = await serve(limits=Limits(max_connections=2))
    async with await served.connect() as one, await served.connect() as two, await served.connect() as three:
        assert (await one.ask("GET", "/")).status == 200
        assert (await two.ask("GET", "/")).status == 200
        three.request("GET", "/")
        answer = await three.answer()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert (await one.ask("GET", "/")).status == 200
    assert len(served.exchanges) == 3


async def test_hundreds_of_idle_connections_are_closed_by_one_sweep_and_a_new_one_is_served(serve):
    served = await serve()
    idle = [await served.connect() for _ in range(400)]
    await until(lambda: len(served.server.connections) == 400)
    for connection in list(served.server.connections):
        connection.sweep(served.server.now() + 100)
    await until(lambda: not served.server.connections)
    async with await served.connect() as client:
        assert (await client.ask("GET", "/")).status == 200
    for client in idle:
        await client.close()
