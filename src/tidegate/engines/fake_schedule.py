"""When the fake engine's tokens come: on a script, each request for itself, or in the steps of continuous batching."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from tidegate.alarm import Timer, Timers

BURST: Final = 16
"""Tokens without a gap that one request sends in a row before others have their turn."""
PAUSED_LOOK_S: Final = 0.005
"""How soon it is looked again whether a client that is behind has caught up."""


class Sequence(Protocol):
    """A request whose tokens are scheduled."""

    prompt_tokens: int
    first_ms: float
    gap_ms: float
    queued_s: float
    """Set by the schedule when it leaves the queue."""

    @property
    def paused(self) -> bool:
        """Whether its client is behind with reading."""

    def token(self) -> bool:
        """Give the next token; whether that was the last."""


class Schedule(Protocol):
    """Decides when each sequence's next token comes."""

    running: set[Sequence]
    waiting: deque[Sequence]
    steps: int

    def submit(self, sequence: Sequence) -> None: ...

    def drop(self, sequence: Sequence) -> None:
        """Its client is gone, or it is over: its place is free."""

    def hang(self) -> None:
        """No token comes any more."""

    def close(self) -> None: ...


class Scripted:
    """Every sequence by its own script, at most `slots` at once (None: any number), the rest in a queue."""

    def __init__(self, slots: int | None) -> None:
        self.running: set[Sequence] = set()
        self.waiting: deque[Sequence] = deque()
        self.steps = 0
        self._slots = slots
        self._clock: Timers | None = None
        """The loop's own timers are a millisecond late at times: too much for an engine whose times are to be known."""
        self._timers: dict[Sequence, asyncio.Handle | Timer] = {}
        self._hangs = False

    def submit(self, sequence: Sequence) -> None:
        sequence.queued_s = time.monotonic()
        self.waiting.append(sequence)
        self._admit()

    def _admit(self) -> None:
        loop = asyncio.get_running_loop()
        while self.waiting and not self._hangs and (self._slots is None or len(self.running) < self._slots):
            sequence = self.waiting.popleft()
            now = time.monotonic()
            sequence.queued_s = now - sequence.queued_s
            self.running.add(sequence)
            at = now + sequence.first_ms / 1000
            if sequence.first_ms:
                self._wait(sequence, at)
            else:
                self._timers[sequence] = loop.call_soon(self._next, sequence, at)

    def _wait(self, sequence: Sequence, at: float, until: float | None = None) -> None:
        """`_next` at this time, or later, where the token is late already."""
        if self._clock is None:
            self._clock = Timers()
        self._timers[sequence] = self._clock.at(until or at, partial(self._next, sequence, at))

    def _next(self, sequence: Sequence, at: float) -> None:
        if self._hangs:
            return
        if sequence.paused:
            self._wait(sequence, at, until=time.monotonic() + PAUSED_LOOK_S)
            return
        gap = sequence.gap_ms / 1000
        for _ in range(1 if gap else BURST):
            self.steps += 1
            if sequence.token():
                self.drop(sequence)
                return
        if gap:
            # On time even if this turn was late: the gaps do not add up the loop's delays.
            self._wait(sequence, max(at + gap, time.monotonic() - gap))
        else:
            self._timers[sequence] = asyncio.get_running_loop().call_soon(self._next, sequence, at)

    def drop(self, sequence: Sequence) -> None:
        timer = self._timers.pop(sequence, None)
        if timer is not None:
            timer.cancel()
        self.running.discard(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if self.waiting:
            self._admit()

    def hang(self) -> None:
        self._hangs = True
        for timer in self._timers.values():
            timer.cancel()

    def close(self) -> None:
        self.hang()
        if self._clock is not None:
            self._clock.close()
            self._clock = None
        self.running.clear()
        self.waiting.clear()


@dataclass(frozen=True)
class StepCost:
    """What one step of continuous batching takes, in milliseconds."""

    step_ms: float = 20.0
    per_sequence_ms: float = 0.1
    per_prompt_token_ms: float = 0.05

    def seconds(self, running: int, prompt_tokens: int) -> float:
        return (self.step_ms + self.per_sequence_ms * running + self.per_prompt_token_ms * prompt_tokens) / 1000


class Batching:
    """Continuous batching: a queue in order of arrival before `slots` sequences, which get one token each a step."""

    def __init__(self, slots: int, cost: StepCost) -> None:
        self.running: set[Sequence] = set()
        self.waiting: deque[Sequence] = deque()
        self.steps = 0
        self._slots, self._cost = slots, cost
        self._order: list[Sequence] = []
        self._timer: asyncio.TimerHandle | None = None
        self._hangs = False

    def submit(self, sequence: Sequence) -> None:
        sequence.queued_s = time.monotonic()
        self.waiting.append(sequence)
        if self._timer is None:
            self._begin()

    def _begin(self) -> None:
        """Fill the free slots, and let the step's time pass."""
        loop = asyncio.get_running_loop()
        prompt_tokens = 0
        while self.waiting and len(self._order) < self._slots:
            sequence = self.waiting.popleft()
            sequence.queued_s = time.monotonic() - sequence.queued_s
            prompt_tokens += sequence.prompt_tokens
            self._order.append(sequence)
            self.running.add(sequence)
        if self._order and not self._hangs:
            delay = self._cost.seconds(len(self._order), prompt_tokens)
            self._timer = loop.call_later(delay, self._end)
        else:
            self._timer = None

    def _end(self) -> None:
        self.steps += 1
        for sequence in list(self._order):
            if sequence in self.running and sequence.token():
                self.running.discard(sequence)
        self._order = [sequence for sequence in self._order if sequence in self.running]
        self._begin()

    def drop(self, sequence: Sequence) -> None:
        """Its slot is free for the next step."""
        self.running.discard(sequence)
        if sequence in self._order:
            self._order.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def hang(self) -> None:
        self._hangs = True
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        self.hang()
        self._order.clear()
        self.running.clear()
        self.waiting.clear()
