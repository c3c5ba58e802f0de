"""The end of a server: what is being answered is finished, and a listening socket goes on without it."""

import asyncio
import socket

import pytest

from gateway.wire import Client, listening_socket, until


def later(exchange):
    """A handler whose test answers."""


async def test_an_idle_server_drains_at_once_and_accepts_nothing_more(serve):
    served = await serve()
    assert await served.server.drain(5)
    async with await served.connect() as client:
        client.request("GET", "/")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.05)
    assert not served.exchanges


async def test_an_answer_that_has_begun_is_finished_before_the_server_ends(serve):
    served = await serve(later)
    async with await served.connect() as client:
        client.request("GET", "/")
        await until(lambda: served.exchanges)
        served.exchanges[0].start(200)
        served.exchanges[0].write(b"first")
        drain = asyncio.ensure_future(served.server.drain(5))
        await asyncio.sleep(0.05)
        assert not drain.done()
        served.exchanges[0].write(b" last")
        served.exchanges[0].finish()
        answer = await client.answer()
        assert (answer.body, answer.whole) == (b"first last", True)
        assert await client.ended()
        assert await drain


async def test_an_answer_that_begins_while_draining_says_that_the_connection_closes(serve):
    served = await serve(later)
    async with await served.connect() as busy, await served.connect() as idle:
        await until(lambda: len(served.server.connections) == 2)
        busy.request("GET", "/busy")
        await until(lambda: served.exchanges)
        drain = asyncio.ensure_future(served.server.drain(5))
        await until(lambda: served.server.draining)
        idle.request("GET", "/in-time")
        await until(lambda: len(served.exchanges) == 2)
        for exchange, client in zip(served.exchanges, (busy, idle), strict=True):
            exchange.respond(200, (), b"ok")
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"ok", "close")
            assert await client.ended()
        assert await drain


async def test_idle_connections_are_closed_and_a_request_on_its_way_is_answered(serve):
    served = await serve()
    async with await served.connect() as idle, await served.connect() as sending:
        await idle.ask("GET", "/")
        sending.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo")
        await until(lambda: any(connection.head_done for connection in served.server.connections))
        drain = asyncio.ensure_future(served.server.drain(10))
        assert await idle.ended()
        sending.send(b"dy")
        answer = await sending.answer()
        assert (answer.body, answer.headers["connection"]) == (b"body", "close")
        assert await drain


async def test_what_does_not_end_in_time_is_cut_off_and_told_of(serve):
    told = []

    def never(exchange):
        exchange.on_disconnect = lambda: told.append(exchange)

    served = await serve(never)
    async with await served.connect() as client:
        client.request("GET", "/")
        await until(lambda: served.exchanges)
        assert not await served.server.drain(0.1)
        assert await client.ended()
    await until(lambda: told)


async def test_a_listening_socket_is_handed_over_without_a_refused_or_reset_connection(serve):
    """Two servers hold one socket in turn, clients connect all the time, and each of their requests is answered."""
    listening = listening_socket()
    port = listening.getsockname()[1]
    first = await serve(lambda exchange: exchange.respond(200, (), b"1"), listening=listening)
    answers, stop = [], asyncio.Event()

    async def load(keep):
        client = None
        while not stop.is_set():
            client = client or await Client.connect(port)
            answer = await client.ask("GET", "/", headers=() if keep else ("Connection: close",))
            assert answer.whole
            answers.append(answer.body)
            if answer.headers.get("connection") == "close":
                await client.close()
                client = None
            await asyncio.sleep(0)
        if client:
            await client.close()

    clients = [asyncio.ensure_future(load(number % 2)) for number in range(8)]
    await until(lambda: len(answers) > 200)
    second = await serve(lambda exchange: exchange.respond(200, (), b"2"), listening=listening.dup())
    assert await first.server.drain(5)
    count = len(answers)
    await until(lambda: len(answers) > count + 200)
    assert set(answers[count:]) == {b"2"}
    second.server.stop_accepting()
    waiting = await Client.connect(port)
    waiting.request("GET", "/")
    third = await serve(lambda exchange: exchange.respond(200, (), b"3"), listening=listening.dup())
    assert (await waiting.answer()).body == b"3", "who came while nobody accepted waited in the backlog"
    await waiting.close()
    stop.set()
    await asyncio.gather(*clients)
    assert third.requests


async def test_the_listening_socket_stays_its_owners(serve):
    served = await serve()
    await served.server.close()
    assert served.listening.fileno() >= 0
    with socket.create_connection(("127.0.0.1", served.port)):
        pass
