"""Whether a replica may be asked. Pure: from what was known, what happened and the time to what is known now.

Three bad things in a row take a replica out, two good ones bring it back. What the observer sees while it is out is in
`tidegate.gateway.observer`.
"""

from enum import StrEnum
from typing import Final

import msgspec

BAD_TO_LEAVE: Final = 3
GOOD_TO_RETURN: Final = 2
RELAPSE_S: Final = 30.0
"""A replica that is taken out again so soon after it returned had not been well: it is kept out longer each time."""
FIRST_HOLD_S: Final = 1.0
LONGEST_HOLD_S: Final = 30.0


class Failure(StrEnum):
    """What went wrong with a replica."""

    CONNECT = "connect"
    """No connection could be made: the only one that is a fact and not a suspicion."""
    BROKEN = "broken"
    """A connection broke under an answer."""
    STATUS = "status"
    """It answered with a 5xx."""
    STALLED = "stalled"
    """A stream of its stood still while others went on."""
    STUCK = "stuck"
    """It has work, and makes no progress of any kind."""


class Succeeded(msgspec.Struct, frozen=True):
    """It gave a whole answer, to a client or to a probe."""


class Failed(msgspec.Struct, frozen=True):
    """It did not."""

    kind: Failure


class Watched(msgspec.Struct, frozen=True):
    """One look at its progress."""

    busy: bool
    """Whether somebody here waits for something of it."""
    moved: bool
    """Whether anything has moved since the last look."""
    patience_s: float
    """How long nothing may move."""


Event = Succeeded | Failed | Watched


class Health(msgspec.Struct, frozen=True):
    """What is known of one replica's health."""

    out: Failure | None = None
    """Why it is not asked; None: it is."""
    bad: int = 0
    """Failures in a row, while it is in."""
    doubt: bool = False
    """Whether its last connection could not be made, while it is in: others are asked first."""
    good: int = 0
    """Successes in a row, while it is out."""
    still: int = 0
    """Looks in a row that found it still for too long."""
    still_since_s: float | None = None
    """Since when it has had work and nothing has moved, as far as the looks tell."""
    returned_s: float | None = None
    hold_s: float = 0.0
    """How long it was kept out at least, the last time."""
    until_s: float = 0.0
    """It does not return before."""

    @property
    def rank(self) -> int:
        """Who is asked first: 0 the sound, 1 the doubtful, 2 those under suspicion, 3 those nobody can connect to."""
        if self.out is None:
            return int(self.doubt)
        return 3 if self.out is Failure.CONNECT else 2

    @property
    def sound(self) -> bool:
        """Whether a success would change nothing."""
        return self.out is None and not self.bad and not self.doubt


def after(state: Health, event: Event, now: float, *, alone: bool) -> Health:
    """The health after an event. `alone`: no other replica of its pool is in, so that suspicion does not take it out."""
    match event:
        case Succeeded():
            return _good(state, now)
        case Failed():
            return _bad(state, event.kind, now, alone=alone)
        case Watched():
            return _watched(state, event, now, alone=alone)


def _good(state: Health, now: float) -> Health:
    if state.sound:
        return state
    if state.out is None:
        return msgspec.structs.replace(state, bad=0, doubt=False)
    good = state.good + 1
    if good < GOOD_TO_RETURN or now < state.until_s:
        return msgspec.structs.replace(state, good=good)
    return Health(returned_s=now, hold_s=state.hold_s)


def _bad(state: Health, kind: Failure, now: float, *, alone: bool) -> Health:
    if (
        state.out is not None
    ):  # what is true of it now is what counts: a port that refuses, or one that is back and fails
        until_s = now if kind is Failure.CONNECT else state.until_s
        return msgspec.structs.replace(state, out=kind, good=0, until_s=until_s)
    bad = min(state.bad + 1, BAD_TO_LEAVE)
    doubt = state.doubt or kind is Failure.CONNECT
    if bad < BAD_TO_LEAVE or (alone and kind is not Failure.CONNECT):
        return msgspec.structs.replace(state, bad=bad, doubt=doubt)
    return _out(state, kind, now)


def _out(state: Health, kind: Failure, now: float) -> Health:
    if kind is Failure.CONNECT:  # two connections that can be made prove it back, however often it went
        return Health(out=kind, returned_s=state.returned_s, hold_s=state.hold_s)
    relapse = state.returned_s is not None and now - state.returned_s < RELAPSE_S
    hold_s = min(max(2 * state.hold_s, FIRST_HOLD_S), LONGEST_HOLD_S) if relapse else 0.0
    return Health(out=kind, returned_s=state.returned_s, hold_s=hold_s, until_s=now + hold_s)


def _watched(state: Health, event: Watched, now: float, *, alone: bool) -> Health:
    if not event.busy:
        if state.still_since_s is None and not state.still:
            return state
        return msgspec.structs.replace(state, still=0, still_since_s=None)
    if event.moved or state.still_since_s is None:
        if event.moved and state.out in {Failure.STUCK, Failure.STALLED}:
            state = _good(state, now)
        return msgspec.structs.replace(state, still=0, still_since_s=now)
    if now - state.still_since_s < event.patience_s or state.out is not None:
        return state
    still = min(state.still + 1, BAD_TO_LEAVE)
    if still < BAD_TO_LEAVE or alone:
        return msgspec.structs.replace(state, still=still)
    return _out(state, Failure.STUCK, now)
