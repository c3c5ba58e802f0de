"""Follows the log files of children and tells their lines again in the project's own log.

Children write to files, not to pipes, so that they outlive control. A file is emptied in place once it is read and over
its bound; children append (O_APPEND), so they write on at its new end.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

MAX_BYTES = 4 * 1024 * 1024
"""A file is emptied past this; only lines written in the very microseconds between the last read and that are lost."""
MAX_LINE_BYTES = 64 * 1024
POLL_S = 0.2
READ_BYTES = 256 * 1024
TAIL_LINES = 50


class LogFollower:
    """Follows one file from where it ends now; `tail` is what was written since."""

    def __init__(self, path: Path, emit: Callable[[bytes], None], *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._emit, self._max_bytes = emit, max_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._offset = os.fstat(self._descriptor).st_size

    def poll(self) -> None:
        """Tell what was written since the last call; bounded work, so that a flood cannot hold the loop."""
        size = os.fstat(self._descriptor).st_size
        if size < self._offset:  # somebody else emptied it
            self._offset, self._rest = 0, b""
        data = os.pread(self._descriptor, READ_BYTES, self._offset)
        self._offset += len(data)
        if self._offset >= self._max_bytes and len(data) < READ_BYTES:
            os.ftruncate(self._descriptor, 0)
            self._offset = 0
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._tell(line)

    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        self.poll()
        return tuple(self._tail)

    def close(self) -> None:
        """Tell the rest, an unfinished last line included, and let the file go."""
        self.poll()
        if self._rest:
            self._tell(self._rest)
        os.close(self._descriptor)

    def _tell(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            self._tail.append(text)
            self._emit(line)


class LogFollowers:
    """All followed files, by the name of the process that writes them."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._followers: dict[str, LogFollower] = {}

    def follow(self, name: str, path: Path, emit: Callable[[bytes], None]) -> None:
        """Follow a file from its end, if it is not followed yet."""
        if name not in self._followers:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._followers[name] = LogFollower(path, emit)

    def forget(self, name: str) -> None:
        follower = self._followers.pop(name, None)
        if follower is not None:
            follower.close()

    def tail(self, name: str) -> tuple[str, ...]:
        follower = self._followers.get(name)
        return follower.tail() if follower else ()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(POLL_S)

    def poll(self) -> None:
        """Tell what every child wrote since the last time."""
        for name, follower in tuple(self._followers.items()):
            try:
                follower.poll()
            except OSError as error:
                self._log.warning("log cannot be followed", process=name, cause=str(error))

    def close(self) -> None:
        """Tell what is left, and let all files go."""
        for name in tuple(self._followers):
            self.forget(name)
