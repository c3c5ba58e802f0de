"""A recorded trace: when requests came, of which class, and how long they and their answers were.

JSON lines, of two kinds: `{"at_s": 0.25, "class": "…", "prompt_tokens": 23, "output_tokens": 64, "stream": true}`, all but
`at_s` optional, as a gateway writes them (`log.trace`); or lines of its access log (docs/access-log.md).
"""

import datetime as dt
from collections.abc import Iterable
from itertools import starmap
from pathlib import Path
from typing import Annotated, Final

import msgspec

from tidegate.bench.lengths import MOST_TOKENS
from tidegate.errors import SettingError

TRACE: Final = "trace.jsonl"
"""What a gateway calls it; those put aside have a number behind it."""
PATHS: Final = frozenset((None, "/v1/chat/completions", "/v1/completions"))
"""Requests to others, as an access log has them, ask for no text."""
BACK_S: Final = 5.0
"""Lines are written in the order of the ends, give or take what lies in a queue: further back, a clock was set."""
PAUSE_S: Final = 3600.0
"""Longer without any end is told: it may be a clock that was set, and is replayed as it stands."""
MOST_TOLD: Final = 5
LEFT_OUT_SHARE: Final = 0.01
"""Of lines that are torn, and left out; with more it is another file."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Moment = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]


class Line(msgspec.Struct):
    """Both kinds; what else is in a line is not read."""

    at_s: Moment | None = None
    klass: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}\Z")] | None = msgspec.field(
        default=None, name="class"
    )
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    stream: bool | None = None
    time: dt.datetime | None = None
    total_ms: Annotated[float, msgspec.Meta(ge=0, le=1e11)] | None = None
    tokens_in: Tokens | None = None
    tokens_out: Tokens | None = None
    outcome: str | None = None
    path: str | None = None


class Arrival(msgspec.Struct, frozen=True, order=True):
    """One request. None: as the workload has it."""

    at_s: float
    klass: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    stream: bool | None = None


class Trace(msgspec.Struct, frozen=True):
    """What was read, and what is odd about it."""

    arrivals: list[Arrival]
    """In order, the first at 0."""
    notes: list[str]


def files(given: Path) -> list[Path]:
    """The file itself; of a folder its traces, the oldest first. Raises SettingError."""
    if not given.is_dir():
        return [given]
    aside = [
        (int(number), file)
        for file in given.glob(f"{TRACE}.*")
        if (number := file.name.removeprefix(f"{TRACE}.")).isdecimal()
    ]
    newest = given / TRACE
    found = [file for _, file in sorted(aside, reverse=True)] + ([newest] if newest.is_file() else [])
    if not found:
        raise SettingError("--trace", f"the folder {given} has no {TRACE}", hint="log.trace = true has one recorded")
    return found


def load(given: Path, speed: float) -> Trace:
    """Read a file, or a folder's. Raises SettingError."""
    lines: list[tuple[str, bytes]] = []
    for file in files(given):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise SettingError("--trace", f"{file} cannot be read: {error.strerror}") from None
        lines += [(f"line {number} of {file.name}", text) for number, text in enumerate(content.split(b"\n"), 1)]
    return read(given.name, lines, speed)


def read(name: str, lines: Iterable[tuple[str, bytes]], speed: float) -> Trace:
    """Lines, each with its place in words; at twice the speed all come in half the time. Raises SettingError."""
    reader = _Reader()
    for place, text in lines:
        if text.strip():
            reader.take(place, text)
    if reader.torn and len(reader.torn) > max(1, LEFT_OUT_SHARE * reader.count):
        place, why = reader.torn[0]
        raise SettingError("--trace", f"{place} is no JSON line: {why}", hint=f"nor are {len(reader.torn) - 1} others")
    if not reader.found:
        raise SettingError("--trace", f"{name} has no line that asks for text")
    first = min(at for at, _ in reader.found)
    arrivals = [
        Arrival(
            (at - first) / speed,
            line.klass or "",
            line.prompt_tokens or line.tokens_in or None,
            line.output_tokens or line.tokens_out or None,
            line.stream,
        )
        for at, line in reader.found
    ]
    return Trace(sorted(arrivals, key=lambda arrival: arrival.at_s), reader.notes())


class _Reader:
    def __init__(self) -> None:
        self.found: list[tuple[float, Line]] = []
        self.torn: list[tuple[str, str]] = []
        self.count = self._others = 0
        self._clocks: list[str] = []
        self._end: float | None = None
        self._decode = msgspec.json.Decoder(Line).decode

    def take(self, place: str, text: bytes) -> None:
        """One line that is not empty."""
        self.count += 1
        try:
            line = self._decode(text)
        except msgspec.ValidationError as error:
            raise SettingError("--trace", f"{place}: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.torn.append((place, str(error)))
            return
        total_s = (line.total_ms or 0.0) / 1000
        if line.at_s is not None:
            at = line.at_s
        elif line.time is not None:
            at = line.time.timestamp() - total_s
        else:
            raise SettingError("--trace", f"{place} has neither at_s nor time")
        if line.total_ms is not None:
            self._look_at_clock(place, at + total_s)
        if line.path not in PATHS or line.outcome == "refused":
            self._others += 1
        else:
            self.found.append((at, line))

    def _look_at_clock(self, place: str, end: float) -> None:
        before = self._end
        if before is not None and end < before - BACK_S:
            self._clocks.append(
                f"{place}: time goes back by {before - end:,.0f} s: a clock was set, or files are mixed."
            )
            self._end = end
        elif before is not None and end > before + PAUSE_S:
            self._clocks.append(f"{place}: nothing came for {end - before:,.0f} s: a pause, or a clock that was set.")
        self._end = end if before is None or end > before else self._end

    def notes(self) -> list[str]:
        told = list(starmap("Trace: {} is torn, and left out: {}".format, self.torn))
        told += [f"Trace: {words}" for words in self._clocks]
        more = len(told) - MOST_TOLD
        told = [*told[:MOST_TOLD], *([f"Trace: {more:,} more such lines."] if more > 0 else [])]
        if self._others:
            told.append(
                f"Trace: {self._others:,} lines of requests that were refused, or asked for no text, are left out."
            )
        return told
