"""What the logs of engines say they ended with."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.control.doctor.findings import Finding, note
from tidegate.engines.known_faults import Diagnosis, EngineName, diagnose

READ_BYTES: Final = 256 << 10
RECENT_S: Final = 24 * 3600.0
"""Older ends have been dealt with, or are not missed."""
VLLM_MARKS: Final = ("vllm", "EngineCore", "APIServer", "torch")
OTHER_LOGS: Final = ("tidegate", "access", "gateway", "chat.", "install-")
"""How the names of logs begin that are no engine's."""
LONG_LINE: Final = 160


@dataclass(frozen=True)
class LogFacts:
    """What was recognised in one log."""

    name: str
    found: Diagnosis


def engine_of(text: str) -> EngineName:
    """Whose log it is."""
    return "vllm" if any(mark in text for mark in VLLM_MARKS) else "llamacpp"


def gather(logs: Path, now_s: float | None = None) -> tuple[LogFacts, ...]:
    """Read the ends of the logs that children wrote lately."""
    now = time.time() if now_s is None else now_s
    found = []
    for file in sorted(logs.glob("*.log")) if logs.is_dir() else ():
        if file.name.startswith(OTHER_LOGS):
            continue
        try:
            if now - file.stat().st_mtime > RECENT_S:
                continue
            with file.open("rb") as opened:
                opened.seek(max(0, opened.seek(0, 2) - READ_BYTES))
                text = opened.read().decode("utf-8", "replace")
        except OSError:
            continue  # what cannot be read, `data folder` tells
        diagnosis = diagnose(text, engine_of(text))
        if diagnosis is not None:
            found.append(LogFacts(file.name, diagnosis))
    return tuple(found)


def check(facts: Iterable[LogFacts]) -> Iterator[Finding]:
    """One note for each: it may be over, and what is still the matter other checks call a problem."""
    for one in facts:
        evidence = one.found.evidence[:LONG_LINE]
        yield note("engine log", f"{one.name}: {one.found.cause} ({one.found.name}: {evidence!r})", one.found.advice)
