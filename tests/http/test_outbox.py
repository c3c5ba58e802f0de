"""Writes of one turn of the loop: together, in order, and nothing is lost to a close."""

import asyncio
import contextlib

from tidegate.http import HttpServer, Outbox
from tidegate.http.outbox import MOST, MOST_BYTES


class Socket:
    """Notes what is written to it; `log` is shared, so that the order between sockets is seen."""

    def __init__(self, name, log):
        self.name, self.log, self.closing = name, log, False

    def write(self, data):
        assert not self.closing
        self.log.append((self.name, data))

    def is_closing(self):
        return self.closing


async def turn():
    await asyncio.sleep(0)


async def test_what_is_written_in_a_turn_leaves_at_its_end_one_piece_for_each_socket():
    log, outbox = [], Outbox()
    one, other = outbox.writer(Socket("one", log)), outbox.writer(Socket("other", log))
    one(b"a")
    other(b"b")
    one(b"c")
    assert log == []
    await turn()
    assert log == [("one", b"ac"), ("other", b"b")]
    one(b"d")
    await turn()
    assert log[2:] == [("one", b"d")]


async def test_nobody_waits_for_many_others():
    log, outbox = [], Outbox()
    for number in range(MOST + 1):
        outbox.writer(Socket(number, log))(b"x")
    assert [name for name, _ in log] == list(range(MOST))
    await turn()
    assert len(log) == MOST + 1


async def test_a_reader_that_is_behind_is_noticed_within_the_turn():
    """Its socket has to be written for it to say so."""
    log, outbox = [], Outbox()
    write = outbox.writer(Socket("one", log))
    for _ in range(10):
        write(b"x" * MOST_BYTES)
    assert sum(len(data) for _, data in log) == 9 * MOST_BYTES


async def test_a_socket_that_was_closed_meanwhile_gets_nothing():
    log, outbox = [], Outbox()
    gone, there = Socket("gone", log), Socket("there", log)
    outbox.writer(gone)(b"x")
    outbox.writer(there)(b"y")
    gone.closing = True
    await turn()
    assert log == [("there", b"y")]


async def test_a_last_answer_reaches_a_client_that_is_then_hung_up_on(serve):
    served = await serve(lambda exchange: exchange.respond(200, (), b"bye"), outbox=Outbox())
    for last in (b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"nonsense\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(last)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 ")
        assert answer.partition(b"\r\n\r\n")[2]
        writer.close()
    assert isinstance(served.server, HttpServer)


async def test_a_client_that_sends_no_more_still_gets_its_answers(serve):
    """Several requests at once, and its side closed: all come in one turn."""
    served = await serve(lambda exchange: exchange.respond(200, (), b"yes"), outbox=Outbox())
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    writer.write_eof()
    assert (await reader.read()).count(b"yes") == 3
    writer.close()


async def test_an_answer_that_is_cut_off_has_left_until_then(serve):
    def answer(exchange):
        exchange.start(200)
        exchange.write(b"half")
        exchange.abort()

    served = await serve(answer, outbox=Outbox())
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert b"0\r\n\r\n" not in await reader.read()
    writer.close()


async def test_direct_writes_come_after_what_was_written_before_them(serve):
    def answer(exchange):
        exchange.start(200)
        direct = exchange.direct()
        direct(b"1\r\na\r\n")
        exchange.write(b"b")
        exchange.direct()(b"1\r\nc\r\n")
        exchange.finish()

    served = await serve(answer, outbox=Outbox())
    async with await served.connect() as client:
        assert (await client.ask("GET", "/")).pieces == [b"a", b"b", b"c"]
