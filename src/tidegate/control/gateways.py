"""Control's end of the gateways: their greetings and listening socket in, snapshots down, reports up.

Control keeps a duplicate of the data port's listening socket, so that the port outlives a gateway that is killed:
connections wait in its backlog until the next gateway accepts them.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tidegate import channel
from tidegate.channel import Channel, ChannelClosedError
from tidegate.control.sums import Told, trim
from tidegate.types import DataReport, FleetSnapshot, Hello, ProcessId


@dataclass
class Heard:
    """What a gateway has reported."""

    report: DataReport | None = field(default=None, init=False)
    reported_at_s: float = field(default=0.0, init=False)
    """By the clock handed in."""
    recent: list[Told] = field(default_factory=list, init=False)
    """The reports of the last seconds, oldest first, without what was used."""

    def heard(self, report: DataReport, at_s: float) -> None:
        self.report, self.reported_at_s = report, at_s
        self.recent.append(Told(at_s, msgspec.structs.replace(report, usage=(), spreads=())))
        trim(self.recent, at_s)


@dataclass
class Link(Heard):
    """One connected gateway."""

    hello: Hello
    channel: Channel
    listening: socket.socket | None
    """The data port's socket as the gateway handed it over; whoever takes it sets None."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def drop_listening(self) -> None:
        if self.listening is not None:
            self.listening.close()
            self.listening = None


class Gateways:
    """Serves `run/control.sock`. `reported` is given every report, once."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        log: structlog.stdlib.BoundLogger,
        reported: Callable[[DataReport], None] = lambda _: None,
    ) -> None:
        self.links: dict[ProcessId, Link] = {}
        self.snapshot = FleetSnapshot(number=0)
        self._path, self._clock, self._log = path, clock, log
        self._reported = reported
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None

    def open(self) -> None:
        """Listen. Raises OSError."""
        self._listening = channel.listen(self._path)
        self._run(self._accept(self._listening))

    async def close(self) -> None:
        """Let the gateways go; they serve on with what they have."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
            self._path.unlink(missing_ok=True)

    def refuse(self) -> None:
        """Let go of every listening socket that was handed over, so that the data port can close."""
        for link in self.links.values():
            link.drop_listening()

    def publish(self, snapshot: FleetSnapshot) -> None:
        """Send a snapshot to every gateway, now and when one connects; one that is slow gets only the newest."""
        self.snapshot = snapshot
        for link in self.links.values():
            link.wake.set()

    async def arrival(self, process: ProcessId, *, snapshot: int = 0, timeout_s: float) -> Link | None:
        """The link of a gateway once it works with snapshot `snapshot` or a later one; None if that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    changed = self._changed
                    link = self.links.get(process)
                    if link is not None and (snapshot == 0 or (link.report and link.report.snapshot >= snapshot)):
                        return link
                    await changed.wait()
        return None

    async def departure(self, process: ProcessId, *, timeout_s: float) -> bool:
        """Whether a gateway that has ended is gone from `links`: its last report has been read by then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while process in self.links:
                    await self._changed.wait()
        return process not in self.links

    def _run(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connected = Channel((await loop.sock_accept(listening))[0])
            serving = self._run(self._serve(connected))
            serving.add_done_callback(partial(_close, connected))  # even if it never ran

    async def _serve(self, connected: Channel) -> None:
        link: Link | None = None
        sending: asyncio.Task[None] | None = None
        try:
            hello, descriptors = await connected.receive(Hello)
            link = Link(hello, connected, _take(descriptors))
            self.links[hello.process] = link
            self._log.debug("gateway connected", pid=hello.process.pid, listen=hello.listen)
            sending = self._run(self._send(link))
            while True:
                self._tell()
                report, extra = await connected.receive(DataReport)
                link.heard(report, self._clock())
                self._reported(report)
                _close_all(extra)
        except ChannelClosedError as error:
            self._log.debug("gateway gone", cause=str(error))
        finally:  # nothing is awaited here, so that no cancellation cuts it short
            if sending is not None:
                sending.cancel()
            if link is not None:
                if self.links.get(link.hello.process) is link:
                    del self.links[link.hello.process]
                link.drop_listening()
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _send(self, link: Link) -> None:
        sent = 0
        with contextlib.suppress(ChannelClosedError):  # the receiver sees it too, and ends this
            while True:
                if self.snapshot.number > sent:
                    sent = self.snapshot.number
                    await link.channel.send(self.snapshot)
                link.wake.clear()
                if self.snapshot.number == sent:
                    await link.wake.wait()


def _take(descriptors: list[int]) -> socket.socket | None:
    """The listening socket out of a greeting."""
    _close_all(descriptors[1:])
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _close(connected: Channel, _: asyncio.Task[None]) -> None:
    connected.close()


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
