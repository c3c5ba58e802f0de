"""Who may ask an engine now, who waits, and who is told to come again later.

A `Line` is what waits for one model. It grants permits: a request that has one is on a replica, until its end. Nothing
here knows of sockets or of the clock: the time is handed in, and a request is a `Job`. What follows holds at every
moment, and property tests hold it to that: a permit is given back exactly once; no replica has room that a request
which waits may use; who is granted does not depend on how often anybody looks.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from tidegate.errors import RateLimited, RequestError, Unavailable
from tidegate.gateway.queue import Entry, FairQueue
from tidegate.gateway.shares import AFTER_RUSH, NO_DEMAND, ClassState, room_for_yielding, service_rate
from tidegate.types import ClassReport, ClassView, LimitOptions, TenantView

NO_REPLICA_RETRY_S: Final = 2.0
FIRST_TOKENS: Final = 200
LONG_BYTES: Final = 16 * 1024
"""A request from this size on holds up everything else in its engine while its prompt is read."""
LONGEST_READ_S: Final = 15.0
"""After so long a prompt counts as read: an answer that comes in one piece does not tell when it was."""
AHEAD_S: Final = 0.05
"""A request may wait inside an engine for so long: a slot that is freed there is filled at once, not a step later."""
AHEAD_SHARE: Final = 0.0625
"""But at most so many of its slots."""
AHEAD_HOLDS_S: Final = 0.005
"""For so long holds what was foreseen of a replica: all of its requests are looked at for that."""


class Host(Protocol):
    """A replica, as far as room is concerned."""

    in_flight: int
    limit: float | None
    """Most requests at once; None bounds nothing."""
    room: float
    """The same as a whole number; infinite where nothing bounds it."""
    kv_tokens: int | None
    """Tokens that its cache holds, if known."""
    tokens: int
    """Tokens that its requests may come to."""

    jobs: "dict[Any, None]"
    """Requests that it has."""

    @property
    def pool(self) -> str:
        """The pool it is of."""


Room = TypeVar("Room", bound=Host)


class Job(Protocol[Room]):
    """A request."""

    klass: ClassView
    tokens: int
    """Tokens of prompt and answer together at most, as far as is known."""
    granted_s: float

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def reading(self) -> bool:
        """Whether nothing of its answer has come yet."""

    @property
    def begun_s(self) -> float | None:
        """When its answer began; 0 before; None for one that comes whole, and does not show it."""

    def candidates(self) -> Sequence[Room]:
        """Replicas that it may be sent to, best ones only; empty where there is none now."""

    def pick(self, hosts: list[Room]) -> Room:
        """One of several that have room."""

    def start(self, host: Room) -> None:
        """It has its permit: ask the replica. Counts itself in what the host has, until its end."""

    def refuse(self, error: RequestError) -> None:
        """It waits no more, and is told why."""


def holds_up(job: Job[Any], now: float) -> bool:
    """Whether a request that was started holds up everything else in its engine at this moment."""
    return job.size >= LONG_BYTES and job.reading and now - job.granted_s < LONGEST_READ_S


class Line(Generic[Room]):
    """The requests of one model."""

    def __init__(self, hosts: Callable[[], Iterable[Room]], now: Callable[[], float]) -> None:
        """`hosts` are the replicas that may be asked now; `now` gives monotonic seconds."""
        self._hosts, self._now = hosts, now
        self.queue: FairQueue[Job[Room]] = FairQueue()
        self.states: dict[str, ClassState] = {}
        self._entries: dict[int, Entry[Job[Room]]] = {}
        self._tenants: Mapping[str, float] = {}
        self._options = LimitOptions()
        self._foreseen: dict[Room, tuple[float, int]] = {}
        """Of replicas that are full: until when it holds, and how many slots they will have at once."""
        self.counts_tokens = False
        """Whether some replica's memory bounds what it may have."""
        self._long = 0
        """Long prompts in flight."""
        self.total: float | None = None
        """Requests that all replicas may have together; None while one of them has no limit."""

    def apply(self, classes: Iterable[ClassView], tenants: Iterable[TenantView], options: LimitOptions) -> None:
        """Take in what the settings say."""
        for view in classes:
            state = self.states.get(view.name)
            if state is None:
                self.states[view.name] = ClassState(view)
            else:
                state.view = view
        self._tenants = {tenant.name: tenant.weight for tenant in tenants}
        self._options = options
        self.measure()

    def measure(self) -> None:
        """Limits, or who may be asked, have changed."""
        hosts, now = list(self._hosts()), self._now()
        for state in self.states.values():
            state.demand(now)  # counts those that came since
        limits = [host.limit for host in hosts]
        self._foreseen.clear()
        self.counts_tokens = any(host.kv_tokens is not None for host in hosts)
        self.total = None if None in limits else sum(limit for limit in limits if limit is not None)

    # requests

    def submit(self, job: Job[Room], now: float | None = None) -> None:
        """Start a request, have it wait, or raise RateLimited or Unavailable."""
        now = self._now() if now is None else now
        state = self.states[job.klass.name]
        state.arrivals.count += 1
        queue = self.queue
        if not queue.count:
            if self._try(job, state, now):
                return
        elif not queue.waiting(job.klass.name) and self._try(job, state, now):
            queue.charge(job.klass, self._work(job.klass))
            return
        if not job.candidates():
            raise Unavailable(
                "no replica is ready; it is starting or being restarted",
                code="no_replica_ready",
                retry_after_s=NO_REPLICA_RETRY_S,
            )
        wait_s = self.foreseen_s(job.klass, now)
        if wait_s > state.max_wait_s:
            raise self._busy(state, wait_s, now)
        if self.queue.count >= self._options.queue_requests or self.queue.bytes + job.size > self._options.queue_bytes:
            raise self._busy(state, wait_s, now)
        entry = Entry(
            job,
            job.klass,
            job.tenant,
            since_s=now,
            deadline_s=now + state.max_wait_s,
            size=job.size,
            weight=self._tenants.get(job.tenant, 1.0),
        )
        self._entries[id(job)] = entry
        self.queue.push(entry)
        if self.counts_tokens:  # those of its class that came before it may be too large for room that it fits in
            self.pump()

    def leave(self, job: Job[Room]) -> bool:
        """Its client has gone; true if it was waiting."""
        entry = self._entries.pop(id(job), None)
        if entry is None:
            return False
        self.queue.remove(entry)
        if self.counts_tokens and self.queue.count:  # whoever is next may be smaller
            self.pump()
        return True

    def ended(self, job: Job[Room], *, well: bool, now: float | None = None) -> None:
        """A request that was started has given its permit back."""
        state = self.states[job.klass.name]
        state.in_flight -= 1
        if self._long and job.size >= LONG_BYTES:
            self._long -= 1
        if well:
            state.done += 1
            state.ended((self._now() if now is None else now) - job.granted_s)
        if self.queue.count:
            self.pump()

    def pump(self) -> None:
        """Start what can be started; who has waited for too long is told so, rather than served too late."""
        now = self._now()
        if self.queue.first_deadline_s() <= now:
            self._refuse_overdue(now)

        def start(entry: Entry[Job[Room]]) -> bool:
            try:
                return self._try(entry.item, self.states[entry.klass.name], now)
            except RequestError as error:  # since it came, the fleet has become one that does not have what it asks for
                self._drop(entry, error)
                return False

        while waiting := self.queue.count:
            entry = self.queue.take(start, self._work)
            if entry is not None:
                self._entries.pop(id(entry.item), None)
            elif self.queue.count == waiting:  # else one was dropped, and whoever is behind it was not asked
                return

    def look(self) -> None:
        """Refuse who has waited for too long, and start what can be started; now and then while anybody waits."""
        self.measure()
        self.pump()
        if self.queue.count and not any(True for _ in self._hosts()):
            for entry in list(self.queue):
                self._drop(
                    entry,
                    Unavailable(
                        "no replica is ready any more", code="no_replica_ready", retry_after_s=NO_REPLICA_RETRY_S
                    ),
                )

    def _refuse_overdue(self, now: float) -> None:
        for entry in self.queue.overdue(now):
            self._drop(entry, self._busy(self.states[entry.klass.name], self.foreseen_s(entry.klass, now), now))

    def _drop(self, entry: Entry[Job[Room]], error: RequestError) -> None:
        self.queue.remove(entry)
        self._entries.pop(id(entry.item), None)
        entry.item.refuse(error)

    def waited_s(self, now: float) -> float:
        """How long those that wait have waited, on average; 0 while nobody does."""
        waits = [now - entry.since_s for entry in self.queue]
        return sum(waits) / len(waits) if waits else 0.0

    # what is foreseen

    def foreseen_s(self, klass: ClassView, now: float) -> float:
        """What a request of a class that came now would wait; 0 while nothing is known."""
        ahead = self.queue.waiting(klass.name)
        rate = self._rate(klass, now)
        return (ahead + 1) / rate if rate > 0 else 0.0

    def report(self) -> list[ClassReport]:
        """What the classes are doing."""
        now = self._now()
        reports: list[ClassReport] = []
        for state in self.states.values():
            queued = self.queue.waiting(state.view.name)
            wait_s = self.foreseen_s(state.view, now) if queued else 0.0
            firsts = tuple(state.first_tokens_s)
            reports.append(
                ClassReport(
                    state.view.name, queued, wait_s, state.in_flight, state.refused, state.done, state.tokens, firsts
                )
            )
        return reports

    def _rate(self, klass: ClassView, now: float) -> float:
        total = self.total
        if total is None:
            return 0.0
        queued = {name: self.queue.waiting(name) for name in self.states}
        return service_rate(klass, self.states, total, now, queued)

    def _busy(self, state: ClassState, wait_s: float, now: float) -> RateLimited:
        state.refused += 1
        rate, clears_s = self._rate(state.view, now), wait_s
        if state.view.yields and rate > 0:  # what it has now is what a rush of the others has left it
            rate = max(rate, AFTER_RUSH * (self.total or 0.0) / state.holds_s)
            clears_s = (self.queue.waiting(state.view.name) + 1) / rate
        retry_after_s = state.retry_after_s(clears_s, rate, now)
        return RateLimited(
            f"too much is waiting: a {state.view.name} request would wait {wait_s:.1f} s now; "
            f"come again in {retry_after_s:.1f} s",
            code="busy",
            retry_after_s=retry_after_s,
        )

    def _work(self, klass: ClassView) -> float:
        """What a request of a class costs: how long it holds a slot."""
        return self.states[klass.name].holds_s

    # permits

    def _try(self, job: Job[Room], state: ClassState, now: float) -> bool:
        if self.total is not None and not self._may_have_more(state, now):
            return False
        candidates = job.candidates()
        pools = state.view.pools
        if not pools:
            room = [] if self.counts_tokens else [host for host in candidates if host.in_flight < host.room]
            if not room:
                room = [host for host in candidates if self._has_room(host, job)]
        else:
            room = []
            for pool in pools:
                room = room or [host for host in candidates if host.pool == pool and self._has_room(host, job)]
        if not room:
            return False
        long = job.size >= LONG_BYTES
        if self._long and len(candidates) > 1:
            room = self._apart(room, candidates, job, now)
            if not room:
                return False
        host = room[0] if len(room) == 1 else job.pick(room)
        self._long += long
        state.in_flight += 1
        job.granted_s = now
        job.start(host)
        return True

    def _apart(self, room: list[Room], candidates: Sequence[Room], job: Job[Room], now: float) -> list[Room]:
        """Of replicas with room, those where a request and the others do not stand in each other's way.

        A long prompt of a class that yields is read where others of its kind are, one at a time, and on no more replicas
        than the demand of the others leaves. Whatever does not yield goes where none is being read; with a target for
        its first token it waits for room there, since elsewhere it would miss it.
        """
        reading = [host for host in candidates if any(holds_up(other, now) for other in host.jobs)]
        if job.klass.yields and job.size >= LONG_BYTES:
            demand, queued = self._firm(now)
            if demand < NO_DEMAND and not queued:
                return room
            kin = [host for host in candidates if any(other.size >= LONG_BYTES for other in host.jobs)]
            slots = (self.total or 0.0) / len(candidates)
            others = math.ceil(demand / slots) if slots else 1
            may_take_another = len(kin) < max(1, len(candidates) - others)
            return [host for host in room if host not in reading and (may_take_another or host in kin)]
        if not reading or len(reading) == len(candidates):
            return room
        fit = [host for host in room if host not in reading]
        return fit if fit or job.klass.first_token_s is not None else room

    def _firm(self, now: float) -> tuple[float, int]:
        """Slots that the classes which do not yield ask for, and how many of their requests wait."""
        firm = [state for state in self.states.values() if not state.view.yields]
        return sum(state.demand(now) for state in firm), sum(self.queue.waiting(state.view.name) for state in firm)

    def _has_room(self, host: Room, job: Job[Room]) -> bool:
        limit, in_flight = host.limit, host.in_flight
        if limit is not None and in_flight + 1 > limit and in_flight - int(limit) >= self._ahead(host):
            return False
        kv_tokens = host.kv_tokens
        return kv_tokens is None or not in_flight or host.tokens + job.tokens <= kv_tokens * self._options.kv_share

    def _ahead(self, host: Room) -> int:
        """How many may wait inside an engine that is full: as many as it will have a slot for at once."""
        now = self._now()
        until_s, slots = self._foreseen.get(host, (0.0, 0))
        if now < until_s:
            return slots
        expected = variance = 0.0
        for job in host.jobs:
            likely = self.states[job.klass.name].ends_within(AHEAD_S, now, job.granted_s, job.begun_s)
            expected += likely
            variance += likely * (1.0 - likely)
        slots = int(max(0.0, min(expected - math.sqrt(variance), AHEAD_SHARE * (host.limit or 0.0))) + 0.5)
        self._foreseen[host] = (now + AHEAD_HOLDS_S, slots)
        return slots

    def _may_have_more(self, state: ClassState, now: float) -> bool:
        total = self.total or 0.0
        view = state.view
        if view.most_share < 1.0 and state.in_flight + 1 > max(1.0, view.most_share * total):
            return False
        if not view.yields:
            return True
        demand, queued = self._firm(now)
        yielding = sum(one.in_flight for one in self.states.values() if one.view.yields)
        least = sum(
            one.view.least_share for one in self.states.values() if one.view.yields and (one.in_flight or one is state)
        )
        idle = total - sum(one.in_flight for one in self.states.values())
        return yielding < room_for_yielding(total, demand, queued, least, idle)
