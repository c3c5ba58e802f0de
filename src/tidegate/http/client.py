"""The client side: a pool of connections to one endpoint, and the answer that comes on each.

`Endpoint.take` decides at once: an idle connection, or None. Only where there is none is a new one awaited.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

from tidegate.errors import ConnectError, EngineError, UpstreamClosedError
from tidegate.http.framing import (
    KNOWN_CHUNK_BYTES,
    SIZE_LINES,
    WHOLE_EVENT,
    Body,
    ChunkedBody,
    LengthBody,
    UntilCloseBody,
)
from tidegate.http.outbox import Outbox

MAX_HEAD_BYTES: Final = 64 * 1024
IDLE_S: Final = 4.0
"""An idle connection older than this is not used: vLLM closes its own after 5 s, and a close can cross a request."""

FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
MAX_SEEN: Final = 512
MAX_SEEN_BYTES: Final = 2048
NO_ENDING: Final = b"\0" * KNOWN_CHUNK_BYTES
"""Ends no chunk that is asked about: it is longer than they are."""


class ResponseHead:
    """Status and headers of an answer; names in lower case, the last of equal fields wins.

    Shared between answers of the same head: nobody writes to it.
    """

    __slots__ = ("headers", "keep_alive", "status", "told")

    def __init__(self, status: int, headers: dict[bytes, bytes], *, keep_alive: bool) -> None:
        self.status, self.headers, self.keep_alive = status, headers, keep_alive
        self.told = b""
        """What is passed on of it, kept here by whoever passes it on."""


class Reply(Protocol):
    """Who gets an answer. `on_end` or `on_error` comes last, exactly once, unless the connection was aborted."""

    def on_head(self, head: ResponseHead) -> None:
        """Status and headers are whole."""

    def on_body(self, payload: bytes) -> None:
        """Some of the body, unframed."""

    def on_end(self) -> None:
        """The answer is whole."""

    def on_error(self, error: EngineError) -> None:
        """It will never be."""


class Connection(asyncio.Protocol):
    """One connection to an endpoint; one request at a time."""

    __slots__ = (
        "_bodiless",
        "_body",
        "_head",
        "_keep_alive",
        "_paused",
        "asked_bytes",
        "ending",
        "endpoint",
        "forward",
        "idle_since",
        "keep",
        "lost",
        "pipe",
        "reply",
        "reused",
        "transport",
        "write",
    )

    def __init__(self, endpoint: "Endpoint") -> None:
        self.endpoint = endpoint
        self.reply: Reply | None = None
        self.pipe: Callable[[bytes], bool] | None = None
        """Takes whole chunks that end an event, exactly as they came, in place of `reply.on_body`, or says False.

        The reply sets it from `on_body`, once it holds nothing back; it lasts until something else comes, or it has
        refused one, which then goes the ordinary way. Nearly every event of a stream is such a chunk, so this is the
        path that has to be short.
        """
        self.ending = NO_ENDING
        """How chunks end of which `pipe` would only do this: `keep`, and `forward`. Whole events end so."""
        self.keep: Callable[[bytes], object] = _let_go
        self.forward: Callable[[bytes], object] = _let_go
        self.lost = self.reused = False
        self.idle_since = 0.0
        self.asked_bytes = 0
        """Size of the last request."""
        self._head = b""
        self._body: Body | None = None
        self._bodiless = self._paused = self._keep_alive = False

    def send(self, request: bytes, reply: Reply, *, bodiless: bool = False) -> None:
        """Send a whole request; the answer goes to `reply`. `bodiless`: it was a HEAD."""
        self.reply = reply
        self.ending = NO_ENDING
        self.asked_bytes = len(request)
        self._head, self._body, self._bodiless = b"", None, bodiless
        self.write(request)

    def pass_on(
        self,
        ending: bytes,
        keep: Callable[[bytes], object],
        forward: Callable[[bytes], object],
        pipe: Callable[[bytes], bool],
    ) -> None:
        """Set the pipe, and what it does with chunks that end like this; for an empty `ending` it is asked about each."""
        self.pipe, self.ending, self.keep, self.forward = pipe, ending or NO_ENDING, keep, forward

    def abort(self) -> None:
        """Close at once, whatever is on the way; `reply` hears nothing more."""
        self.reply = self.pipe = None
        if not self.lost:
            self.transport.abort()

    @property
    def awaited(self) -> bool:
        """Whether an answer is on its way and would be read."""
        return self.reply is not None and not self._paused

    def pause(self) -> None:
        """Stop reading: the engine's socket fills, and the engine waits. One without a request is never paused."""
        if self.reply is not None and not self.lost:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if not self.lost:
            self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # TCP transports are Transports
        outbox = self.endpoint.outbox
        self.write: Callable[[bytes], object] = (
            self.transport.write if outbox is None else outbox.writer(self.transport)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.endpoint.forget(self)
        reply, self.reply, self.pipe = self.reply, None, None
        if reply is None:
            return
        if exc is None and self._body is not None and self._body.end():
            reply.on_end()
        else:
            reply.on_error(UpstreamClosedError(f"{self.endpoint.url} closed the connection: {exc or 'end of stream'}"))

    def data_received(self, data: bytes) -> None:
        pipe = self.pipe
        if pipe is not None:
            size = len(data)
            if size < KNOWN_CHUNK_BYTES and data.startswith(SIZE_LINES[size]):
                if data.endswith(self.ending):
                    self.keep(data)
                    self.forward(data)
                    return
                if data.endswith(WHOLE_EVENT) and pipe(data):
                    return
        reply = self.reply
        if reply is None:
            self.transport.abort()  # nothing was asked: whatever this is must not be taken for the next answer
            return
        self.pipe = None  # the reply may hold some of this back: it says again when it does not
        try:
            self._take(data)
        except UpstreamClosedError as error:
            self._break_off(error)
            return
        if self.pipe is not None and (self._body is None or not self._body.between_chunks):
            self.pipe = None

    def _break_off(self, error: UpstreamClosedError) -> None:
        reply, self.reply, self.pipe = self.reply, None, None
        self.transport.abort()
        if reply is not None:
            reply.on_error(error)

    def _take(self, data: bytes) -> None:
        while data and (reply := self.reply) is not None:
            if self._body is None:
                data = self._take_head(reply, data)
                continue
            payload, data = self._body.feed(data)
            if payload:
                reply.on_body(payload)
            if self._body.done and self.reply is reply:
                self._finish(reply, surplus=data)
                return

    def _take_head(self, reply: Reply, data: bytes) -> bytes:
        data = self._head + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES:
                raise UpstreamClosedError(f"{self.endpoint.url} sent a head longer than {MAX_HEAD_BYTES} bytes")
            self._head = data
            return b""
        self._head = b""
        head = self.endpoint.seen.head(data[:end])
        rest = data[end + 4 :]
        if head.status < 200:
            return rest
        headers = head.headers
        if (
            not self._bodiless
            and headers.get(b"content-length") == b"%d" % len(rest)
            and b"transfer-encoding" not in headers
            and head.status == 200
        ):
            self._keep_alive = head.keep_alive
            reply.on_head(head)  # nearly every JSON answer comes whole, head and body in one piece
            if rest and self.reply is reply:
                reply.on_body(rest)
            if self.reply is reply:
                self._finish(reply, surplus=b"")
            return b""
        self._body = _body_of(head, bodiless=self._bodiless)
        self._keep_alive = head.keep_alive and self._body.__class__ is not UntilCloseBody
        reply.on_head(head)
        if self._body.done and self.reply is reply:
            self._finish(reply, surplus=rest)
            return b""
        return rest

    def _finish(self, reply: Reply, *, surplus: bytes) -> None:
        self.reply = self.pipe = None
        self.keep = self.forward = _let_go  # what a stream kept, and its client, are not the pool's to hold
        if self._paused:
            self.resume()
        if surplus or not self._keep_alive:
            self.endpoint.forget(self)
            self.transport.close()
        else:
            self.endpoint.put_back(self)
        reply.on_end()


class SeenHeads:
    """Heads and header lines that an engine has sent before, taken apart once: it sends the same few again and again."""

    def __init__(self) -> None:
        self._heads: dict[bytes, ResponseHead] = {}
        self._lines: dict[bytes, tuple[bytes, bytes]] = {}

    def head(self, text: bytes) -> ResponseHead:
        """Status line and headers without the empty line. Raises UpstreamClosedError for what is not HTTP/1."""
        head = self._heads.get(text)
        if head is None:
            head = self._parse(text)
            if len(text) <= MAX_SEEN_BYTES:
                if len(self._heads) >= MAX_SEEN:
                    self._heads.clear()
                self._heads[text] = head
        return head

    def _parse(self, text: bytes) -> ResponseHead:
        if len(text) > MAX_HEAD_BYTES:
            raise UpstreamClosedError(f"the engine sent a head longer than {MAX_HEAD_BYTES} bytes")
        lines = text.split(b"\r\n")
        first = lines[0]
        if not _STATUS_LINE.fullmatch(first):
            raise UpstreamClosedError(f"{first[:40]!r} is not the status line of an HTTP/1.1 answer")
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, value = self._lines.get(line) or self._split(line)
            if name in FRAMING and headers.get(name, value) != value:
                raise UpstreamClosedError(f"the header {name.decode()} came twice, and says two things")
            headers[name] = value
        keep_alive = first[7] == ord("1")
        connection = headers.get(b"connection")
        if connection is not None:
            connection = connection.lower()
            keep_alive = b"close" not in connection and (keep_alive or b"keep-alive" in connection)
        return ResponseHead(int(first[9:12]), headers, keep_alive=keep_alive)

    def _split(self, line: bytes) -> tuple[bytes, bytes]:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise UpstreamClosedError(f"{line[:40]!r} is not a header")
        field = (name.lower(), value.strip(b" \t"))
        if len(line) <= MAX_SEEN_BYTES:
            if len(self._lines) >= MAX_SEEN:
                self._lines.clear()
            self._lines[line] = field
        return field


_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(rb"[\0\r\n]")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?: [^\r\n]*)?")


def _let_go(_data: bytes) -> None:
    """What a connection does that passes nothing on."""


def _body_of(head: ResponseHead, *, bodiless: bool) -> Body:
    headers = head.headers
    coding = headers.get(b"transfer-encoding")
    length = headers.get(b"content-length")
    if bodiless or head.status in {204, 304}:
        return LengthBody(0)
    if coding is not None:
        if coding.lower() != b"chunked" or length is not None:
            raise UpstreamClosedError("a transfer-encoding other than chunked, or one beside a length")
        return ChunkedBody()
    if length is None:
        return UntilCloseBody()
    if not length.isdigit() or len(length) > 15:
        raise UpstreamClosedError(f"{length[:20]!r} is not a length")
    return LengthBody(int(length))


class Endpoint:
    """Where a replica listens, and the connections to it."""

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = 5.0,
        outbox: Outbox | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url` is `http://HOST:PORT`; without a port, 80. Without an outbox every write leaves at once.

        With `tls` it is `https://HOST:PORT`; without a port, 443.
        """
        address = url.removeprefix("http://" if tls is None else "https://").rstrip("/")
        parts = urlsplit(f"//{address}")
        self.url, self.host, self.port = url, parts.hostname or "", parts.port or (80 if tls is None else 443)
        self.tls = tls
        self.host_header = address.encode("latin-1")
        self.connect_timeout_s = connect_timeout_s
        self.outbox = outbox
        self.connections: set[Connection] = set()
        self.seen = SeenHeads()
        self._idle: deque[Connection] = deque()
        self._closed = False

    def take(self, now: float) -> Connection | None:
        """An idle connection, the last one used first, or None; decided at once. `now` is monotonic."""
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < IDLE_S and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def connect(self) -> Connection:
        """A new connection. Raises ConnectError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(self), self.host, self.port, ssl=self.tls
                )
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(f"the certificate of {self.url} is not trusted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise ConnectError(f"{self.url} does not speak TLS: {error.reason or error}") from error
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self.connect_timeout_s:g} s"
            raise ConnectError(f"{self.url} cannot be reached: {reason}") from error
        if self._closed:
            transport.abort()
            raise ConnectError(f"{self.url} is no longer a replica")
        if connection.lost or transport.is_closing():
            raise ConnectError(f"{self.url} closed the connection as soon as it was made")
        self.connections.add(connection)  # not when it is made: one given up in that moment hears of no end
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def put_back(self, connection: Connection) -> None:
        """The connection's answer is whole: it may be used again."""
        if self._closed or connection.lost:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        self.connections.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close_idle(self) -> None:
        """The replica was replaced: nothing of its old connections may be used."""
        while self._idle:
            self._idle.pop().abort()

    def close(self) -> None:
        """Close what is idle now, and the rest as it ends."""
        self._closed = True
        self.close_idle()
