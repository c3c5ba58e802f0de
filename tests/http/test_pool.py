"""Connections to an endpoint: which is used, which never again, and what a reply is told."""

import asyncio
import socket

import pytest

from gateway.wire import listening_socket, until
from tidegate.errors import ConnectError, UpstreamClosedError
from tidegate.http import Connection, Endpoint
from tidegate.http.framing import ChunkedBody

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Collected:
    """A reply that keeps what it is told."""

    def __init__(self) -> None:
        self.heads, self.body, self.ends, self.errors = [], b"", 0, []

    def on_head(self, head):
        self.heads.append(head)

    def on_body(self, payload):
        assert payload
        self.body += payload

    def on_end(self):
        self.ends += 1

    def on_error(self, error):
        self.errors.append(error)

    @property
    def over(self):
        return self.ends + len(self.errors)


class Peer:
    """The other side: what it got, and its sockets."""

    def __init__(self, listening) -> None:
        self.listening = listening
        self.port = listening.getsockname()[1]
        self.writers = []
        self.answer = [OK]

    async def serve(self, reader, writer):
        self.writers.append(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for piece in self.answer:
                    if piece is None:
                        writer.close()
                        return
                    writer.write(piece)
                    for _ in range(3):
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def peer():
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    one = Peer(listening_socket())
    server = await asyncio.start_server(one.serve, sock=one.listening)
    yield one
    server.close()
    for writer in one.writers:
        writer.transport.abort()
    await server.wait_closed()
    assert not faults, faults


@pytest.fixture
async def endpoint(peer):
    one = Endpoint(f"http://127.0.0.1:{peer.port}", connect_timeout_s=1)
    yield one
    one.close()
    for connection in list(one.connections):
        connection.abort()
    await until(lambda: not one.connections)


def now():
    return asyncio.get_running_loop().time()


async def ask(endpoint, connection=None, **options):
    """One request on a taken connection, or a new one."""
    connection = connection or endpoint.take(now()) or await endpoint.connect()
    reply = Collected()
    connection.send(REQUEST, reply, **options)
    await until(lambda: reply.over)
    assert reply.over == 1
    return reply, connection


async def test_a_connection_is_used_again_the_last_one_first(endpoint, peer):
    first, second = await endpoint.connect(), await endpoint.connect()
    await ask(endpoint, first)
    await ask(endpoint, second)
    assert endpoint.take(now()) is second
    assert endpoint.take(now()) is first
    assert endpoint.take(now()) is None
    assert first.reused
    reply, _ = await ask(endpoint, first)
    assert (reply.body, reply.heads[0].status, len(peer.writers)) == (b"ok", 200, 2)


async def test_an_idle_connection_is_not_used_after_its_time(endpoint):
    _, connection = await ask(endpoint)
    assert endpoint.take(now() + 5) is None
    await until(lambda: connection.lost)
    assert not endpoint.connections


async def test_a_connection_closed_while_idle_is_never_used(endpoint, peer):
    _, connection = await ask(endpoint)
    peer.writers[0].close()
    await until(lambda: connection.lost)
    assert endpoint.take(now()) is None
    assert not endpoint.connections


async def test_what_comes_unasked_ends_an_idle_connection(endpoint, peer):
    _, connection = await ask(endpoint)
    peer.writers[0].write(OK)
    await until(lambda: connection.lost)
    assert endpoint.take(now()) is None


@pytest.mark.parametrize("cut", [True, False])
async def test_surplus_bytes_after_an_answer_end_the_connection(endpoint, peer, cut):
    peer.answer = [OK, b"more"] if cut else [OK + b"more"]
    reply, connection = await ask(endpoint)
    assert (reply.body, reply.ends) == (b"ok", 1)
    await until(lambda: connection.lost)
    assert endpoint.take(now()) is None


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_an_answer_that_says_so_is_the_last_on_its_connection(endpoint, peer, head):
    peer.answer = [head + b"Content-Length: 2\r\n\r\nok"]
    reply, connection = await ask(endpoint)
    assert reply.body == b"ok"
    assert endpoint.take(now()) is None
    await until(lambda: connection.lost)


async def test_a_body_without_a_length_ends_with_the_connection(endpoint, peer):
    peer.answer = [b"HTTP/1.1 200 OK\r\n\r\n", "盘".encode()[:1], "盘".encode()[1:], None]
    reply, _ = await ask(endpoint)
    assert (reply.body.decode(), reply.ends) == ("盘", 1)


@pytest.mark.parametrize(
    "answer",
    [[None], [b"HTTP/1.1 2", None], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", None],
     [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", None], [b"HTTP/1.1 100 Continue\r\n\r\n", None],
     [b"nonsense\r\n\r\n"], [b"x" * 70_000], [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"],
     [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"],
     [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]],
)  # fmt: skip
async def test_an_answer_that_is_not_whole_is_one_error(endpoint, peer, answer):
    peer.answer = answer
    reply, connection = await ask(endpoint)
    assert (reply.ends, [type(error) for error in reply.errors]) == (0, [UpstreamClosedError])
    await until(lambda: connection.lost)
    assert endpoint.take(now()) is None


async def test_answers_without_a_body_leave_the_connection_usable(endpoint, peer):
    for head, options in (
        (b"HTTP/1.1 204 No Content\r\n\r\n", {}),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", {}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", {"bodiless": True}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", {}),
    ):
        peer.answer = [head]
        reply, _ = await ask(endpoint, **options)
        assert (reply.body, reply.ends) == (b"", 1)
    assert len(peer.writers) == 1


async def test_interim_answers_are_skipped(endpoint, peer):
    peer.answer = [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + OK]
    reply, _ = await ask(endpoint)
    assert ([head.status for head in reply.heads], reply.body) == ([200], b"ok")


async def test_an_answer_cut_at_every_byte_is_the_same_answer(endpoint, peer):
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
    for cut in range(1, len(whole)):
        peer.answer = [whole[:cut], whole[cut:]]
        reply, _ = await ask(endpoint)
        assert (reply.body, reply.ends) == (b"abc0123456789", 1), cut
    assert len(peer.writers) == 1


class Piping(Collected):
    """A reply that has whole events piped past it, and keeps their payload in its place."""

    def __init__(self, connection) -> None:
        super().__init__()
        self.connection, self.piped = connection, []

    def on_body(self, payload):
        super().on_body(payload)
        self.connection.pipe = self.pipe

    def pipe(self, framed):
        self.piped.append(framed)
        self.body += ChunkedBody().feed(framed)[0]
        return True


class Silent:
    """A socket on which nothing happens."""

    def write(self, data): ...

    def is_closing(self):
        return False


def piping(endpoint, pieces):
    connection = Connection(endpoint)
    reply = Piping(connection)
    connection.connection_made(Silent())
    connection.send(b"", reply)
    for piece in (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces):
        connection.data_received(piece)
    connection.connection_lost(None)
    return reply


async def test_chunks_that_end_an_event_go_through_the_pipe_as_they_came(endpoint):
    chunks = [b"%x\r\n%b\r\n" % (size, b"x" * (size - 2) + b"\n\n") for size in (2, 15, 16, 200, 4088, 4089)]
    reply = piping(endpoint, [*chunks, b"0\r\n\r\n"])
    assert reply.piped == chunks[1:5]  # the first is before the pipe, and the last larger than events are
    assert len(reply.body) == 2 + 15 + 16 + 200 + 4088 + 4089
    assert reply.ends == 1


@pytest.mark.parametrize(
    "odd",
    [
        [b"4\r\nab\n\n\r\n4\r\ncd\n\n\r\n"],
        [b"4\r\na", b"b\n\n\r\n"],
        [b"4", b"\r\nab\n\n\r\n"],
        [b"9\r\n", b"4\r\nab\n\n\r\n", b"\r\n"],
        [b"b\r\nx", b"5\r\nabc\n\n\r\n", b"\r\n"],
        [b"004\r\nab\n\n\r\n"],
        [b"4;x=y\r\nab\n\n\r\n"],
    ],
)
async def test_what_is_not_one_whole_chunk_is_unframed_even_where_it_looks_like_one(endpoint, odd):
    packets = [b"4\r\n00\n\n\r\n", *odd, b"4\r\n11\n\n\r\n", b"0\r\n\r\n"]
    reply = piping(endpoint, packets)
    decoder = ChunkedBody()
    assert reply.body == b"".join(decoder.feed(packet)[0] for packet in packets)
    assert set(reply.piped) <= {b"4\r\n11\n\n\r\n"}
    assert reply.ends == 1


async def test_a_paused_connection_reads_nothing_and_is_resumed_in_the_pool(endpoint, peer):
    big = 8 * 1024 * 1024
    peer.answer = [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % big + b"x" * big]

    class Pausing(Collected):
        def on_end(self):
            super().on_end()
            connection.pause()  # its client is slow just when the answer ends

    connection = await endpoint.connect()
    reply = Pausing()
    connection.send(REQUEST, reply)
    await until(lambda: reply.body)
    connection.pause()
    await asyncio.sleep(0.02)
    held = len(reply.body)
    await asyncio.sleep(0.05)
    assert len(reply.body) == held < big
    connection.resume()
    await until(lambda: reply.ends)
    peer.answer = [OK]
    taken = endpoint.take(now())
    assert taken is connection
    assert (await ask(endpoint, taken))[0].body == b"ok"


async def test_an_aborted_request_tells_its_reply_nothing_more(endpoint, peer):
    peer.answer = []
    connection, reply = await endpoint.connect(), Collected()
    connection.send(REQUEST, reply)
    connection.abort()
    connection.pause()
    connection.resume()
    connection.abort()
    await until(lambda: connection.lost)
    assert not reply.over
    connection.abort()


async def test_a_closed_endpoint_keeps_nothing(endpoint):
    _, idle = await ask(endpoint)
    busy = await endpoint.connect()
    await ask(endpoint, idle)
    endpoint.close()
    await until(lambda: idle.lost)
    reply, _ = await ask(endpoint, busy)
    assert reply.body == b"ok", "what had begun is finished"
    await until(lambda: busy.lost)
    with pytest.raises(ConnectError, match="no longer a replica"):
        await endpoint.connect()
    await until(lambda: not endpoint.connections)


async def test_one_given_up_in_the_moment_it_is_made_is_not_kept(endpoint, monkeypatch):
    made = Connection.connection_made

    def given_up(connection, transport):
        made(connection, transport)
        connecting.cancel()

    monkeypatch.setattr(Connection, "connection_made", given_up)
    connecting = asyncio.get_running_loop().create_task(endpoint.connect())
    with pytest.raises(asyncio.CancelledError):
        await connecting
    await until(lambda: not endpoint.connections)


async def test_nobody_listening_is_a_connect_error_that_names_the_address():
    sock = listening_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    sock.close()
    with pytest.raises(ConnectError, match=f"{url} cannot be reached"):
        await Endpoint(url).connect()


async def test_a_connection_that_takes_too_long_is_a_connect_error():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        with pytest.raises(ConnectError, match=r"no answer within 0\.05 s"):
            await Endpoint(f"http://127.0.0.1:{full.getsockname()[1]}", connect_timeout_s=0.05).connect()
        for sock in waiting:
            sock.close()


def test_an_address_may_leave_out_its_port():
    endpoint = Endpoint("http://engine.lan/")
    assert (endpoint.host, endpoint.port, endpoint.host_header) == ("engine.lan", 80, b"engine.lan")


def test_an_address_may_be_ipv6():
    endpoint = Endpoint("http://[::1]:8100")
    assert (endpoint.host, endpoint.port, endpoint.host_header) == ("::1", 8100, b"[::1]:8100")
