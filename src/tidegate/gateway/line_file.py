"""Files of lines about requests: the access log, the trace.

A thread writes them, so that no disk holds up the event loop. What waits is bounded; lines that find it full, or a full
disk, are dropped and counted.

Several processes write one file. Each batch is one write under a lock on the file (flock), which also makes sure that
one process at a time puts the file aside: the others notice that the name leads elsewhere, and follow it. So do they
when somebody else's logrotate moved it.
"""

import fcntl
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from tidegate import logs
from tidegate.types import LineFileOptions

QUEUE_BATCHES: Final = 1000
"""Batches that wait; some 6 MB of the access log."""
FLUSH_S: Final = 0.25
CLOSE_S: Final = 5.0
DAY_S: Final = 86_400


class LineFile:
    """Puts lines into a file, from one event loop. `apply` starts it; `close` writes what waits."""

    def __init__(self, file: "SharedFile", name: str) -> None:
        """`name` is what the file is called when it cannot be written."""
        self.dropped = {"full": 0, "disk": 0}
        self.wanted = False
        """Whether lines are asked for."""
        self.queue: deque[bytes] = deque()
        """Batches of lines that wait for the disk."""
        self._file, self._name = file, name
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def apply(self, options: LineFileOptions) -> None:
        """Begin to write, if that is asked for; where the file is put aside follows the settings at once."""
        self.wanted = options.enabled
        self._file.max_bytes, self._file.backups = options.max_bytes, options.backups
        if options.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def has_room(self, lines: int) -> bool:
        """Whether another batch may wait; if not, its lines are counted as dropped."""
        if len(self.queue) < QUEUE_BATCHES:
            return True
        self.dropped["full"] += lines
        return False

    def close(self) -> None:
        """Write what waits, and end. A disk that hangs is not waited for longer than `CLOSE_S`."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            self._flush()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        batches = [self.queue.popleft() for _ in range(len(self.queue))]
        if not batches:
            return
        try:
            self._file.write(b"".join(batches))
            self._trouble = ""
        except OSError as error:
            self.dropped["disk"] += self._file.unwritten
            if self._trouble != str(error):
                self._trouble = str(error)
                logs.get().error(f"{self._name} cannot be written; its lines are dropped", cause=str(error))


class SharedFile:
    """A file of lines that several processes append to, put aside at `max_bytes` as FILE.1, FILE.2 ..."""

    def __init__(self, path: Path, *, daily: bool = False) -> None:
        """`daily`: it is put aside too when the last line was of an earlier day (UTC). Its folder is made when needed."""
        self.max_bytes = 100 * 1024 * 1024
        self.backups = 5
        self.unwritten = 0
        """How many lines the last `write` that failed left out."""
        self._path, self._daily = path, daily
        self._descriptor = -1
        self._torn = False
        """Whether the last thing written was half a line."""

    def write(self, lines: bytes) -> None:
        """Append lines, all of them next to each other. Raises OSError with `unwritten` set."""
        data = b"\n" + lines if self._torn else lines
        written = 0
        self.unwritten = lines.count(b"\n")
        try:
            self._lock()
            try:
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError:
            if written:
                self._torn = data[written - 1] != ord("\n")
                self.unwritten = data.count(b"\n", written)
            raise
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        """Hold the lock on the file that the name leads to, with room for more."""
        while True:
            if self._descriptor < 0:
                self._descriptor = self._open()
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            here = os.fstat(self._descriptor)
            try:
                there = self._path.stat()
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                if here.st_size < self.max_bytes and not (self._daily and here.st_size and _is_old(here.st_mtime)):
                    return
                self._put_aside()
            self.close()  # and with it the lock

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            return os.open(self._path, flags, 0o600)

    def _put_aside(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self.backups + 1))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.rename(older)


def _is_old(at_s: float) -> bool:
    return at_s // DAY_S < time.time() // DAY_S
