"""The request side: whatever a client sends, what is handled is what two other parsers read, and nothing else is."""

import random
import time
from collections import Counter

import h11
import httptools

from fuzz.mutation import Mutator
from fuzz.reference import Reading, read_requests
from fuzz.wires import Wire
from tidegate.http import HttpServer, Limits
from tidegate.http.connection import HELD_BYTES, ServerConnection
from tidegate.http.request import Glance

JSON = b'{"model":"m","messages":[{"role":"user","content":"\xe4\xbd\xa0\xe5\xa5\xbd"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8000\r\nContent-Type: application/json\r\n"
CORPUS = (
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /v1/models?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: curl/8\r\n\r\n",
    POST + b"Content-Length: %d\r\n\r\n" % len(JSON) + JSON,
    POST + b"Authorization: Bearer sk-1\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n",
    POST + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % (len(JSON), JSON),
    POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Connection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
    POST + b"Content-Length: 43\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\nabcde",
    POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"POST /old HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
    b"HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: POST\r\n\r\n",
    b"DELETE /v1/files/1 HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-A: 2\r\nCookie: a=b\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)
TOKENS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b" ", b"\t", b":", b"\0", b"\x7f", b"\xff", b"\x0b", b"\x85",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"content-length: +5\r\n", b"Content-Length: 5, 5\r\n",
    b"Content-Length : 5\r\n", b"Content-Length: 0x5\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: -1\r\n", b"Content-Length:\r\n", b"Content-Length: 5 \r\n", b"\r\nContent-Length: 5",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding:\x0bchunked\r\n", b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n", b"Transfer-Encoding: Chunked\r\n", b"Transfer_Encoding: chunked\r\n",
    b" Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked;x=1\r\n", b"TE: trailers\r\n", b"Trailer: x\r\n",
    b"Host: b\r\n", b"Host:\r\n", b"Expect: 100-continue\r\n", b"Expect: 200-ok\r\n", b"Connection: close\r\n",
    b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n", b"Connection: keep-alive, close\r\n", b"X:\r\n", b": x\r\n",
    b"X: \xe4\xbd\xa0\r\n", b"X: a\r\n b\r\n", b"Authorization: Bearer x\r\n", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"0\r\n\r\n", b"00000000000000000\r\n", b"5;a=\n\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"-5\r\n", b"5 \r\n", b"\xd9\xa1",
    b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"http/1.1", b"GET ", b"POST ", b"CONNECT ", b"//", b"/../",
    b"%2e%2e", b"?", b"#", b"http://evil/", b"x" * 300, b"X-%s: y\r\n" % (b"n" * 200), b"A: b\r\n" * 25, b"y" * 3000,
)  # fmt: skip
LIMITS = Limits(max_head_bytes=2048, max_headers=20, max_body_bytes=4096)
COMMON = frozenset((b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"PATCH", b"DELETE"))


class Driven:
    """A server connection whose client's bytes are handed in, and whose answers come now or `late`."""

    def __init__(self, glance: Glance, *, late: bool) -> None:
        self.server = HttpServer(self._handle, LIMITS)
        self.server.glance = glance
        self.late = late
        self.handled: list[tuple[bytes, bytes, dict[bytes, bytes], bytes]] = []
        self.waiting: list = []
        self.wire = Wire()
        self.connection = ServerConnection(self.server)
        self.connection.connection_made(self.wire)

    def _handle(self, exchange) -> None:
        request = exchange.request
        assert not self.wire.closed
        self.handled.append((request.method, request.target, request.headers, request.body))
        assert not self.waiting, "one request at a time"
        if self.late:
            self.waiting.append((exchange, len(self.handled)))
        else:
            self._answer(exchange, len(self.handled))

    @staticmethod
    def _answer(exchange, number: int) -> None:
        exchange.respond(200, [(b"n", b"%d" % number)], b"answer %d" % number)

    def feed(self, pieces: list[bytes]) -> None:
        """Every piece, as far as the server reads; what waits for an answer gets it before the next piece."""
        for piece in pieces:
            self._settle()
            if self.wire.closed:
                return
            if self.wire.reading:
                self.connection.data_received(piece)
            self._check_memory(len(piece))
        while self.waiting:
            self._settle()
        assert self.wire.reading or self.wire.closed

    def _settle(self) -> None:
        if self.waiting:
            self._answer(*self.waiting.pop())

    def _check_memory(self, piece: int) -> None:
        connection = self.connection
        fields = sum(len(name) + len(value) for name, value in connection.fields)
        assert len(connection.held) <= HELD_BYTES + piece, "held bytes"
        assert sum(map(len, connection.body)) <= LIMITS.max_body_bytes, "a body over its limit"
        assert fields + len(connection.target) <= 2 * LIMITS.max_head_bytes + piece, "a head over its limit"

    def end(self) -> None:
        """The client goes, and time passes: nothing may be left."""
        self.connection.sweep(1e9)
        if not self.wire.closed:
            self.connection.eof_received()
            self.connection.sweep(2e9)
        self.connection.connection_lost(None)
        assert not self.server.connections

    def answers(self) -> list[int]:
        """Statuses of what was written, each whole and in its turn."""
        statuses, data, number = [], bytes(self.wire.sent), 0
        while data:
            head, _, data = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 "), head[:80]
            status = int(head[9:12])
            if status == 100:
                continue
            statuses.append(status)
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            if status == 200:
                number += 1
                assert b"\r\nn: %d\r\n" % number in head
                if self.handled[number - 1][0] == b"HEAD":
                    continue
                assert data[:length] == b"answer %d" % number
            data = data[length:]
        return statuses


def by_h11(data: bytes) -> tuple[list[tuple[bytes, bytes, dict[bytes, bytes], bytes]], bool]:
    """The requests that h11 reads, and whether it stopped at a fault."""
    server = h11.Connection(h11.SERVER)
    found: list[tuple[bytes, bytes, dict[bytes, bytes], bytes]] = []
    try:
        server.receive_data(data)
        request, body = None, b""
        while True:
            event = server.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                headers: dict[bytes, bytes] = {}
                for name, value in request.headers:
                    headers[name] = headers[name] + b", " + value if name in headers else value
                found.append((request.method, request.target, headers, body))
                server.send(
                    h11.Response(
                        status_code=405 if request.method == b"CONNECT" else 200, headers=[("content-length", "0")]
                    )
                )
                server.send(h11.EndOfMessage())
                if server.our_state is h11.MUST_CLOSE:
                    return found, False
                server.start_next_cycle()
            else:
                return found, False
    except h11.RemoteProtocolError:
        return found, True


class Llhttp:
    """What llhttp by itself reads in one piece."""

    def __init__(self, data: bytes) -> None:
        self.target = self.body = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.whole = 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip(b" \t")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole += 1


def check_glance(glance: Glance, data: bytes) -> bool:
    """What is read at a glance is what llhttp reads; whether it was."""
    request = glance.read(data, max_headers=LIMITS.max_headers, max_body_bytes=LIMITS.max_body_bytes)
    if request is None:
        return False
    judge = Llhttp(data)
    assert judge.whole == 1
    assert judge.parser.should_keep_alive() == request.keep_alive
    assert (request.method, request.target, request.body) == (judge.parser.get_method(), judge.target, judge.body)
    assert list(request.headers.items()) == judge.fields
    return True


def plain(reading: Reading) -> bool:
    """Whether every request is one that has to be served, within the limits."""
    return reading.end in {"whole", "closed"} and all(
        one.method in COMMON
        and not {b"upgrade", b"transfer-encoding"} & one.headers.keys()
        and one.lines <= LIMITS.max_headers
        and sum(len(name) + len(value) for name, value in one.headers.items()) + len(one.target) < 800
        and len(one.body) <= LIMITS.max_body_bytes
        and max(one.target) < 127
        for one in reading.requests
    )


def same(handled, method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> bool:
    """Whether a request that was handled is this one. One that asked to upgrade was handled as if it had not."""
    mine = handled[2]
    skip = {b"connection", b"upgrade", b"expect"} if b"upgrade" in headers and b"upgrade" not in mine else set()
    return (handled[0], handled[1], handled[3]) == (method, target, body) and (
        mine == headers
        or {k: v for k, v in mine.items() if k not in skip} == {k: v for k, v in headers.items() if k not in skip}
    )


def check(data: bytes, pieces: list[bytes], *, late: bool, glance: Glance, seen: Counter[str]) -> None:
    """One input."""
    began = time.process_time()
    seen["read at a glance"] += check_glance(glance, data)
    driven = Driven(glance, late=late)
    driven.feed(pieces)
    statuses = driven.answers()
    handled = driven.handled
    reading = read_requests(data)
    assert len(handled) <= len(reading.requests), "more was handled than was asked"
    for mine, other in zip(handled, reading.requests, strict=False):
        assert same(mine, other.method, other.target, other.headers, other.body), (mine, other)
    theirs, fault = by_h11(data)
    for mine, their in zip(handled, theirs, strict=False):
        assert same(mine, *their), (mine, their)
    assert len(handled) <= len(theirs) or fault or len(theirs) < len(reading.requests), "h11 read fewer requests"
    seen["by h11 too"] += min(len(handled), len(theirs))
    assert statuses[: len(handled)] == [200] * len(handled), statuses
    refusals = statuses[len(handled) :]
    assert len(refusals) <= 1, statuses
    assert not refusals or driven.connection.closing, "open after a refusal"
    if plain(reading):
        assert len(handled) == len(reading.requests), "a sound request was not served"
        seen["served whole"] += 1
    driven.end()
    seen["handled"] += len(handled)
    seen[f"refused {refusals[0]}" if refusals else f"end {reading.end}"] += 1
    assert time.process_time() - began < 2


def run(seed: int, inputs: int, seen: Counter[str]) -> None:
    """So many inputs; the first that fails is told with what repeats it."""
    rng = random.Random(seed)
    mutator = Mutator(rng, CORPUS, TOKENS)
    glance = Glance()
    for number in range(inputs):
        data = mutator.input()
        pieces = mutator.pieces(data)
        late = rng.random() < 0.3
        try:
            check(data, pieces, late=late, glance=glance, seen=seen)
        except Exception as error:
            raise AssertionError(f"seed {seed}, input {number}, late={late}, pieces={pieces!r}: {error!r}") from error
