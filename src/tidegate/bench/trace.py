"""A recorded trace: when requests came, of which class, and how long they and their answers were. Pure.

JSON lines, of two kinds: `{"at_s": 0.25, "class": "…", "prompt_tokens": 23, "output_tokens": 64, "stream": true}`, all but
`at_s` optional; or lines of Tidegate's access log (docs/access-log.md).
"""

import datetime as dt
from collections.abc import Iterable

import msgspec

from tidegate.errors import SettingError


class Line(msgspec.Struct):
    """Both kinds; what else is in a line is not read."""

    at_s: float | None = None
    klass: str | None = msgspec.field(default=None, name="class")
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    stream: bool | None = None
    time: dt.datetime | None = None
    total_ms: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None


class Arrival(msgspec.Struct, frozen=True, order=True):
    """One request. None: as the workload has it."""

    at_s: float
    klass: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    stream: bool | None = None


def read(name: str, lines: Iterable[bytes], speed: float) -> list[Arrival]:
    """In order, the first at 0; at twice the speed all come in half the time. Raises SettingError naming the line."""
    decode = msgspec.json.Decoder(Line).decode
    found: list[tuple[float, Line]] = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SettingError("--trace", f"line {number} of {name} cannot be read: {error}") from None
        if line.at_s is not None:
            at = line.at_s
        elif line.time is not None:
            at = line.time.timestamp() - (line.total_ms or 0.0) / 1000
        else:
            raise SettingError("--trace", f"line {number} of {name} has neither at_s nor time")
        found.append((at, line))
    if not found:
        raise SettingError("--trace", f"{name} has no line")
    first = min(at for at, _ in found)
    arrivals = [
        Arrival(
            (at - first) / speed,
            line.klass or "",
            line.prompt_tokens or line.tokens_in or None,
            line.output_tokens or line.tokens_out or None,
            line.stream,
        )
        for at, line in found
    ]
    return sorted(arrivals, key=lambda arrival: arrival.at_s)
