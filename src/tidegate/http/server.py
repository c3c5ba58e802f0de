"""The server side: one listening socket, its connections, and the limits that end them.

Limits on times are swept once a second, so that no request pays for a timer of its own.
"""

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from tidegate.http.connection import ServerConnection
from tidegate.http.exchange import Exchange, HeaderList
from tidegate.http.limits import Limits
from tidegate.http.outbox import Outbox
from tidegate.http.request import Glance

SWEEP_S: Final = 1.0
SWEPT_AT_ONCE: Final = 50
SWEPT_PAUSE_S: Final = 0.002
SWEEPS: Final = 300
"""With more connections than these make, more are looked at in one go: all are, well within `SWEEP_S`."""
TLS_GOODBYE_S: Final = 1.0
"""How long a client may take to answer the end of a TLS session; many never do."""
IDLE_DRAIN_S: Final = 1.0
"""How long a kept-alive connection may still bring a request once the server drains."""
ACCEPTED_S: Final = 0.05
"""A connection that was accepted as the server stopped is known a turn of the loop later; TLS has its handshake before."""

Handler = Callable[[Exchange], None]
Refusal = Callable[[int, str], tuple[HeaderList, bytes]]
"""Headers and body of an answer to what could not be parsed, from its status and the reason."""


def plain_refusal(status: int, reason: str) -> tuple[HeaderList, bytes]:
    """The answer to unparsable requests where nothing better is handed in."""
    return [(b"content-type", b"text/plain; charset=utf-8")], f"{status} {reason}\n".encode()


class HttpServer:
    """Serves one listening socket. `handler` is called with every whole request."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits | None = None,
        refusal: Refusal = plain_refusal,
        outbox: Outbox | None = None,
    ) -> None:
        """Without an outbox every write leaves at once."""
        self.handler = handler
        self.limits = limits or Limits()
        self.refusal = refusal
        self.outbox = outbox
        self.connections: set[ServerConnection] = set()
        self.draining = False
        self.glance = Glance()
        self.date_line = b""
        self.clock = 0.0
        """Monotonic seconds at the next sweep: what deadlines count from, so that no request asks for the time."""
        self.idle_drain_s = IDLE_DRAIN_S
        """While others serve the port: how long idle connections stay, each to hear `Connection: close` on its next answer."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._settle_s = ACCEPTED_S

    def flush(self) -> None:
        """Write what waits for the end of the turn; something is about to be closed."""
        if self.outbox is not None:
            self.outbox.flush()

    def now(self) -> float:
        """Monotonic seconds."""
        return self._loop.time() if self._loop else 0.0

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept on a socket that is bound and may already be listening. It stays the caller's to close."""
        self._loop = asyncio.get_running_loop()
        self._settle_s = ACCEPTED_S if tls is None else IDLE_DRAIN_S
        self._sweep(self._loop)
        self._server = await self._loop.create_server(
            lambda: ServerConnection(self),
            sock=listening.dup(),
            backlog=4096,
            ssl=tls,
            ssl_shutdown_timeout=TLS_GOODBYE_S if tls is not None else None,
        )

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()
        now = loop.time()
        self.clock = now + SWEEP_S
        self._sweeper = loop.call_later(SWEEP_S, self._sweep, loop)
        connections = list(self.connections)
        self._sweep_some(loop, connections, max(SWEPT_AT_ONCE, len(connections) // SWEEPS))

    def _sweep_some(self, loop: asyncio.AbstractEventLoop, connections: list[ServerConnection], count: int) -> None:
        """A few at a time, and others' bytes in between: ten thousand at once would hold up every stream."""
        now = loop.time()
        for connection in connections[-count:]:
            if not connection.lost:
                connection.sweep(now)
        del connections[-count:]
        if connections:
            self._sweeping = loop.call_later(SWEPT_PAUSE_S, self._sweep_some, loop, connections, count)

    @property
    def busy(self) -> int:
        """Exchanges whose answer is not finished."""
        return sum(connection.exchange is not None for connection in self.connections)

    def stop_accepting(self) -> None:
        """Leave new connections in the socket's backlog, for whoever holds the socket next."""
        if self._server is not None:
            self._server.close()

    async def drain(self, timeout_s: float) -> bool:
        """Stop accepting, let answers finish (each with `Connection: close`), close what is idle; true if all did.

        A kept-alive connection may already have a request on its way: it is answered if it comes within
        `idle_drain_s`, which may change meanwhile.
        """
        self.draining = True
        self.stop_accepting()
        started = self.now()
        while (waited := self.now() - started) < timeout_s:
            if not self.connections and waited >= self._settle_s:
                break
            if waited >= self.idle_drain_s:
                self.flush()
                for connection in [c for c in self.connections if c.idle and not _has_unread(c)]:
                    connection.transport.close()
            await asyncio.sleep(0.02)
        whole = not self.busy
        await self.close()
        return whole

    async def close(self) -> None:
        """End at once."""
        for timer in (self._sweeper, self._sweeping):
            if timer is not None:
                timer.cancel()
        self.stop_accepting()
        self.flush()
        for connection in list(self.connections):
            connection.transport.abort()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1)


def _has_unread(connection: ServerConnection) -> bool:
    """Whether bytes have come that nobody has read yet: a close would reset the connection, and lose a request."""
    sock = connection.transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(sock.fileno(), select.POLLIN)
    return bool(asked.poll(0))
