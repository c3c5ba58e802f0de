"""What waits for an engine, and who goes next. Pure: time is handed in.

Between classes, and between the tenants of one class, the room is shared by weight (start-time fair queueing): who has
been given less, measured in work over weight, goes next; who had nothing waiting gains no claim from that. Within a
tenant the earliest deadline goes first. Source: Goyal, Vin, Cheng: Start-time Fair Queueing, 1996.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tidegate.types import ClassView

Item = TypeVar("Item")


class Entry(Generic[Item]):
    """One that waits."""

    __slots__ = ("bytes", "deadline_s", "gone", "item", "klass", "order", "since_s", "tenant", "weight")

    def __init__(
        self, item: Item, klass: ClassView, tenant: str, *, since_s: float, deadline_s: float, size: int, weight: float
    ) -> None:
        """`size` in bytes; `weight` is the tenant's."""
        self.item, self.klass, self.tenant = item, klass, tenant
        self.since_s, self.deadline_s, self.bytes, self.weight = since_s, deadline_s, size, weight
        self.order = 0
        self.gone = False

    def __lt__(self, other: "Entry[Item]") -> bool:
        return (self.deadline_s, self.order) < (other.deadline_s, other.order)


class _Tenant(Generic[Item]):
    __slots__ = ("given", "waiting", "weight")

    def __init__(self) -> None:
        self.given = 0.0
        """What it was given, as work over weight."""
        self.waiting: list[Entry[Item]] = []
        self.weight = 1.0


class _Class(Generic[Item]):
    __slots__ = ("clock", "count", "given", "tenants", "view")

    def __init__(self, view: ClassView) -> None:
        self.view = view
        self.given = 0.0
        """What it was given, as work over weight."""
        self.tenants: dict[str, _Tenant[Item]] = {}
        self.count = 0
        self.clock = 0.0
        """What the tenant that was served last had been given."""


class FairQueue(Generic[Item]):
    """Requests that wait for one model."""

    def __init__(self) -> None:
        self._classes: dict[str, _Class[Item]] = {}
        self._clock = 0.0
        """What the class that was served last had been given."""
        self._orders = 0
        self.count = self.bytes = 0

    def __len__(self) -> int:
        return self.count

    def waiting(self, klass: str) -> int:
        """How many wait in a class."""
        found = self._classes.get(klass)
        return found.count if found is not None else 0

    def push(self, entry: Entry[Item]) -> None:
        """Have one wait."""
        found = self._class(entry.klass)
        if not found.count:
            found.given = max(found.given, self._clock)
        tenant = found.tenants.get(entry.tenant)
        if tenant is None:
            tenant = found.tenants[entry.tenant] = _Tenant()
        if not tenant.waiting:
            tenant.given = max(tenant.given, found.clock)
        tenant.weight = entry.weight
        self._orders += 1
        entry.order = self._orders
        heapq.heappush(tenant.waiting, entry)
        found.count += 1
        self.count += 1
        self.bytes += entry.bytes

    def remove(self, entry: Entry[Item]) -> None:
        """One waits no more: its client left, or it was refused."""
        if entry.gone:
            return
        found = self._classes[entry.klass.name]
        self._uncount(found, entry)
        tenant = found.tenants[entry.tenant]
        if tenant.waiting[0] is entry:
            self._tidy(found, entry.tenant, tenant)
        elif 2 * sum(one.gone for one in tenant.waiting) > len(tenant.waiting):
            tenant.waiting = [one for one in tenant.waiting if not one.gone]
            heapq.heapify(tenant.waiting)

    def charge(self, klass: ClassView, work: float) -> None:
        """A class was given some work without waiting for it."""
        found = self._class(klass)
        found.given = max(found.given, self._clock) + work / klass.weight

    def take(self, start: Callable[[Entry[Item]], bool], work: Callable[[ClassView], float]) -> Entry[Item] | None:
        """The next one that can be started now; None where there is none.

        `start` tries to start one, and says whether it did; of each class it is asked about the first of each tenant
        in turn until one of them can. `work` tells what a request of a class costs, in any unit.
        """
        for found in sorted((one for one in self._classes.values() if one.count), key=_given):
            for name, tenant in sorted(found.tenants.items(), key=_tenant_given):
                entry = tenant.waiting[0]
                if not start(entry):
                    continue
                cost = work(found.view)
                self._clock = max(self._clock, found.given)
                found.given += cost / found.view.weight
                found.clock = max(found.clock, tenant.given)
                tenant.given += cost / tenant.weight
                self._uncount(found, entry)
                self._tidy(found, name, tenant)
                return entry
        return None

    def first_deadline_s(self) -> float:
        """The earliest deadline of those that wait; infinite where nobody does."""
        return min(
            (tenant.waiting[0].deadline_s for one in self._classes.values() for tenant in one.tenants.values()),
            default=float("inf"),
        )

    def overdue(self, now: float) -> list[Entry[Item]]:
        """Those whose deadline is over."""
        return [entry for entry in self if entry.deadline_s <= now]

    def __iter__(self) -> Iterator[Entry[Item]]:
        for found in self._classes.values():
            for tenant in found.tenants.values():
                yield from (entry for entry in tenant.waiting if not entry.gone)

    def _class(self, view: ClassView) -> _Class[Item]:
        found = self._classes.get(view.name)
        if found is None:
            found = self._classes[view.name] = _Class(view)
            found.given = self._clock
        found.view = view
        return found

    def _uncount(self, found: _Class[Item], entry: Entry[Item]) -> None:
        entry.gone = True
        found.count -= 1
        self.count -= 1
        self.bytes -= entry.bytes

    def _tidy(self, found: _Class[Item], name: str, tenant: _Tenant[Item]) -> None:
        while tenant.waiting and tenant.waiting[0].gone:
            heapq.heappop(tenant.waiting)
        if not tenant.waiting:  # its claim is bounded by the class's clock when it comes again
            del found.tenants[name]


def _given(found: _Class[Item]) -> float:
    return found.given


def _tenant_given(pair: tuple[str, _Tenant[Item]]) -> float:
    return pair[1].given
