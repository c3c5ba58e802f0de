"""What a check found."""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How grave a finding is. Only problems make `tidegate doctor` end with 1."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    level: Level
    subject: str
    text: str
    advice: str = ""
    """What to do; empty for what is well."""


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def note(subject: str, text: str, advice: str = "") -> Finding:
    return Finding(Level.NOTE, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> Finding:
    return Finding(Level.PROBLEM, subject, text, advice)


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count / 1024:,.0f} KiB"
