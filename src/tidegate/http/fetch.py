"""A whole answer for somebody who awaits it: for the gateway's own questions, never for a client's."""

import asyncio
import time

from tidegate.errors import EngineError, UpstreamClosedError
from tidegate.http.client import Endpoint, ResponseHead


class _Whole:
    """A `Reply` that collects."""

    def __init__(self, max_bytes: int) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._left = max_bytes
        self._parts: list[bytes] = []

    def on_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def on_body(self, payload: bytes) -> None:
        self._left -= len(payload)
        if self._left >= 0:
            self._parts.append(payload)
        elif not self.future.done():
            self.future.set_exception(UpstreamClosedError("the answer is longer than anybody wanted"))

    def on_end(self) -> None:
        if not self.future.done():
            self.future.set_result((self.status, b"".join(self._parts)))

    def on_error(self, error: EngineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def fetch(endpoint: Endpoint, request: bytes, *, max_bytes: int) -> tuple[int, bytes]:
    """Status and body of the answer to a whole request.

    A kept connection that closes before it says anything had ended already: the request is sent on another.
    Raises ConnectError, or UpstreamClosedError, also for a longer answer. Whoever gives up closes the connection.
    """
    while True:
        connection = endpoint.take(time.monotonic()) or await endpoint.connect()
        reply = _Whole(max_bytes)
        connection.send(request, reply)
        try:
            return await reply.future
        except UpstreamClosedError:
            connection.abort()
            if reply.status or not connection.reused:
                raise
        except BaseException:
            connection.abort()
            raise
