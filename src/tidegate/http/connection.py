"""One client connection: parsing, pipelining, limits, and the order of its exchanges.

One request is parsed at a time: the ordinary kind at a glance, everything else by llhttp in its strict mode
(httptools). When a request is whole, the handler is called with an `Exchange`; it answers now or later, from
callbacks. Requests that arrive pipelined wait their turn.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import httptools

from tidegate.http.exchange import Exchange
from tidegate.http.limits import Limits
from tidegate.http.request import Request, RequestLine

if TYPE_CHECKING:
    from tidegate.http.server import HttpServer

HELD_BYTES: Final = 64 * 1024
"""Pipelined bytes kept while an answer is being written; past it the socket is not read."""
LINGER_S: Final = 2.0
"""How long a refused client's bytes are still read and dropped: a close with bytes unread would reset the connection,
and the client could lose the answer that says why."""
RESET: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close sends RST, so that an answer that ends with its connection cannot be taken for a whole one."""
SINGLE_FIELDS: Final = frozenset(
    (b"host", b"content-length", b"content-type", b"authorization", b"transfer-encoding", b"expect")
)


class ServerConnection(asyncio.Protocol):
    """One client connection. Implements httptools' callbacks."""

    __slots__ = (
        "body",
        "body_bytes",
        "closing",
        "deadline",
        "dispatching",
        "exchange",
        "fault",
        "fields",
        "head_bytes",
        "head_done",
        "headers",
        "held",
        "lost",
        "mid_message",
        "parser",
        "paused_since",
        "payloadless_bytes",
        "peer",
        "pending",
        "server",
        "target",
        "transport",
        "version",
        "write",
    )  # fmt: skip

    def __init__(self, server: "HttpServer") -> None:
        self.server = server
        self.exchange: Exchange | None = None
        self.pending: deque[Request] = deque()
        self.held = bytearray()
        self.closing = self.lost = self.dispatching = False
        self.paused_since: float | None = None
        self.fault: tuple[int, str] | None = None
        self._begin_message()

    def _begin_message(self) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.body_bytes = self.head_bytes = self.payloadless_bytes = 0
        self.head_done = self.mid_message = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP and TLS transports are Transports
        self.parser = httptools.HttpRequestParser(self)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        server = self.server
        outbox = server.outbox
        self.write: Callable[[bytes], object] = (
            self.transport.write if outbox is None else outbox.writer(self.transport)
        )
        self.deadline: float | None = server.clock + server.limits.head_timeout_s
        server.connections.add(self)
        if len(server.connections) > server.limits.max_connections:
            self.refuse(503, f"more than {server.limits.max_connections} connections are open")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.lost = True
        del self.parser  # it leads back here: no work for the collector, which seldom comes
        self.server.connections.discard(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None and not exchange.finished:
            exchange.finished = True
            gone, exchange.on_disconnect = exchange.on_disconnect, None
            exchange.on_pause = exchange.on_resume = None
            if gone is not None:
                gone()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        if self.exchange is None and self.paused_since is None and not self.dispatching:
            request = self._glance(data)
            if request is not None:
                self.pending.append(request)
            else:
                self._parse(data)
            self._dispatch()
            return
        self.held += data
        if len(self.held) > HELD_BYTES:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more. One that waits for an answer has gone; what is written already still leaves."""
        if self.exchange is not None:
            self.transport.abort()
        else:
            self.server.flush()
            self.closing = True
            self.deadline = self.server.clock + self.server.limits.write_timeout_s
        return False

    def pause_writing(self) -> None:
        self.paused_since = self.server.clock
        if self.exchange is not None and self.exchange.on_pause is not None:
            self.exchange.on_pause()

    def resume_writing(self) -> None:
        self.paused_since = None
        if self.exchange is not None:
            if self.exchange.on_resume is not None:
                self.exchange.on_resume()
        elif not self.dispatching and not self.closing and (self.pending or self.held):
            self._dispatch()

    # parsing

    def _glance(self, data: bytes) -> Request | None:
        if self.mid_message or self.head_bytes or self.pending or self.held:
            return None
        server = self.server
        limits = server.limits
        if len(data) > limits.max_head_bytes:
            return None
        return server.glance.read(data, max_headers=limits.max_headers, max_body_bytes=limits.max_body_bytes)

    def _parse(self, data: bytes) -> None:
        limits = self.server.limits
        head_done, body_bytes = self.head_done, self.body_bytes
        if not head_done:
            if not self.head_bytes:
                self.deadline = self.server.clock + limits.head_timeout_s
            self.head_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                again = self._without_upgrade(data[upgrade.args[0] :])
                self.parser.feed_data(again)
        except httptools.HttpParserUpgrade:
            self.pending.pop()  # without its body: not what was sent
            self.refuse(400, "requests that ask to upgrade cannot be pipelined")
            return
        except httptools.HttpParserCallbackError:
            self.refuse(*(self.fault or (400, "the request could not be parsed")))
            return
        except httptools.HttpParserError as error:
            self.refuse(400, f"the request is not valid HTTP/1.1: {error}")
            return
        if self.pending:
            return
        if not self.head_done and self.head_bytes > limits.max_head_bytes:
            self.refuse(431, f"the request's head is longer than {limits.max_head_bytes} bytes")
        elif head_done and self.body_bytes == body_bytes:
            self.payloadless_bytes += len(data)
            if self.payloadless_bytes > limits.max_head_bytes:
                self.refuse(431, f"chunk extensions or trailers are longer than {limits.max_head_bytes} bytes")

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request that asked to upgrade, as if it had not (RFC 9110, 7.8), and what came after its head.

        llhttp hands it over without its body. Java's client asks for h2c in every request on a new connection.
        """
        asked = self.pending.pop()
        self.parser = httptools.HttpRequestParser(self)
        options = asked.headers.pop(b"connection").lower()
        closes = b"close" in options or (asked.http10 and b"keep-alive" not in options)
        lines = [b"%b %b HTTP/1.%d" % (asked.method, asked.target, not asked.http10)]
        lines += [b"%b: %b" % pair for pair in asked.headers.items() if pair[0] not in {b"upgrade", b"expect"}]
        lines.append(b"connection: close" if closes else b"connection: keep-alive")
        return b"\r\n".join(lines) + b"\r\n\r\n" + rest

    def _stop_parsing(self, status: int, reason: str) -> None:
        self.fault = (status, reason)
        raise ValueError(reason)  # httptools turns it into HttpParserCallbackError

    def on_message_begin(self) -> None:
        self.mid_message = True  # also where its first bytes came in the packet of another request

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # after the head they are trailers, and decide nothing; llhttp leaves the space that ends a value in it
        self.fields.append((name, value.rstrip(b" \t")))

    def _join_repeated(self) -> None:
        """Headers that came twice become one (RFC 9110, 5.3), but for those that can only be said once."""
        headers = self.headers = {}
        for name, value in self.fields:
            key = name.lower()
            if key in headers:
                if key in SINGLE_FIELDS:
                    self._stop_parsing(400, f"the header {key.decode('latin-1')} came twice")
                headers[key] += b", " + value
            else:
                headers[key] = value

    def on_headers_complete(self) -> None:
        self.head_done = True
        limits, fields = self.server.limits, self.fields
        if len(fields) > limits.max_headers:
            self._stop_parsing(431, f"there are more than {limits.max_headers} headers")
        self.headers = {name.lower(): value for name, value in fields}
        if len(self.headers) != len(fields):
            self._join_repeated()
        self.version = self.parser.get_http_version()
        self._check_head(limits)
        self._check_framing(limits)
        self.deadline = self.server.clock + limits.body_timeout_s

    def _check_head(self, limits: Limits) -> None:
        headers = self.headers
        if self.version != "1.1":
            if self.version != "1.0":
                self._stop_parsing(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
            if b"transfer-encoding" in headers:
                self._stop_parsing(400, "HTTP/1.0 has no transfer-encoding")
        elif b"host" not in headers:
            self._stop_parsing(400, "the header host is missing")
        if self.target[:1] != b"/" and (self.target != b"*" or self.parser.get_method() != b"OPTIONS"):
            self._stop_parsing(400, "the request target has to be a path")
        if self.parser.get_method() == b"CONNECT":
            self._stop_parsing(501, "no tunnels are made here")
        large = self.head_bytes > limits.max_head_bytes or self.pending  # after a whole request it was not counted
        if large and self._head_size() > limits.max_head_bytes:
            self._stop_parsing(431, f"the request's head is longer than {limits.max_head_bytes} bytes")

    def _check_framing(self, limits: Limits) -> None:
        headers = self.headers
        length = headers.get(b"content-length")
        if length is not None:
            if int(length) > limits.max_body_bytes:
                self._stop_parsing(413, f"the body has {int(length)} bytes; at most {limits.max_body_bytes} are taken")
        elif headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            self._stop_parsing(501, "the only transfer-encoding understood is chunked")
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                self._stop_parsing(417, "the only expectation understood is 100-continue")
            if self.version == "1.1" and not self.pending and self.exchange is None:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head_size(self) -> int:
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers.items())

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        if self.body_bytes > self.server.limits.max_body_bytes:
            self._stop_parsing(413, f"the body is longer than the {self.server.limits.max_body_bytes} bytes taken")
        self.body.append(body)

    def on_message_complete(self) -> None:
        parts, parser = self.body, self.parser
        request = Request(
            RequestLine(parser.get_method(), self.target),
            self.headers,
            parts[0] if len(parts) == 1 else b"".join(parts),
        )
        request.http10 = self.version == "1.0"
        request.keep_alive = parser.should_keep_alive()
        if request.http10 and b"close" in self.headers.get(b"connection", b"").lower():
            request.keep_alive = False  # whatever else it says (RFC 9112, 9.3); llhttp minds the rest only
        self.pending.append(request)
        self._begin_message()

    # answering

    def _dispatch(self) -> None:
        """Hand over what has been parsed, one request after the other; a loop, since most answers come at once."""
        self.dispatching = True
        try:
            while self.exchange is None and self.paused_since is None and not self.lost:
                if self.pending:
                    self.deadline = None
                    self.exchange = Exchange(self, self.pending.popleft())
                    self.server.handler(self.exchange)
                elif self.held and not self.closing:
                    data, self.held = bytes(self.held), bytearray()
                    self.transport.resume_reading()
                    self._parse(data)
                else:
                    break
        finally:
            self.dispatching = False

    def persistence(self, request: Request) -> bytes:
        """The connection header of an answer: what will be true after it."""
        if self.server.draining or (self.closing and not self.pending):
            request.keep_alive = False
        if not request.keep_alive:
            return b"connection: close\r\n"
        return b"connection: keep-alive\r\n" if request.http10 else b""

    def exchange_finished(self, exchange: Exchange) -> None:
        """The answer is whole: go on with what was pipelined, wait for more, or close."""
        self.exchange = None
        if self.lost:
            return
        if not exchange.request.keep_alive or (self.closing and not self.pending):
            self._hang_up(self.server.limits.write_timeout_s)
            return
        self.deadline = self.server.clock + self.server.limits.idle_timeout_s
        if not self.dispatching and (self.pending or self.held):
            self._dispatch()

    def refuse(self, status: int, reason: str) -> None:
        """Answer what cannot be handled, and close: nothing after it can be trusted to be a request.

        Whole requests before it are answered first; then the connection closes without this answer.
        """
        if self.closing or self.lost:
            return
        self.closing = True
        if self.exchange is not None or self.pending:
            return
        headers, body = self.server.refusal(status, reason)
        nothing = Exchange(self, Request(RequestLine(b"", b""), {}, b""))
        self.write(nothing.head(status, headers, b"content-length: %d\r\n" % len(body), body))
        self._hang_up(LINGER_S)

    def _hang_up(self, linger_s: float) -> None:
        """Say that nothing more will come, and drop what still arrives until the client closes too."""
        self.closing = True
        self.pending.clear()
        self.held.clear()
        self.deadline = self.server.clock + linger_s
        if self.transport.is_closing():
            return
        self.server.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.transport.resume_reading()
        else:
            self.transport.close()

    def direct(self) -> Callable[[bytes], object]:
        """A function that writes at once, after all that was written before; nobody else writes meanwhile."""
        self.server.flush()
        return self.transport.write

    def reset(self) -> None:
        """Close at once, so that the client cannot take what it has for everything."""
        self.server.flush()
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    @property
    def idle(self) -> bool:
        """Whether nothing of a request has come that is still to be answered."""
        begun = self.pending or self.held or self.mid_message or self.head_bytes
        return self.exchange is None and (self.closing or not begun)

    def sweep(self, now: float) -> None:
        """Once a second: end what has taken too long."""
        limits = self.server.limits
        if self.paused_since is not None and now - self.paused_since > limits.write_timeout_s:
            self.transport.abort()
        elif self.deadline is not None and now > self.deadline:
            self.deadline = None
            if self.closing:
                self.transport.abort()
            elif self.head_done:
                self.refuse(408, f"the body took longer than {limits.body_timeout_s:g} s")
            elif self.head_bytes:
                self.refuse(408, f"the head took longer than {limits.head_timeout_s:g} s")
            else:
                self.transport.close()
