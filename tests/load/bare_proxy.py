"""A proxy that does nothing but pass requests on: what a gateway's cost is measured against.

`python bare_proxy.py PORT ENGINE_PORT`. uvloop and httptools, a pool, and no feature of any kind: it passes headers on
and reads the body, as whoever has to know the model must; no limits, no faults handled, no routing, no accounting.
"""

import asyncio
import json
import sys
from collections import deque

import httptools
import uvloop


class Client(asyncio.Protocol):
    """One client connection."""

    def __init__(self, proxy: "Proxy") -> None:
        self.proxy = proxy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP
        self.parser = httptools.HttpRequestParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        if body:
            json.loads(body)
        lines = b"".join([b"%b: %b\r\n" % header for header in self.headers])
        request = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (self.parser.get_method(), self.url, lines, body)
        self.headers.clear()
        self.body.clear()
        self.proxy.ask(self, request)


class Upstream(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, proxy: "Proxy") -> None:
        self.proxy = proxy
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP

    def ask(self, client: Client, request: bytes) -> None:
        self.client, self.parser = client, httptools.HttpResponseParser(self)
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.client is not None and not self.client.transport.is_closing():
            self.client.transport.write(data)
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.proxy.pool:
            self.proxy.pool.remove(self)

    def on_message_complete(self) -> None:
        self.client = None
        self.proxy.pool.append(self)


class Proxy:
    """The pool, and who is asked."""

    def __init__(self, engine_port: int) -> None:
        self.engine_port = engine_port
        self.pool: deque[Upstream] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def ask(self, client: Client, request: bytes) -> None:
        if self.pool:
            self.pool.pop().ask(client, request)
        else:
            task = asyncio.get_running_loop().create_task(self._connect(client, request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self, client: Client, request: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(
            lambda: Upstream(self), "127.0.0.1", self.engine_port
        )
        upstream.ask(client, request)


async def main(port: int, engine_port: int) -> None:
    proxy = Proxy(engine_port)
    server = await asyncio.get_running_loop().create_server(lambda: Client(proxy), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
