"""The response side: whatever an engine sends, its answer is whole and its own, or an error; never another's."""

import random
from collections import Counter

import h11

from fuzz.mutation import Mutator
from fuzz.wires import Wire
from tidegate.errors import EngineError
from tidegate.http import Connection, Endpoint

EVENT = 'data: {"choices":[{"delta":{"content":"你好"}}]}\n\n'.encode()
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
CHUNKED = STREAM + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n"
CORPUS = (
    JSON + b'{"ok":true}',
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-T: 1\r\n\r\n",
    CHUNKED + CHUNK * 3 + LAST,
    CHUNKED + CHUNK + b"%x\r\n%b\r\n" % (2 * len(EVENT), EVENT * 2) + CHUNK * 2 + LAST,
    CHUNKED + b"".join(b"%x\r\n%b\n\n\r\n" % (size, b"z" * (size - 2)) for size in range(2, 24)) + LAST,
    CHUNKED + b"4\r\ndata\r\n4\r\n: x\n\r\n1\r\n\n\r\n" + CHUNK * 2 + b"4\r\nab\n\n\r\n" + LAST,
    STREAM + b"\r\n" + EVENT * 2,
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + JSON + b'{"ok":true}',
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbad",
    b"HTTP/1.1 500 \r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy",
)
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n\r\n", b" ", b":", b"\0", b"\xff", b"0\r\n\r\n", b"0", b"4\r\nab\n\n\r\n",
    b"04\r\nab\n\n\r\n", b"4;x\r\nab\n\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"5 \r\n", b"0x5\r\n", CHUNK, EVENT, LAST,
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n", b"X: y\r\n",
    b"Content-Length: +5\r\n", b"Content-Length: 5 \r\n", b"Content-Length : 5\r\n", b"content-length: 1, 1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding: Chunked\r\n", b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1 999 X\r\n", b"x" * 300, b"y" * 70_000,
)  # fmt: skip
NEXT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nthe other"


class Recorder:
    """A reply that minds the order of what it is told. With `pipe`, whole events pass it by, as they do in a relay."""

    def __init__(self, connection: Connection, *, pipe: bool) -> None:
        self.connection, self.piping = connection, pipe
        self.status, self.body, self.end = 0, b"", ""
        self.piped = 0
        self.forwarded: list[bytes] = []

    def on_head(self, head) -> None:
        assert not self.status
        assert not self.end
        self.status = head.status

    def on_body(self, payload: bytes) -> None:
        assert self.status
        assert payload
        assert not self.end
        self.body += payload
        if self.piping and self.body.endswith(b"\n\n"):
            ending = self.body[-2 - len(self.body) % 9 :] + b"\r\n"  # of whole events, from somewhere near their end
            self.connection.pass_on(ending if len(payload) % 2 else b"", self.pipe, self.forwarded.append, self.pipe)

    def pipe(self, framed: bytes) -> bool:
        """One whole chunk, framed."""
        assert not self.end
        assert self.body.endswith(b"\n\n"), "some of an event is held back, and would come after its end"
        size, _, rest = framed.partition(b"\r\n")
        assert int(size, 16) == len(rest) - 2
        assert rest.endswith(b"\n\n\r\n")
        self.body += rest[:-2]
        self.piped += 1
        return True

    def on_end(self) -> None:
        assert self.status
        assert not self.end
        self.end = "whole"

    def on_error(self, error: EngineError) -> None:
        assert isinstance(error, EngineError)
        assert not self.end
        self.end = "error"


def drive(pieces: list[bytes], *, bodiless: bool, pipe: bool) -> tuple[Recorder, bool]:
    """What the reply was told, and whether the connection would be used again. If so, its next answer is its own."""
    endpoint = Endpoint("http://127.0.0.1:9")
    connection, wire = Connection(endpoint), Wire()
    connection.connection_made(wire)
    reply = Recorder(connection, pipe=pipe)
    connection.send(b"GET", reply, bodiless=bodiless)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
        assert len(connection._head) <= 64 * 1024 + len(piece)
    again = bool(endpoint._idle) and not wire.closed
    if again:
        assert reply.end == "whole"
        assert endpoint.take(connection.idle_since) is connection
        other = Recorder(connection, pipe=False)
        connection.send(b"GET", other)
        for at in range(0, len(NEXT), 7):
            connection.data_received(NEXT[at : at + 7])
        assert (other.status, other.body, other.end) == (200, b"the other", "whole")
        connection.data_received(b"HTTP/1.1 200 OK\r\n")
        assert wire.closed
        assert endpoint.take(connection.idle_since) is None
    ended = reply.end
    connection.connection_lost(None)
    assert not endpoint.connections
    if not again and not ended:
        assert reply.end, "no end was told"
    return reply, again


def by_h11(data: bytes, *, bodiless: bool) -> tuple[int, bytes, str, bytes]:
    """Status, payload, how it ended (whole, unfinished, fault), and what followed."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=100_000)
    client.send(h11.Request(method="HEAD" if bodiless else "GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    status, payload, ended = 0, b"", False
    try:
        if data:
            client.receive_data(data)
        while True:
            event = client.next_event()
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                payload += event.data
            elif isinstance(event, h11.EndOfMessage):
                return status, payload, "whole", b"" if ended else client.trailing_data[0]
            elif event is h11.NEED_DATA and not ended:
                ended = True
                client.receive_data(b"")
            elif not isinstance(event, h11.InformationalResponse):
                return status, payload, "unfinished", b""
    except h11.RemoteProtocolError:
        return status, payload, "fault", b""


def check(data: bytes, pieces: list[bytes], *, bodiless: bool, sound: bool, seen: Counter[str]) -> None:
    """One input."""
    reply, again = drive(pieces, bodiless=bodiless, pipe=True)
    plain, plainly_again = drive([data] if data else [], bodiless=bodiless, pipe=False)
    assert (reply.end, again) == (plain.end, plainly_again), "it matters how it was cut"
    if reply.end == "whole":
        assert (reply.status, reply.body) == (plain.status, plain.body)
    status, payload, end, trailing = by_h11(data, bodiless=bodiless)
    if reply.end == "whole" and end == "whole":
        assert (reply.status, reply.body) == (status, payload)
        assert not (again and trailing)
        seen["whole by h11 too"] += 1
    elif reply.end == "whole":
        assert end == "fault", "whole too early"
        seen["whole, h11 refuses"] += 1
    else:
        assert not sound, "a sound answer was refused"
        seen[f"error, h11 {end}"] += 1
    seen["used again"] += again
    seen["piped events"] += reply.piped
    seen["of them by their ending"] += len(reply.forwarded)


def run(seed: int, inputs: int, seen: Counter[str]) -> None:
    """So many inputs; the first that fails is told with what repeats it."""
    rng = random.Random(seed)
    mutator = Mutator(rng, CORPUS, TOKENS)
    for number in range(inputs):
        sound = rng.random() < 0.1
        data = rng.choice(CORPUS) if sound else mutator.input(most=2)
        pieces = mutator.pieces(data)
        bodiless = not sound and rng.random() < 0.1
        try:
            check(data, pieces, bodiless=bodiless, sound=sound, seen=seen)
        except Exception as error:
            raise AssertionError(
                f"seed {seed}, input {number}, bodiless={bodiless}, pieces={pieces!r}: {error!r}"
            ) from error
