"""The access log: a JSON line for each request, never its content, never a key.

A request costs an append. A thread makes the lines, a few at a time, so that it never holds up the event loop for long
(one line costs 2 µs, and Python runs one thread at a time), and writes them. What waits is bounded; lines that find it
full, or a full disk, are dropped and counted.

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

import msgspec

from tidegate import logs
from tidegate.gateway.record import Caller, Ended
from tidegate.types import AccessLogOptions

QUEUE_RECORDS: Final = 10_000
"""Requests whose lines wait; some 7 MB."""
FLUSH_S: Final = 0.25
LINES_AT_A_TIME: Final = 100
"""Lines made without a pause: 0.2 ms in which nothing else runs."""
PAUSE_S: Final = 0.001
CLOSE_S: Final = 5.0
MAX_TEXT_CHARS: Final = 200
"""Of a path, a user, a code: what comes from outside does not make a line long."""


class Refused(msgspec.Struct, frozen=True):
    """A request that was answered with an error before any replica was asked."""

    at_s: float
    id: str
    caller: Caller
    path: str
    status: int
    code: str
    client: str = ""


class Line(msgspec.Struct, rename={"klass": "class", "prompt_tokens": "tokens_in", "completion_tokens": "tokens_out"}):
    """What a line says; docs/access-log.md explains it. Times in milliseconds."""

    time: str
    id: str
    tenant: str
    user: str
    key: str
    klass: str
    model: str
    replica: str
    path: str
    status: int
    outcome: str
    stream: bool
    queue_ms: float
    first_ms: float | None
    total_ms: float
    prompt_tokens: int | None
    completion_tokens: int | None
    code: str
    moves: int
    client: str


class AccessLog:
    """Puts what is appended to `queue` into a file. `apply` starts it; `close` writes what waits."""

    def __init__(self, file: Path) -> None:
        self.queue: deque[Ended | Refused] = deque()
        self.dropped = {"full": 0, "disk": 0, "rate": 0}
        self._file = SharedFile(file)
        self._encoder = msgspec.json.Encoder()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._second = 0
        self._second_text = ""

    def apply(self, options: AccessLogOptions) -> None:
        """Begin to write, if that is asked for; where the file is put aside follows the settings at once."""
        self._file.max_bytes, self._file.backups = options.max_bytes, options.backups
        if options.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()

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
        left = len(self.queue)
        if not left:
            return
        pieces: list[bytes] = []
        while left > 0:
            pieces.append(self._encode([self._line(self.queue.popleft()) for _ in range(min(left, LINES_AT_A_TIME))]))
            left -= LINES_AT_A_TIME
            if left > 0 and not self._stopping.is_set():
                time.sleep(PAUSE_S)
        try:
            self._file.write(b"".join(pieces))
            self._trouble = ""
        except OSError as error:
            self.dropped["disk"] += self._file.unwritten
            if self._trouble != str(error):
                self._trouble = str(error)
                logs.get().error("the access log cannot be written; its lines are dropped", cause=str(error))

    def _encode(self, lines: list[Line]) -> bytes:
        try:
            return self._encoder.encode_lines(lines)
        except UnicodeEncodeError:  # half a surrogate pair, which JSON from a client may hold
            for line in lines:
                for name in line.__struct_fields__:
                    if isinstance(value := getattr(line, name), str):
                        setattr(line, name, value.encode("utf-8", "replace").decode())
            return self._encoder.encode_lines(lines)

    def _line(self, record: Ended | Refused) -> Line:
        if isinstance(record, Refused):
            return self._refused_line(record)
        caller, first_s = record.caller, record.first_s
        return Line(
            self._time(record.at_s),
            record.id,
            caller.tenant,
            caller.user[:MAX_TEXT_CHARS],
            caller.key,
            record.klass,
            record.model,
            record.replica,
            record.path,
            record.status,
            record.outcome,
            record.stream,
            int(record.queue_s * 1e4 + 0.5) / 10,
            None if first_s is None else int(first_s * 1e4 + 0.5) / 10,
            int(record.total_s * 1e4 + 0.5) / 10,
            record.prompt_tokens,
            record.completion_tokens,
            record.code[:MAX_TEXT_CHARS],
            record.moves,
            record.client,
        )

    def _refused_line(self, record: Refused) -> Line:
        caller = record.caller
        return Line(
            time=self._time(record.at_s),
            id=record.id,
            tenant=caller.tenant,
            user=caller.user[:MAX_TEXT_CHARS],
            key=caller.key,
            klass="",
            model="",
            replica="",
            path=record.path[:MAX_TEXT_CHARS],
            status=record.status,
            outcome="refused",
            stream=False,
            queue_ms=0.0,
            first_ms=None,
            total_ms=0.0,
            prompt_tokens=None,
            completion_tokens=None,
            code=record.code,
            moves=0,
            client=record.client[:MAX_TEXT_CHARS],
        )

    def _time(self, at_s: float) -> str:
        second = int(at_s)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second))
        return self._second_text + MILLISECONDS[int((at_s - second) * 1000)]


MILLISECONDS: Final = tuple(f"{number:03d}Z" for number in range(1000))


class SharedFile:
    """A file of lines that several processes append to, put aside at `max_bytes` as FILE.1, FILE.2 ..."""

    def __init__(self, path: Path) -> None:
        self.max_bytes = 100 * 1024 * 1024
        self.backups = 5
        self.unwritten = 0
        """How many lines the last `write` that failed left out."""
        self._path = path
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
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            here = os.fstat(self._descriptor)
            try:
                there = self._path.stat()
            except FileNotFoundError:
                there = None
            if there is not None and (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
                if here.st_size < self.max_bytes:
                    return
                self._put_aside()
            self.close()  # and with it the lock

    def _put_aside(self) -> None:
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self.backups + 1))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.rename(older)
