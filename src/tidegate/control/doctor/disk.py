"""The disk of the data folder: room, and how fast it reads and writes."""

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.control.doctor.findings import Finding, note, ok, problem, size

TRIAL_BYTES = 64 << 20
CHUNK_BYTES = 4 << 20
LEAST_FREE_BYTES = 256 << 20
"""Logs, the database and a conversion's scratch need that much even when the model is there."""
MODEL_BYTES = 1 << 30
"""Room for the reference model as it travels and as it is kept."""
SLOW_BYTES_S = 50e6
"""A model of 400 MB takes 8 s to read at this speed, which is what one notices at every start."""


@dataclass(frozen=True)
class DiskFacts:
    """What is known of the disk that holds `folder`."""

    folder: Path
    free_bytes: int
    total_bytes: int
    write_bytes_s: float | None = None
    """None where nothing could be written; `fault` says why."""
    read_bytes_s: float | None = None
    fault: str = ""


def gather(folder: Path, *, trial_bytes: int = TRIAL_BYTES) -> DiskFacts:
    """Write and read a file of `trial_bytes` (less on a nearly full disk), where `folder` is or would be."""
    place = folder
    while not place.is_dir() and place != place.parent:
        place = place.parent
    usage = shutil.disk_usage(place)
    bytes_tried = min(trial_bytes, usage.free // 10)
    try:
        written, read = _try(place / f".tidegate-doctor-{os.getpid()}", bytes_tried)
    except OSError as error:
        return DiskFacts(folder, usage.free, usage.total, fault=error.strerror or str(error))
    return DiskFacts(folder, usage.free, usage.total, written, read)


def check(facts: DiskFacts, *, has_model: bool) -> Iterable[Finding]:
    """Findings; without a model there has to be room for one."""
    room = f"{size(facts.free_bytes)} of {size(facts.total_bytes)} are free at {facts.folder}"
    needed = LEAST_FREE_BYTES if has_model else MODEL_BYTES
    if facts.free_bytes < LEAST_FREE_BYTES:
        yield problem("disk space", room, "free some space, or set TIDEGATE_HOME to a folder on a larger disk")
    elif facts.free_bytes < needed:
        yield note(
            "disk space", f"{room}; a model takes up to {size(needed)}", "free some space, or use a smaller model"
        )
    else:
        yield ok("disk space", room)
    if facts.write_bytes_s is None or facts.read_bytes_s is None:
        yield problem(
            "disk speed",
            f"nothing can be written at {facts.folder}: {facts.fault}",
            "set TIDEGATE_HOME to a folder that belongs to you",
        )
        return
    text = f"writes {facts.write_bytes_s / 1e6:,.0f} MB/s, reads {facts.read_bytes_s / 1e6:,.0f} MB/s"
    if min(facts.write_bytes_s, facts.read_bytes_s) < SLOW_BYTES_S:
        yield note("disk speed", f"{text}, which is slow", "keep the data folder on a local disk (TIDEGATE_HOME)")
    else:
        yield ok("disk speed", text)


def _try(file: Path, count: int) -> tuple[float, float]:
    """Bytes a second written (until they are on the disk) and read (not from memory, where the system allows that)."""
    chunk = os.urandom(min(CHUNK_BYTES, max(count, 4096)))
    chunks = max(1, count // len(chunk))
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        begun = time.perf_counter()
        for _ in range(chunks):
            os.write(descriptor, chunk)
        os.fsync(descriptor)
        written = time.perf_counter() - begun
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(descriptor, 0, os.SEEK_SET)
        begun = time.perf_counter()
        while os.read(descriptor, len(chunk)):
            pass
        read = time.perf_counter() - begun
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)
    total = chunks * len(chunk)
    return total / max(written, 1e-9), total / max(read, 1e-9)
