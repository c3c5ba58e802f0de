"""Why vLLM ended, from its log: the root cause stands far above the last lines, in another process's traceback. Pure but for the file."""

import re
from pathlib import Path
from typing import Final

from tidegate.engines.causes import TAIL_LINES, ended_by
from tidegate.engines.known_faults import HARMLESS, diagnose

READ_BYTES: Final = 512 * 1024
"""Of the log's end; two tracebacks of several processes, and all that was said before, are shorter."""
PREFIX: Final = re.compile(
    r"^(\(\w+[^)]*\bpid=\d+\)\s*)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
)
RAISED: Final = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Refused)(?::|$)")
CONSEQUENCE: Final = re.compile(r"Engine core initialization failed|Failed core proc|WorkerProc initialization failed")
"""Errors of one process about another's."""
EMPTY_NOISE: Final = re.compile(r"nanobind|leaked function|resource_tracker|^\s*$|^\s*\^+\s*$|- \.\.\. skipped")


def last_words(log: Path, since: int, status: int | None) -> tuple[str, tuple[str, ...]]:
    """Why it most likely ended, and the lines that say so best."""
    text = _read(log, since)
    lines = [PREFIX.sub("", line, count=1) for line in text.splitlines()]
    grave = [PREFIX.sub("", line, count=1) for line in HARMLESS.sub("", text).splitlines()]
    return likely_cause("\n".join(grave), status), telling(lines)


def likely_cause(text: str, status: int | None) -> str:
    """The likeliest reason in words; the exception itself where it is none that is known, empty when there is nothing."""
    found = diagnose(text, "vllm")
    if found is not None:
        return found.sentence
    signalled = ended_by(status)
    if signalled:
        return signalled
    raised = [line for line in text.splitlines() if RAISED.match(line) and not CONSEQUENCE.search(line)]
    return raised[0][:300] if raised else ""


def telling(lines: list[str]) -> tuple[str, ...]:
    """At most twenty: every exception that was raised, and then the end."""
    said = [line for line in lines if not EMPTY_NOISE.search(line)]
    raised = dict.fromkeys(line for line in said if RAISED.match(line))
    first = [line for line in raised if not CONSEQUENCE.search(line)][:5]
    rest = [line for line in said[-TAIL_LINES:] if line not in first]
    return tuple([*first, *rest[len(first) - TAIL_LINES :]] if first else rest)


def _read(log: Path, since: int) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since if since <= size else 0, size - READ_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
