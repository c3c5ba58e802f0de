"""The gateway's side of its talk with control: snapshots come down, a report goes up every second.

Control may go away at any time: the gateway serves on with its last snapshot, and every `RETRY_S` offers itself and
its listening socket to whoever listens on control's socket then. A gateway that has let go of its socket, since it
drains, goes on talking: what ends meanwhile is still reported.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate import logs
from tidegate.channel import Channel, ChannelClosedError, connect
from tidegate.types import DataReport, FleetSnapshot, Hello

RETRY_S: Final = 0.25
REPORT_S: Final = 1.0
LAST_REPORT_S: Final = 1.0
"""Longest wait at the end for the last report to leave."""


class Link:
    """Keeps a gateway in touch with control.

    `unsent` is given a report that could not be sent, so that what it tells only once is not lost.
    """

    def __init__(
        self,
        path: Path,
        hello: Hello,
        listening: socket.socket,
        *,
        apply: Callable[[FleetSnapshot], None],
        report: Callable[[], DataReport],
        unsent: Callable[[DataReport], None],
    ) -> None:
        self._path, self._hello, self._listening = path, hello, listening
        self._apply, self._report, self._unsent = apply, report, unsent
        self._due = asyncio.Event()
        self._ending = False

    async def run(self) -> None:
        """Talk to control until cancelled; a last report is sent then."""
        while True:
            with contextlib.suppress(ChannelClosedError):
                channel = connect(self._path)
                try:
                    await self._talk(channel)
                except ChannelClosedError:
                    logs.get().info("control is away; serving on with its last word")
                finally:
                    channel.close()
            await asyncio.sleep(RETRY_S)

    async def _talk(self, channel: Channel) -> None:
        descriptor = self._listening.fileno()
        await channel.send(self._hello, (descriptor,) if descriptor >= 0 else ())
        reporting = asyncio.ensure_future(self._send_reports(channel))
        try:
            await self._receive(channel)
        except asyncio.CancelledError:
            self._ending = True
            self._due.set()
            with contextlib.suppress(TimeoutError, ChannelClosedError):
                await asyncio.wait_for(asyncio.shield(reporting), LAST_REPORT_S)
            raise
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    async def _receive(self, channel: Channel) -> None:
        while True:
            snapshot, descriptors = await channel.receive(FleetSnapshot)
            for descriptor in descriptors:
                socket.close(descriptor)
            self._apply(snapshot)
            self._due.set()

    async def _send_reports(self, channel: Channel) -> None:
        """Every second, and as soon as a snapshot has been applied: control waits for that."""
        while True:
            self._due.clear()
            ending, report = self._ending, self._report()
            try:
                await channel.send(report)
            except BaseException:
                self._unsent(report)
                raise
            if ending:
                return
            if not self._ending:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._due.wait(), REPORT_S)
