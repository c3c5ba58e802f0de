"""One request and its answer, as whoever answers sees it."""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from tidegate.http.request import Request

if TYPE_CHECKING:
    from tidegate.http.connection import ServerConnection

HeaderList = Iterable[tuple[bytes, bytes]] | bytes
"""Names and values, or the same as the lines they become (`name: value` and CRLF each)."""

STATUS_LINES: Final = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
BODILESS: Final = frozenset((204, 304))


def as_lines(headers: HeaderList) -> bytes:
    """Headers as they are written."""
    return headers if isinstance(headers, bytes) else b"".join([b"%s: %s\r\n" % pair for pair in headers])


def _drop(_data: bytes) -> None:
    """What nobody is to get."""


class Exchange:
    """One request and its answer. Every method may be called after the client has gone; it then does nothing.

    `on_disconnect` is called once if the client goes before the answer is finished; `on_pause` and `on_resume` when
    the client reads slower than the answer is written.
    """

    __slots__ = (
        "_connection",
        "chunked",
        "client",
        "extra_headers",
        "finished",
        "on_disconnect",
        "on_pause",
        "on_resume",
        "request",
        "started",
    )

    def __init__(self, connection: "ServerConnection", request: Request) -> None:
        self._connection = connection
        self.request = request
        self.client = connection.peer
        """The address of whoever asks; where a proxy stands between, whoever knows better may say so."""
        self.started = self.finished = self.chunked = False
        self.extra_headers: HeaderList = ()
        """Headers that every answer to this request carries, whoever writes it."""
        self.on_disconnect: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None

    @property
    def transport(self) -> asyncio.Transport:
        """The client's socket, for those who break the rules on purpose."""
        return self._connection.transport

    def direct(self) -> Callable[[bytes], object]:
        """A function that writes bytes as they are, at once, for those whose chunks have their framing.

        It is good until the exchange itself is written to. A HEAD gets nothing of a body by it either.
        """
        return self._connection.direct() if self.request.method != b"HEAD" else _drop

    @property
    def peer(self) -> str:
        """The client's address, also when it has gone; empty on a Unix socket."""
        return self._connection.peer

    @property
    def paused(self) -> bool:
        """Whether the client is behind with reading."""
        return self._connection.paused_since is not None

    def respond(self, status: int, headers: HeaderList = (), body: bytes = b"") -> None:
        """The whole answer at once."""
        if self.finished or self.started:
            return
        self.started = True
        if status in BODILESS:
            answer = self.head(status, headers, b"", b"")
        else:
            length = b"content-length: %d\r\n" % len(body)
            answer = self.head(status, headers, length, b"" if self.request.method == b"HEAD" else body)
        self._connection.write(answer)
        self.finish()

    def start(self, status: int, headers: HeaderList = ()) -> None:
        """Begin an answer of unknown length; `write` follows, then `finish`."""
        if self.finished or self.started:
            return
        self.started = True
        if self.request.http10:
            self.request.keep_alive = False
            head = self.head(status, headers, b"", b"")
        else:
            self.chunked = True
            head = self.head(status, headers, b"transfer-encoding: chunked\r\n", b"")
        self._connection.write(head)

    def head(self, status: int, headers: HeaderList, framing: bytes, body: bytes) -> bytes:
        """Head and body in one piece; the head says truly whether the connection stays."""
        connection = self._connection
        return b"%b%b%b%b%b%b\r\n%b" % (
            STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
            connection.server.date_line,
            headers if isinstance(headers, bytes) else as_lines(headers),
            as_lines(self.extra_headers) if self.extra_headers else b"",
            framing,
            connection.persistence(self.request),
            body,
        )

    def write(self, payload: bytes) -> None:
        """One piece of the body, sent as one chunk in one write."""
        if self.finished or not payload:
            return
        if self.request.method != b"HEAD":
            data = b"%x\r\n%b\r\n" % (len(payload), payload) if self.chunked else payload
            self._connection.write(data)

    def finish(self) -> None:
        """The end of the answer; the connection goes on to its next request, or closes."""
        if self.finished:
            return
        self.finished = True
        self.on_disconnect = self.on_pause = self.on_resume = None  # they lead back here: no work for the collector
        if self.chunked and self.request.method != b"HEAD":
            self._connection.write(b"0\r\n\r\n")
        self._connection.exchange_finished(self)

    def abort(self) -> None:
        """Cut the connection so that the client knows that the answer is not whole (RST, no last chunk)."""
        if not self.finished:
            self.finished = True
            self.on_disconnect = self.on_pause = self.on_resume = None
            self._connection.exchange = None
            self._connection.reset()
