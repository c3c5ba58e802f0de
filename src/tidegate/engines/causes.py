"""Why an engine ended: its last lines, and what they most likely mean."""

import re
import signal
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 16 * 1024

CAUSES: Final = (
    (
        r"corrupted or incomplete|invalid magic|failed to read (magic|key-value|tensor)|not within the file bounds",
        "the model file is damaged: pull it again (`tidegate models pull`)",
    ),
    (r"unknown model architecture", "this llama.cpp does not know the model's architecture: upgrade xllamacpp"),
    (
        r"failed to allocate|unable to allocate|bad_alloc|failed to create context|failed to initialize the context|[Oo]ut of memory",
        "there was not enough memory: set fewer slots or a smaller context_tokens in pool.options",
    ),
    (r"No such file or directory", "a file it needs is not there"),
    (r"[Aa]ddress already in use|couldn't bind", "the port it wanted is taken"),
    (r"ModuleNotFoundError|ImportError", "the engine's package is not installed whole: run `make setup` again"),
    (r"Permission denied|cannot be read", "a file it needs may not be read by this user"),
)

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
    text = "\n".join(lines)
    for pattern, cause in CAUSES:
        if re.search(pattern, text):
            return cause
    if status is not None and status < 0:
        return SIGNAL_CAUSES.get(signal.Signals(-status), f"it was ended by {signal.Signals(-status).name}")
    return ""


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
