"""What is written in one turn of the event loop leaves together, at the turn's end.

Whoever reads is mostly asleep, and to wake it is the dearest part of a write: an interrupt to another core, several
microseconds in a virtual machine. Written one by one between other work, each write wakes its reader; written one after
the other, the first one does, and the rest find it awake. A turn with a single write waits for nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

MOST: Final = 16
"""Sockets that wait for the end of a turn; with more, those there are written at once, so that nobody waits long."""
MOST_BYTES: Final = 64 * 1024
"""For one socket; with more it is written at once, so that a reader that is behind is noticed."""


class Outbox:
    """The writes of one event loop."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[asyncio.WriteTransport, bytes] = {}

    def writer(self, transport: asyncio.WriteTransport) -> Callable[[bytes], None]:
        """A function that writes to `transport`, in order, by the end of the turn."""
        held, flush = self._held, self.flush

        def write(data: bytes) -> None:
            before = held.get(transport)
            if before is None:
                if not held:
                    asyncio.get_running_loop().call_soon(flush)
                elif len(held) >= MOST:
                    flush()
                held[transport] = data
            elif len(before) < MOST_BYTES:
                held[transport] = before + data
            else:
                flush()
                held[transport] = data

        return write

    def flush(self) -> None:
        """Write now; before a socket is closed, for what was to reach it. What is closed already gets nothing."""
        held = self._held
        if not held:
            return
        waiting = list(held.items())
        held.clear()
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
