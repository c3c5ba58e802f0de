"""Usage on its way into the store: added up, and written every two seconds in a thread.

What cannot be written waits and is written later. At the end the rest is written. A process that is killed outright
takes with it what came in the last `WRITE_S`, and a gateway what it had not reported: one second more.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from tidegate.errors import OperatorError
from tidegate.gateway.usage_sums import UsageSums
from tidegate.types import UsageCount

WRITE_S: Final = 2.0
LAST_WRITE_S: Final = 10.0
"""Longest wait at the end for a database that does not answer."""


class UsageWriter:
    """Gathers usage, from `add` and from `source`, and hands it to `write`, which blocks and raises OperatorError."""

    def __init__(
        self,
        write: Callable[[Sequence[UsageCount]], None],
        *,
        log: structlog.stdlib.BoundLogger,
        source: Callable[[], Iterable[UsageCount]] = tuple,
        every_s: float = WRITE_S,
    ) -> None:
        self._write, self._log, self._source, self._every_s = write, log, source, every_s
        self._sums = UsageSums()
        self._ending = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._trouble = ""

    def open(self) -> None:
        """Begin to write."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    def add(self, usage: Iterable[UsageCount]) -> None:
        """Take over what was used."""
        self._sums.add_all(usage)

    async def close(self) -> None:
        """Write what is left, and end."""
        self._ending.set()
        running, self._running = self._running, None
        if running is not None:
            await asyncio.wait({running}, timeout=LAST_WRITE_S)
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        if self._sums:
            self._log.error("usage of the last seconds could not be written", requests=self._lost())

    async def _run(self) -> None:
        ending = False
        while not ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), self._every_s)
            ending = self._ending.is_set()
            await self._write_all()

    async def _write_all(self) -> None:
        self.add(self._source())
        usage = self._sums.take()
        if not usage:
            return
        try:
            await asyncio.to_thread(self._write, usage)
            self._trouble = ""
        except OperatorError as error:
            self._sums.add_all(usage)
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log.error("usage cannot be written yet; it is kept", cause=self._trouble)
        except asyncio.CancelledError:  # the database hangs; what it will do with them nobody knows
            self._sums.add_all(usage)
            raise

    def _lost(self) -> int:
        return sum(one.requests for one in self._sums.take())
