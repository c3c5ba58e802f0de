"""The gateway's side of its talk with control: snapshots come down, a report goes up every second.

Control may go away at any time: the gateway serves on with its last snapshot, and every `RETRY_S` offers itself and
its listening socket to whoever listens on control's socket then.
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


class Link:
    """Keeps a gateway in touch with control."""

    def __init__(
        self,
        path: Path,
        hello: Hello,
        listening: socket.socket,
        *,
        apply: Callable[[FleetSnapshot], None],
        report: Callable[[], DataReport],
    ) -> None:
        self._path, self._hello, self._listening = path, hello, listening
        self._apply, self._report = apply, report

    async def run(self) -> None:
        """Talk to control until cancelled."""
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
        await channel.send(self._hello, (self._listening.fileno(),))
        applied = asyncio.Event()
        reporting = asyncio.ensure_future(self._send_reports(channel, applied))
        try:
            while True:
                snapshot, descriptors = await channel.receive(FleetSnapshot)
                for descriptor in descriptors:
                    socket.close(descriptor)
                self._apply(snapshot)
                applied.set()
        finally:
            reporting.cancel()
            with contextlib.suppress(asyncio.CancelledError, ChannelClosedError):
                await reporting

    async def _send_reports(self, channel: Channel, applied: asyncio.Event) -> None:
        """Every second, and as soon as a snapshot has been applied: control waits for that."""
        while True:
            applied.clear()
            await channel.send(self._report())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(applied.wait(), REPORT_S)
