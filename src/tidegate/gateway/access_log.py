"""The access log: a JSON line for each request, never its content, never a key.

Lines are made a few at a time, soon after their requests ended, by whoever counts them (`Accounting`): that is where
what they tell is still at hand. They are written as `line_file` says.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tidegate.gateway.line_file import LineFile, SharedFile
from tidegate.gateway.record import Caller, Ended

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
            queue_ms = tenths_of_ms(queue_s) if queue_s else "0.0"
            first_ms = "null" if first_s is None else tenths_of_ms(first_s)
            lines.append(
                f'{stamp},{who},"queue_ms":{queue_ms},"first_ms":{first_ms},"total_ms":{tenths_of_ms(record.total_s)},'
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


def tenths_of_ms(seconds: float) -> str:
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


class AccessLog(LineFile):
    """The file of these lines."""

    def __init__(self, file: Path) -> None:
        super().__init__(SharedFile(file), "the access log")
        self.dropped["rate"] = 0
        self._maker = LineMaker()

    def add(self, records: list[Ended | Refused]) -> None:
        """Have a line written for each of some requests; from one thread only."""
        if self.has_room(len(records)):
            self.queue.append(self._maker.lines(records))
