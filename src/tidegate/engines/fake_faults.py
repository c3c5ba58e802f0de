"""The faults an engine can commit, by name, and how they are asked for.

A fault is written `KIND[=NUMBER][@TOKENS][xCOUNT]`: `half_event@5x1` sends five events and half of the sixth, once;
`status=503` answers every request with 503. It is given on the command line, by `POST /fake/faults`, or inside the
last user message as `[[fault:half_event@5]]`, for that request alone (a gateway passes text through, not headers).
"""

import re
from enum import StrEnum
from typing import Final

import msgspec


class FaultKind(StrEnum):
    """What goes wrong."""

    # instead of an answer
    STATUS = "status"
    """An error of the HTTP status NUMBER (500)."""
    BAD_REQUEST = "bad_request"
    """400, as for a wrong field."""
    CONTEXT_LENGTH = "context_length"
    """400 in the dialect's words: the prompt is longer than the context."""
    NO_ANSWER = "no_answer"
    """The request is taken, and nothing follows."""
    CLOSE_BEFORE = "close_before"
    """The connection is closed without a byte."""
    CLOSE_REUSED = "close_reused"
    """The same, only for a request that is not its connection's first."""
    GARBAGE_HEAD = "garbage_head"
    """Bytes that are no HTTP."""
    WRONG_LENGTH = "wrong_length"
    """A JSON answer whose content-length is NUMBER (100) bytes more than its body; then the connection is closed."""
    SLOW = "slow"
    """The first token, or the JSON answer, takes NUMBER ms (60,000) longer; meanwhile no counter moves."""
    # within a stream, after TOKENS events
    HALF_EVENT = "half_event"
    """Half an event, then silence."""
    STALL = "stall"
    """Silence."""
    COMMENTS = "comments"
    """Only comments (`: ping`), every 100 ms."""
    CLOSE = "close"
    """The connection is closed in good order, the stream's end missing."""
    HALF_EVENT_CLOSE = "half_event_close"
    """Half an event, then the connection is closed."""
    RESET = "reset"
    """The connection is cut (RST)."""
    BAD_CHUNK = "bad_chunk"
    """Bytes that are no chunk."""
    ERROR_EVENT = "error_event"
    """An event that is an error, then the end."""
    NO_DONE = "no_done"
    """The end comes early, in good order, without a finish_reason and without [DONE]."""
    HUGE_EVENT = "huge_event"
    """One event of NUMBER (1,000,000) bytes; the stream goes on after it."""
    DIE = "die"
    """The engine itself ends, with every connection it has."""
    # throughout a stream
    SPLIT = "split"
    """Every byte string is sent in writes of NUMBER (1) bytes."""
    # of the engine
    HANG = "hang"
    """/health answers; no request makes progress any more."""
    METRICS_GARBAGE = "metrics_garbage"
    """/metrics cannot be read."""
    METRICS_STATUS = "metrics_status"
    """/metrics answers with NUMBER (500)."""
    METRICS_HANG = "metrics_hang"
    """/metrics does not answer."""
    HEALTH_STATUS = "health_status"
    """/health answers with NUMBER (500)."""
    COUNTERS_RESTART = "counters_restart"
    """All counters start again from zero, once, when it is set."""


OF_THE_ENGINE: Final = frozenset(
    (
        FaultKind.HANG,
        FaultKind.METRICS_GARBAGE,
        FaultKind.METRICS_STATUS,
        FaultKind.METRICS_HANG,
        FaultKind.HEALTH_STATUS,
        FaultKind.COUNTERS_RESTART,
    )
)
"""Kinds that no single request commits."""

BEFORE_AN_ANSWER: Final = frozenset(
    (
        FaultKind.STATUS,
        FaultKind.BAD_REQUEST,
        FaultKind.CONTEXT_LENGTH,
        FaultKind.NO_ANSWER,
        FaultKind.CLOSE_BEFORE,
        FaultKind.CLOSE_REUSED,
        FaultKind.GARBAGE_HEAD,
    )
)

WITHIN_A_STREAM: Final = frozenset(
    (
        FaultKind.HALF_EVENT,
        FaultKind.STALL,
        FaultKind.COMMENTS,
        FaultKind.CLOSE,
        FaultKind.HALF_EVENT_CLOSE,
        FaultKind.RESET,
        FaultKind.BAD_CHUNK,
        FaultKind.ERROR_EVENT,
        FaultKind.NO_DONE,
        FaultKind.HUGE_EVENT,
        FaultKind.DIE,
    )
)

_WRITTEN: Final = re.compile(r"([a-z_]+)(?:=(\d+))?(?:@(\d+))?(?:x(\d+))?")
_MARK: Final = re.compile(r"\[\[(fault|tokens|gap_ms|first_ms|text):([^\]]*)\]\]")


class Fault(msgspec.Struct, frozen=True):
    """One fault to commit."""

    kind: FaultKind
    number: int | None = None
    """Size, status or time, whatever its kind takes."""
    after: int = 3
    """Whole events before it."""
    count: int | None = None
    """How many requests commit it; None: all, until it is cleared."""


def parse(written: str) -> Fault:
    """A fault from `KIND[=NUMBER][@TOKENS][xCOUNT]`. Raises ValueError."""
    found = _WRITTEN.fullmatch(written.strip())
    if found is None or found[1] not in set(FaultKind):
        raise ValueError(f"{written!r} is no fault; there are: {', '.join(FaultKind)}")
    number, after, count = (None if group is None else int(group) for group in found.group(2, 3, 4))
    return Fault(FaultKind(found[1]), number, 3 if after is None else after, count)


def marks(text: str) -> dict[str, str]:
    """What a message asks of the fake engine: `[[tokens:20]]`, `[[gap_ms:5]]`, `[[first_ms:9]]`, `[[text:..]]`, `[[fault:..]]`."""
    return dict(_MARK.findall(text)) if "[[" in text else {}


class Faults:
    """The faults that are set now."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._left: dict[FaultKind, tuple[Fault, int | None]] = {}
        for fault in faults:
            self.set(fault)

    def set(self, fault: Fault) -> None:
        """Commit it from now on; another of its kind is replaced."""
        self._left[fault.kind] = (fault, fault.count)

    def clear(self) -> None:
        """Commit none any more."""
        self._left.clear()

    def all(self) -> list[Fault]:
        """Those set, with what is left of their counts."""
        return [msgspec.structs.replace(fault, count=left) for fault, left in self._left.values()]

    def find(self, kind: FaultKind) -> Fault | None:
        """One of the engine's own faults, if it is set."""
        held = self._left.get(kind) if self._left else None
        return held[0] if held else None

    def take(self, *, reused: bool) -> Fault | None:
        """The fault that the next request commits."""
        for kind, (fault, left) in self._left.items() if self._left else ():
            if kind in OF_THE_ENGINE or (kind is FaultKind.CLOSE_REUSED and not reused):
                continue
            if left is not None:
                if left <= 1:
                    del self._left[kind]
                else:
                    self._left[kind] = (fault, left - 1)
            return fault
        return None
