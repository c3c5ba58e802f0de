"""The lines of all models, and the limits of all replicas: what `dispatch` and `limits` decide, brought to life.

A limit moves when the observer has looked at an engine; while an engine's slots are still being found out, and it has
much to do, it is looked at more often. While anybody waits, the lines are looked at every `TEND_S`.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tidegate.gateway import limits
from tidegate.gateway.dispatch import Line, holds_up
from tidegate.gateway.fleet import Fleet, Replica
from tidegate.gateway.observer import Observer
from tidegate.types import ClassReport, FleetSnapshot, LimitOptions, Load, ReplicaState

TEND_S: Final = 0.05
SEARCH_SHARE: Final = 0.6
"""Of the limit: with more in flight, an engine whose slots are not known is looked at again soon."""
EASE_S: Final = 5.0
"""Over so long a replica that has just come is given more and more, where there are others."""
EASE_LEAST: Final = 0.25


class Lines:
    """Every model's line. `now` gives monotonic seconds."""

    def __init__(self, fleet: Fleet, observer: Observer, now: Callable[[], float]) -> None:
        self._fleet, self._observer, self._now = fleet, observer, now
        self._lines: dict[str, Line[Replica]] = {}
        self._options = LimitOptions()
        self._share = 1
        self._timer: asyncio.TimerHandle | None = None
        self._since: dict[Replica, float] = {}
        observer.on_load = self._looked

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Take in a snapshot whose fleet has been applied."""
        self._options, self._share = snapshot.limits, snapshot.options.processes
        for name in self._lines.keys() - self._fleet.models.keys():
            if not self._lines[name].queue.count:
                del self._lines[name]
        now = self._now()
        replicas = set(self._fleet.replicas.values())
        self._since = {replica: since for replica, since in self._since.items() if replica in replicas}
        for replica in replicas:
            if replica.view.state is ReplicaState.READY:
                self._since.setdefault(replica, now)
            self._begin(replica)
            replica.set_by_hand = snapshot.limits_set.get(replica.view.id)
            self._set(replica, now)
        for name in self._fleet.models:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = Line(partial(self._hosts, name), self._now)
            line.apply(snapshot.classes, snapshot.tenants, snapshot.limits)
        self.pump()

    def of(self, model: str) -> Line[Replica]:
        """The line of a model that exists."""
        return self._lines[model]

    def changed(self, replica: Replica) -> None:
        """A replica went out, came back, or began anew: what was learned of its engine is not known of the next."""
        now = self._now()
        self._since[replica] = now
        replica.limits_by = None
        self._begin(replica)
        self._set(replica, now)
        self.pump()

    def searched(self, replica: Replica) -> None:
        """A replica has much to do, and it is not known how much it can have: it is looked at soon."""
        self._observer.wake(replica)
        self.tend_soon()

    def pump(self) -> None:
        """Room may have come."""
        for line in self._lines.values():
            line.measure()
            if line.queue.count:
                line.pump()

    def report(self) -> tuple[ClassReport, ...]:
        """What the classes of all models are doing; forgets the first tokens that it tells."""
        reports = self.waiting()
        for line in self._lines.values():
            for state in line.states.values():
                state.first_tokens_s = []
        return reports

    def waiting(self) -> tuple[ClassReport, ...]:
        """What the classes of all models are doing."""
        whole: dict[str, ClassReport] = {}
        for line in self._lines.values():
            for one in line.report():
                other = whole.get(one.name)
                whole[one.name] = one if other is None else _sum(one, other)
        return tuple(whole.values())

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _hosts(self, model: str) -> Iterable[Replica]:
        entry = self._fleet.models.get(model)
        return entry.servable() if entry is not None else ()

    def _looked(self, replica: Replica, load: Load | None) -> None:
        """The observer has read what an engine says of itself, or could not."""
        now = self._now()
        line = self._lines.get(replica.view.model)
        if line is None:
            return
        self._begin(replica)
        wait_s = line.waited_s(now)
        if load is not None and load.waiting:  # for how long it does not say: long enough for the rule
            wait_s += self._options.wait_high_s
        replica.limits = limits.after(
            replica.limits,
            load,
            self._options,
            in_flight=replica.most,
            wait_s=wait_s,
            now=now,
            reading=any(holds_up(flight, now) for flight in replica.jobs),
            alone=self._share == 1,
        )
        replica.most = replica.in_flight
        if load is not None:
            shared = load.kv_tokens is not None and load.slots is None  # else each slot has a part of its own
            replica.kv_tokens = (load.kv_tokens or 0) // self._share if shared else None
            replica.load = load
        self._set(replica, now)
        line.measure()
        if line.queue.count:
            line.pump()

    def _begin(self, replica: Replica) -> None:
        """What is known of its limit begins anew with other settings, other slots, or another process."""
        by = (self._options, replica.view.slots)
        if replica.limits_by != by:
            replica.limits, replica.limits_by = limits.begin(*by), by

    def _set(self, replica: Replica, now: float) -> None:
        known = replica.limits
        limit = known.limit
        if replica.set_by_hand is not None:
            limit = float(replica.set_by_hand)
        if limit is not None:
            age_s = now - self._since.get(replica, now)
            if age_s < EASE_S and any(
                self._since.get(peer, now) < self._since.get(replica, now) for peer in replica.peers
            ):
                limit *= max(EASE_LEAST, age_s / EASE_S)
            limit = max(1.0, limit if self._share == 1 else math.ceil(limit / self._share))
        replica.limit = limit
        replica.room = math.inf if limit is None else int(limit)
        searching = limit is not None and known.slots is None
        replica.search_at = SEARCH_SHARE * limit if searching and limit is not None else math.inf

    def tend_soon(self) -> None:
        """Something waits, or a search is on: look at it in a moment."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TEND_S, self._tend)

    def _tend(self) -> None:
        self._timer = None
        now = self._now()
        busy = False
        for replica in self._fleet.replicas.values():
            self._set(replica, now)
            if replica.in_flight >= replica.search_at:
                self._observer.wake(replica)
                busy = True
        for line in self._lines.values():
            if line.queue.count:
                line.look()
                busy = busy or line.queue.count > 0
        if busy:
            self.tend_soon()


def _sum(one: ClassReport, other: ClassReport) -> ClassReport:
    return ClassReport(
        one.name,
        one.queued + other.queued,
        max(one.wait_s, other.wait_s),
        one.in_flight + other.in_flight,
        one.refused + other.refused,
        one.done + other.done,
        one.tokens + other.tokens,
        one.first_token_s + other.first_token_s,
    )
