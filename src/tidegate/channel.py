"""Messages between control and its gateways over a Unix socket: length-prefixed JSON, file descriptors beside them.

Control listens on `run/control.sock`. A gateway connects, sends `Hello` with its listening socket, then a `DataReport`
every second; control sends a `FleetSnapshot` whenever the fleet changes. Either side may vanish at any time; a gateway
serves on with its last snapshot and connects again.

A frame is a 4-byte big-endian length and that many bytes of JSON. Descriptors travel with the frame's first byte.

A gateway on another host says the same over HTTP, at control's admin port. It posts a `RemoteHello` to `LINK_PATH`; the
answer does not end: a JSON object a line (`Word`), the first with control's version, then a snapshot whenever the fleet
changes, and an empty one every `HEARTBEAT_S`. Each second it posts a `RemoteReport` to `REPORT_PATH`.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tidegate.types import DataReport, FleetSnapshot, Hello

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_DESCRIPTORS = 4
BACKLOG = 64
MAX_SOCKET_PATH_BYTES = 107
"""What fits into `sockaddr_un.sun_path` (unix(7))."""

PROTOCOL: Final = 1
"""Of what is said over HTTP; it grows when one side would misunderstand the other, not with each new field."""
LINK_PATH: Final = "/admin/v1/gateways/link"
REPORT_PATH: Final = "/admin/v1/gateways/report"
HEARTBEAT_S: Final = 2.0

Message = TypeVar("Message")


class RemoteHello(msgspec.Struct, frozen=True):
    """A gateway on another host greets control."""

    protocol: int
    instance: str
    """Drawn at the gateway's start: processes of two hosts may have one pid."""
    host: str
    """What its host calls itself."""
    hello: Hello
    look: bool = False
    """Only to see whether it would be let in: the answer ends with the first snapshot."""


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of control's answer; an empty one says that control lives."""

    protocol: int = 0
    version: str = ""
    snapshot: FleetSnapshot | None = None


class RemoteReport(msgspec.Struct, frozen=True):
    """A report from another host. What was used in it counts once, however often it has to be sent."""

    instance: str
    batch: int
    """Number of `report.usage`, from 1; it stays the same until control has answered."""
    report: DataReport


class ChannelClosedError(ConnectionError):
    """The other side is gone, or sent something that is no frame."""


class Channel:
    """One side of a connected Unix stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._sending = asyncio.Lock()

    async def send(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        """Send one message. Raises ChannelClosedError."""
        body = msgspec.json.encode(message)
        frame = len(body).to_bytes(4, "big") + body
        loop = asyncio.get_running_loop()
        async with self._sending:
            try:
                if descriptors:
                    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                    sent = self._socket.sendmsg([frame], ancillary)
                    frame = frame[sent:]
                if frame:
                    await loop.sock_sendall(self._socket, frame)
            except OSError as error:
                raise ChannelClosedError(str(error)) from error

    async def receive(self, kind: type[Message]) -> tuple[Message, list[int]]:
        """The next message and the descriptors that came with it, now the caller's. Raises ChannelClosedError."""
        while len(self._buffer) < 4:
            await self._fill()
        length = int.from_bytes(self._buffer[:4], "big")
        if length > MAX_FRAME_BYTES:
            raise ChannelClosedError(f"a frame of {length} bytes")
        while len(self._buffer) < 4 + length:
            await self._fill()
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        descriptors, self._descriptors = self._descriptors, []
        try:
            return msgspec.json.decode(body, type=kind), descriptors
        except msgspec.DecodeError as error:
            raise ChannelClosedError(f"not a {kind.__name__}: {error}") from error

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 65_536, MAX_DESCRIPTORS)
            except BlockingIOError:
                readable: asyncio.Future[None] = loop.create_future()
                loop.add_reader(self._socket.fileno(), _wake, readable)
                try:
                    await readable
                finally:
                    loop.remove_reader(self._socket.fileno())
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            self._descriptors += descriptors
            if not data:
                raise ChannelClosedError("the other side closed")
            self._buffer += data
            return

    def close(self) -> None:
        """Close the socket, and whatever descriptors nobody took."""
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                socket.close(descriptor)
        self._descriptors.clear()
        self._socket.close()


def listen(path: Path) -> socket.socket:
    """A listening Unix socket at `path`, for its owner alone; a socket left there by a dead process is replaced."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        os.fchmod(listening.fileno(), 0o600)
        with _short(path) as address:
            listening.bind(address)
        path.chmod(0o600)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def connect(path: Path) -> Channel:
    """The channel to whoever listens at `path`. Raises ChannelClosedError if nobody does."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        with _short(path) as address:
            connected.connect(address)
    except OSError as error:
        connected.close()
        raise ChannelClosedError(f"{path}: {error.strerror}") from error
    return Channel(connected)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of `path` that fits into a socket address, however deep the data folder lies."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
