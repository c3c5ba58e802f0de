"""Samples on disk: a file a day (UTC), a line a sample, the oldest files removed. Any process may read beside the writer.

A line that a kill or a full disk cut short is passed over; the next one begins on a line of its own. Files are removed
by how many there are and how large, never by today's date, so that a clock that is wrong for a while costs nothing.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tidegate.control.report.samples import Sample

DAYS: Final = 36
"""35 whole ones and today."""
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of all files together: a minute of four classes, eight replicas and ten tenants takes 3.4 kB, 35 days of it 174 MB."""
PATTERN: Final = "????-??-??.jsonl"


class Read(NamedTuple):
    """What was found, oldest first."""

    samples: list[Sample]
    broken: int
    """Lines that could not be read."""


class Ring:
    """One folder of samples. One process writes; blocks."""

    def __init__(self, folder: Path, *, days: int = DAYS, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._days, self._most_bytes = folder, days, most_bytes

    def write(self, samples: Sequence[Sample]) -> None:
        """Add samples: all of a day, or none of it. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        days: dict[str, list[Sample]] = {}
        for one in samples:
            days.setdefault(_day(one.at_s), []).append(one)
        for day, those in days.items():
            self._append(self._folder / f"{day}.jsonl", those)
        self._trim(set(days))

    def read(self, since_s: float, until_s: float) -> Read:
        """Samples that begin within [since_s, until_s). Raises OSError for what is there and cannot be read."""
        found: list[Sample] = []
        broken = 0
        first, last = _day(since_s), _day(until_s)
        for path in sorted(self._folder.glob(PATTERN)):
            if first <= path.stem <= last:
                with path.open("rb") as file:
                    for line in file:
                        if not line.strip():
                            continue
                        try:
                            sample = msgspec.json.decode(line, type=Sample)
                        except msgspec.DecodeError:
                            broken += 1
                            continue
                        if since_s <= sample.at_s < until_s:
                            found.append(sample)
        return Read(sorted(found, key=lambda one: one.at_s), broken)

    def _append(self, path: Path, samples: Iterable[Sample]) -> None:
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in samples)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            try:
                left = memoryview(lines)
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _trim(self, kept: set[str]) -> None:
        sizes = {path: path.stat().st_size for path in sorted(self._folder.glob(PATTERN))}
        for path in tuple(sizes):
            if len(sizes) <= self._days and sum(sizes.values()) <= self._most_bytes:
                return
            if path.stem not in kept:
                path.unlink(missing_ok=True)
                del sizes[path]


def _day(at_s: float) -> str:
    """UTC; a time that no calendar has is the first or the last day of it."""
    at_s = min(max(at_s, 0.0), timedelta(days=2_900_000).total_seconds())
    return datetime.fromtimestamp(at_s, UTC).date().isoformat()
