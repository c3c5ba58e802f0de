"""The access log: a JSON line for each request, never its content, never a key.

Lines are made a few at a time, soon after their requests ended, by whoever counts them (`Accounting`): that is where
what they tell is still at hand. A thread writes them, so that no disk holds up the event loop. What waits is bounded;
lines that find it full, or a full disk, are dropped and counted.

Several processes write one file. Each batch is one write under a lock on the file (flock), which also makes sure that
one process at a time puts the file aside: the others notice that the name leads elsewhere, and follow it. So do they
when somebody else's logrotate moved it.
"""

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tidegate import logs
from tidegate.gateway.record import Caller, Ended
from tidegate.types import AccessLogOptions

QUEUE_BATCHES: Final = 1000
"""Batches that wait; some 6 MB."""
FLUSH_S: Final = 0.25
CLOSE_S: Final = 5.0
MAX_TEXT_CHARS: Final = 200
"""Of a path, a user, a code: what comes from outside does not make a line long."""
LABELS_MAX: Final = 4096
"""What lines say again and again is made once, for so many that differ in it."""
THOUSANDTHS: Final = tuple(f".{number:03d}" for number in range(1000))
TENTHS: Final = tuple(f"{number // 10}.{number % 10}" for number in range(1000))


class Refused(msgspec.Struct, frozen=True):
    """A request that was answered with an error before any replica was asked."""

    at_s: float
    id: str
    caller: Caller
    path: str
    status: int
    code: str
    client: str = ""


class _Who(msgspec.Struct, rename={"klass": "class"}):
    """The part of a line that comes before its times; docs/access-log.md explains both."""

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


class _How(msgspec.Struct):
    """The part that comes after its tokens."""

    code: str
    moves: int
    client: str


class LineMaker:
    """Makes lines. What a line says beside times and tokens is the same for many requests, and kept."""

    def __init__(self) -> None:
        self._labels: dict[object, tuple[str, str]] = {}
        self._second = 0
        self._second_text = ""

    def lines(self, records: Iterable[Ended | Refused]) -> bytes:
        """A line for each. Times in milliseconds. Ids are written as they are: no other letters get this far (`app`)."""
        lines: list[str] = []
        for record in records:
            at_s = record.at_s
            second = int(at_s)
            if second != self._second:
                self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            stamp = f'{{"time":"{self._second_text}{THOUSANDTHS[int((at_s - second) * 1000)]}Z","id":"{record.id}"'
            if isinstance(record, Refused):
                who, how = self._refused(record)
                lines.append(
                    f'{stamp},{who},"queue_ms":0.0,"first_ms":null,"total_ms":0.0,"tokens_in":null,"tokens_out":null,{how}'
                )
                continue
            who, how = self._ended(record)
            queue_s, first_s, read, said = (
                record.queue_s,
                record.first_s,
                record.prompt_tokens,
                record.completion_tokens,
            )
            queue_ms = _ms(queue_s) if queue_s else "0.0"
            first_ms = "null" if first_s is None else _ms(first_s)
            lines.append(
                f'{stamp},{who},"queue_ms":{queue_ms},"first_ms":{first_ms},"total_ms":{_ms(record.total_s)},'
                f'"tokens_in":{"null" if read is None else read},"tokens_out":{"null" if said is None else said},{how}'
            )
        return "".join(lines).encode()

    def _ended(self, record: Ended) -> tuple[str, str]:
        caller = record.caller
        key = (
            caller,
            record.klass,
            record.model,
            record.replica,
            record.path,
            record.status,
            record.outcome,
            record.stream,
            record.code,
            record.moves,
            record.client,
        )
        found = self._labels.get(key)
        if found is None:
            if len(self._labels) >= LABELS_MAX:
                self._labels.clear()
            who = _Who(
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
            )
            how = _How(record.code[:MAX_TEXT_CHARS], record.moves, record.client[:MAX_TEXT_CHARS])
            found = self._labels[key] = (_inside(who), f"{_inside(how)}}}\n")
        return found

    @staticmethod
    def _refused(record: Refused) -> tuple[str, str]:
        caller = record.caller
        who = _Who(
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
        )
        how = _How(code=record.code[:MAX_TEXT_CHARS], moves=0, client=record.client[:MAX_TEXT_CHARS])
        return _inside(who), f"{_inside(how)}}}\n"


def _ms(seconds: float) -> str:
    """Milliseconds and a tenth; formatting a float takes three times as long."""
    tenths = int(seconds * 1e4 + 0.5)
    return TENTHS[tenths] if tenths < 1000 else f"{tenths // 10}.{tenths % 10}"


def _inside(part: _Who | _How) -> str:
    """The fields of a part of a line."""
    try:
        text = msgspec.json.encode(part)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON from a client may hold
        for name in part.__struct_fields__:
            if isinstance(value := getattr(part, name), str):
                setattr(part, name, value.encode("utf-8", "replace").decode())
        text = msgspec.json.encode(part)
    return text[1:-1].decode()


class AccessLog:
    """Puts lines into a file. `apply` starts it; `close` writes what waits."""

    def __init__(self, file: Path) -> None:
        self.dropped = {"full": 0, "disk": 0, "rate": 0}
        self.queue: deque[bytes] = deque()
        """Batches of lines that wait for the disk."""
        self._maker = LineMaker()
        self._file = SharedFile(file)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""

    def apply(self, options: AccessLogOptions) -> None:
        """Begin to write, if that is asked for; where the file is put aside follows the settings at once."""
        self._file.max_bytes, self._file.backups = options.max_bytes, options.backups
        if options.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()

    def add(self, records: list[Ended | Refused]) -> None:
        """Have a line written for each of some requests; from one thread only."""
        if len(self.queue) < QUEUE_BATCHES:
            self.queue.append(self._maker.lines(records))
        else:
            self.dropped["full"] += len(records)

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
                logs.get().error("the access log cannot be written; its lines are dropped", cause=str(error))


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
