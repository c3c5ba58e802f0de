"""How many replicas a pool should have, from how long requests wait and how much its replicas are used.

`decide` is pure. More are wanted when the wait was too long for a while, one at a time, and never while one is still
starting; fewer when the rest would have room to spare for a long while. Between the two nothing changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from tidegate.errors import OperatorError, RequestError

LOOK_EVERY_S: Final = 1.0
REFUSED_PAUSE_S: Final = 60.0
"""After a change that was refused, as for want of memory."""


@dataclass(frozen=True)
class Bounds:
    """What a pool's settings say."""

    least: int
    most: int
    wait_s: float
    grow_after_s: float
    shrink_below: float
    shrink_after_s: float


@dataclass(frozen=True)
class Seen:
    """A pool at one moment."""

    replicas: int
    """How many it should have now."""
    starting: int
    """Of these, on their way."""
    wait_s: float = 0.0
    """What a request waits for a free replica."""
    refused: int = 0
    """Requests refused for want of one, since the gateways' start."""
    in_flight: int = 0
    room: float | None = None
    """Requests that the replicas together may have at once, if known."""


@dataclass(frozen=True)
class Memory:
    """What has to be kept from one look to the next."""

    busy_since: float | None = None
    calm_since: float | None = None
    refused: int | None = None
    """As last seen."""


@dataclass(frozen=True)
class Decision:
    """How many, why if that is a change, and what to remember."""

    replicas: int
    memory: Memory
    reason: str = ""


def decide(seen: Seen, memory: Memory, bounds: Bounds, now: float) -> Decision:
    """How many replicas a pool should have."""
    within = min(max(seen.replicas, bounds.least), bounds.most)
    if within != seen.replicas:
        return Decision(within, Memory(refused=seen.refused), f"between {bounds.least} and {bounds.most}")
    refused = memory.refused is not None and seen.refused > memory.refused
    busy = refused or seen.wait_s > bounds.wait_s
    calm = not busy and seen.wait_s == 0 and seen.replicas > bounds.least and _rest_use(seen) < bounds.shrink_below
    held = Memory(
        busy_since=_since(memory.busy_since, now) if busy else None,
        calm_since=_since(memory.calm_since, now) if calm else None,
        refused=seen.refused,
    )
    if seen.starting:  # what comes has to have its effect first
        return Decision(seen.replicas, replace(held, busy_since=None, calm_since=None))
    if held.busy_since is not None and now - held.busy_since >= bounds.grow_after_s and seen.replicas < bounds.most:
        why = "requests were refused" if refused else f"requests wait {seen.wait_s:.1f} s"
        return Decision(seen.replicas + 1, Memory(refused=seen.refused), why)
    if held.calm_since is not None and now - held.calm_since >= bounds.shrink_after_s:
        why = f"the rest will be used {_rest_use(seen):.0%}"
        return Decision(seen.replicas - 1, Memory(refused=seen.refused), why)
    return Decision(seen.replicas, held)


def _since(before: float | None, now: float) -> float:
    return now if before is None else before


def _rest_use(seen: Seen) -> float:
    """How much of the room would be used with one replica less; where room is not known, only idleness counts."""
    if not seen.in_flight:
        return 0.0
    if not seen.room or seen.replicas < 2:
        return 1.0
    return seen.in_flight / (seen.room * (seen.replicas - 1) / seen.replicas)


class Scaler:
    """Applies `decide` to every pool that has bounds, each second."""

    def __init__(
        self,
        bounds: Callable[[], Mapping[str, Bounds]],
        look: Callable[[str], Seen | None],
        resize: Callable[[str, int], Awaitable[object]],
        *,
        clock: Callable[[], float],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._bounds, self._look, self._resize = bounds, look, resize
        self._clock, self._log = clock, log
        self._memory: dict[str, Memory] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            await self.step()
            await asyncio.sleep(LOOK_EVERY_S)

    async def step(self) -> None:
        """Look at each pool once."""
        for pool, bounds in self._bounds().items():
            seen, now = self._look(pool), self._clock()
            if seen is None or now < self._not_before.get(pool, 0.0):
                continue
            decision = decide(seen, self._memory.get(pool, Memory()), bounds, now)
            self._memory[pool] = decision.memory
            if decision.replicas == seen.replicas:
                continue
            self._log.info(
                "pool scaled", pool=pool, replicas=decision.replicas, before=seen.replicas, why=decision.reason
            )
            try:
                await self._resize(pool, decision.replicas)
            except (OperatorError, RequestError) as error:
                self._log.warning("pool cannot be scaled", pool=pool, replicas=decision.replicas, cause=str(error))
                self._not_before[pool] = now + REFUSED_PAUSE_S
