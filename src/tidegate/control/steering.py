"""What is done by hand, and what is seen of it: `/admin/v1/{limits,top}`, `replicas/ID/drain`, `pools/NAME/scale`."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from tidegate import __version__, machine
from tidegate.control.sums import WINDOW_S, ReplicaSum, Sums, add_up
from tidegate.errors import BadRequest, NotFound, OperatorError
from tidegate.types import ReplicaState

if TYPE_CHECKING:
    from tidegate.control.control import Control


MOST_REPLICAS: Final = 64
"""As the settings have it."""


class ReplicaLimit(msgspec.Struct, frozen=True):
    """How much work a replica may have, and has."""

    id: str
    limit: int | None
    """Most requests at once, of all gateways together, as they last reported; None while nothing bounds it."""
    limit_set: int | None
    """What was set by hand; None while the limiter decides."""
    in_flight: int
    by_class: dict[str, int]
    running: int | None
    waiting: int | None
    kv_usage: float | None
    """As the engine says itself."""


class ClassQueue(msgspec.Struct, frozen=True):
    """What waits in one class."""

    name: str
    queued: int
    wait_s: float
    in_flight: int
    refused: int
    """Since the start of the gateways."""


class Limits(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/v1/limits`."""

    replicas: tuple[ReplicaLimit, ...]
    classes: tuple[ClassQueue, ...]


class LimitAnswer(msgspec.Struct, frozen=True):
    """What holds from now on; gateways have it within a second."""

    id: str
    limit_set: int | None


class DrainAnswer(msgspec.Struct, frozen=True):
    """What holds from now on; gateways have it within a second."""

    id: str
    drained: bool
    in_flight: int
    """Requests it has yet to finish, as last reported."""


class ScaleAnswer(msgspec.Struct, frozen=True):
    """What a pool has from now on; replicas that were begun are not ready yet, those that went are gone."""

    pool: str
    before: int
    replicas: int
    begun: tuple[str, ...]
    """New ones, and those that had been given up."""
    gone: tuple[str, ...]


class TopReplica(msgspec.Struct, frozen=True):
    """A replica: its process, and what all gateways together have with it."""

    id: str
    pool: str
    model: str
    engine: str
    state: ReplicaState
    drained: bool
    """By hand."""
    limit_set: int | None
    slots: int | None
    pid: int | None
    memory_bytes: int | None
    restarts: int
    cause: str
    """Why it ended last, if it is not ready."""
    seen: ReplicaSum


class TopGateway(msgspec.Struct, frozen=True):
    """A gateway of another host."""

    host: str
    listen: str
    in_flight: int


class Top(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/v1/top`. Rates and times are those of the last `window_s` seconds."""

    version: str
    at_s: float
    """Unix time."""
    up_s: float
    ready: bool
    window_s: float
    memory_used_bytes: int
    memory_total_bytes: int
    sums: Sums
    """Of all gateways; the replicas of `sums` are told in `replicas`."""
    replicas: tuple[TopReplica, ...]
    other_hosts: tuple[TopGateway, ...] = ()
    """The gateways of other hosts; `sums` counts them with the rest."""


class Steering:
    """What an operator does to what runs, beside changing the settings."""

    def __init__(self, control: "Control", *, clock: Callable[[], float]) -> None:
        self._control, self._clock = control, clock

    def limits(self) -> Limits:
        sums = self.sums()
        return Limits(
            replicas=tuple(
                ReplicaLimit(
                    one.id,
                    one.limit,
                    self._control.hand.limits.get(one.id),
                    one.in_flight,
                    one.by_class,
                    one.running,
                    one.waiting,
                    one.kv_usage,
                )
                for one in sums.replicas
            ),
            classes=tuple(
                ClassQueue(one.name, one.queued, one.wait_s, one.in_flight, one.refused) for one in sums.classes
            ),
        )

    def set_limit(self, replica: str, sequences: int | None) -> LimitAnswer:
        """None leaves it to the limiter again. Raises NotFound."""
        self._known(replica)
        self._control.hand.set_limit(replica, sequences)
        return LimitAnswer(replica, sequences)

    def drain(self, replica: str, *, drained: bool) -> DrainAnswer:
        """Raises NotFound."""
        self._known(replica)
        self._control.hand.drain(replica, drained=drained)
        in_flight = next((one.in_flight for one in self.sums().replicas if one.id == replica), 0)
        return DrainAnswer(replica, drained, in_flight)

    async def scale(self, pool: str, replicas: int | None) -> ScaleAnswer:
        """Give a pool so many replicas, None as many as it has; begins again what was given up in it.

        Replicas that go finish their requests first. Raises NotFound, BadRequest.
        """
        control = self._control
        pools = control.settings.pool
        found = next((one for one in pools if one.name == pool), None)
        if found is None:
            there = ", ".join(f"{one.name} ({one.model}, {self._count(one.name)})" for one in pools)
            raise NotFound(f"there is no pool {pool!r}; there are: {there}", code="no_such_pool")
        if found.engine == "external":
            raise BadRequest(
                f"the engines of pool {pool!r} run elsewhere, and are as many as the settings name; change its urls, "
                "and `tidegate reload`",
                code="not_scalable",
            )
        if replicas is not None and not 1 <= replicas <= MOST_REPLICAS:
            raise BadRequest(
                f"replicas: {replicas} is not from 1 to {MOST_REPLICAS}; to have none, take the pool out of the settings",
                param="replicas",
            )
        if found.gpus and replicas is not None and replicas > len(found.gpus):
            raise BadRequest(
                f"replicas: pool {pool!r} has {len(found.gpus)} GPUs (gpus = {list(found.gpus)}), one for each replica",
                param="replicas",
            )
        try:
            return await control.resize(pool, replicas)
        except OperatorError as error:
            raise BadRequest(f"{error}; {error.hint}" if error.hint else str(error), code="no_room") from None

    def top(self) -> Top:
        sums, status, hand = self.sums(), self._control.status(), self._control.hand
        seen = {one.id: one for one in sums.replicas}
        memory = machine.memory()
        return Top(
            version=__version__,
            at_s=time.time(),
            up_s=status.up_s,
            ready=status.ready,
            window_s=WINDOW_S,
            memory_used_bytes=memory.used_bytes,
            memory_total_bytes=memory.total_bytes,
            sums=msgspec.structs.replace(sums, replicas=()),
            other_hosts=tuple(
                TopGateway(one.host, one.remote.hello.listen, one.report.in_flight if one.report else 0)
                for one in self._control.remote.links.values()
            ),
            replicas=tuple(
                TopReplica(
                    id=one.id,
                    pool=one.pool,
                    model=one.model,
                    engine=one.engine,
                    state=one.state,
                    drained=one.id in hand.drained,
                    limit_set=hand.limits.get(one.id),
                    slots=one.slots,
                    pid=one.pid,
                    memory_bytes=one.memory_bytes,
                    restarts=one.restarts,
                    cause=one.cause,
                    seen=seen.get(one.id, ReplicaSum(one.id)),
                )
                for one in status.replicas
            ),
        )

    def sums(self) -> Sums:
        """What all gateways together have said."""
        control = self._control
        names = [replica.id for replica in control.replicas.plan.replicas]
        sums = add_up(
            (one.recent for one in control.heard()),
            now=self._clock(),
            classes=[one.name for one in control.gateways.snapshot.classes],
            replicas=names,
            gpus=control.gpus(),
        )
        there = tuple(one for one in sums.replicas if one.id in names)  # a gateway may not know yet who is gone
        return msgspec.structs.replace(sums, replicas=there)

    def _count(self, pool: str) -> str:
        count = sum(spec.pool == pool for spec in self._control.replicas.plan.replicas)
        return f"{count} replica{'' if count == 1 else 's'}"

    def _known(self, replica: str) -> None:
        names = [spec.id for spec in self._control.replicas.plan.replicas]
        if replica not in names:
            there = ", ".join(names) or "none yet"
            raise NotFound(f"there is no replica {replica!r}; there are: {there}", code="no_such_replica")
