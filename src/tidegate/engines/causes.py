"""Why an engine ended: its last lines, and what they most likely mean."""

import signal
from pathlib import Path
from typing import Final

from tidegate.engines.known_faults import diagnose

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 16 * 1024

SIGNAL_CAUSES: Final = {
    signal.SIGKILL: "it was killed, most likely by the kernel for want of memory (see `dmesg`)",
    signal.SIGILL: "this CPU lacks instructions that the engine was built for (AVX2 and FMA)",
    signal.SIGSEGV: "it crashed: a fault in the engine",
    signal.SIGABRT: "it gave up: a fault in the engine, or a model it cannot run",
    signal.SIGBUS: "its model file was cut short while in use, or the disk failed",
    signal.SIGTERM: "somebody ended it while it started",
}


def likely_cause(lines: tuple[str, ...], status: int | None) -> str:
    """The likeliest reason in words, empty when there is none. `status` is negative for a signal."""
    found = diagnose("\n".join(lines), "llamacpp")
    if found is not None:
        return found.sentence
    return ended_by(status)


def ended_by(status: int | None) -> str:
    """What a signal that ended it most likely means; empty where it was none."""
    if status is None or status >= 0:
        return ""
    number = signal.Signals(-status)
    return SIGNAL_CAUSES.get(number, f"it was ended by {number.name}")


def last_words(log: Path, since: int, status: int | None) -> tuple[str, tuple[str, ...]]:
    """Why it most likely ended, and its last lines."""
    lines = tail(log, since)
    return likely_cause(lines, status), lines


def tail(log: Path, since: int = 0) -> tuple[str, ...]:
    """The last lines of a log file, of what was written past the offset `since`; none if it cannot be read."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since if since <= size else 0, size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line for line in lines if line.strip())[-TAIL_LINES:]


def size(log: Path) -> int:
    """How long a log file is now."""
    try:
        return log.stat().st_size
    except OSError:
        return 0
