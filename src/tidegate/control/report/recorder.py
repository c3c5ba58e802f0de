"""Keeps the ring filled: looks every few seconds, writes every minute, and writes what there is at the end.

A disk that is full costs samples, never more: they wait, the oldest are let go of, and the log tells it once.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from tidegate.control.report.samples import Gathering, Sample
from tidegate.control.sums import Sums
from tidegate.types import DataReport

LOOK_S: Final = 5.0
SAMPLE_S: Final = 60.0
MOST_WAITING: Final = 120
"""Samples that could not be written: two hours."""
LAST_WRITE_S: Final = 5.0
"""Longest wait at the end for a disk that does not answer."""


class Recorder:
    """`write` blocks and raises OSError; `sums` tells how it is; `clock` is monotonic, `wall` is Unix time."""

    def __init__(
        self,
        write: Callable[[Sequence[Sample]], None],
        sums: Callable[[], Sums],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._write, self._sums, self._clock, self._wall, self._log = write, sums, clock, wall, log
        self._gathering = Gathering()
        self._waiting: list[Sample] = []
        self._trouble = ""
        self._begun_s = self._looked_s = clock()
        self._begun_at_s = wall()

    def add(self, report: DataReport) -> None:
        """Take over what a gateway told."""
        self._gathering.add(report)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()
            if self._clock() - self._begun_s >= SAMPLE_S:
                await self.store()

    async def close(self) -> None:
        """Write what there is of the running minute."""
        try:
            async with asyncio.timeout(LAST_WRITE_S):
                await self.store()
        except TimeoutError:
            self._log.error("the last samples of the report could not be written in time")

    def look(self) -> None:
        """See how it is."""
        now = self._clock()
        self._gathering.look(self._sums(), now - self._looked_s)
        self._looked_s = now

    async def store(self) -> None:
        """End the sample, and write what waits."""
        now = self._clock()
        if self._gathering:
            self._waiting.append(self._gathering.take(self._begun_at_s, now - self._begun_s))
        self._begun_s, self._begun_at_s = now, self._wall()
        del self._waiting[:-MOST_WAITING]
        waiting = tuple(self._waiting)
        if not waiting:
            return
        try:
            await asyncio.to_thread(self._write, waiting)
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self._trouble:
                self._trouble = trouble
                self._log.error("samples for the report cannot be written; two hours of them are kept", cause=trouble)
            return
        self._trouble = ""
        del self._waiting[: len(waiting)]
