"""How many replicas pools have by themselves: what the policy of scaling is told, and whom it tells."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.config import Settings
from tidegate.control.sums import ReplicaSum, Sums
from tidegate.fleet.scaling import Bounds, Scaler, Seen
from tidegate.types import ReplicaState

if TYPE_CHECKING:
    from tidegate.control.control import Control

FULL: Final = 0.9
"""Waiting is told by class, for all pools together: it counts for a pool only when this share of its room is in use."""
COMING: Final = frozenset({ReplicaState.STARTING, ReplicaState.WARMING})


def bounds(settings: Settings) -> Mapping[str, Bounds]:
    """Of the pools that have any."""
    return {
        pool.name: Bounds(
            least=pool.replicas_min,
            most=pool.replicas_max,
            wait_s=pool.scaling.wait_s,
            grow_after_s=pool.scaling.grow_after_s,
            shrink_below=pool.scaling.shrink_below,
            shrink_after_s=pool.scaling.shrink_after_s,
        )
        for pool in settings.pool
        if pool.replicas_min is not None and pool.replicas_max is not None
    }


def seen(sums: Sums, states: Mapping[str, ReplicaState], slots: Mapping[str, int | None], *, alone: bool) -> Seen:
    """A pool whose replicas are those of `states`. `alone`: there is no other pool that classes could wait for."""
    mine = [one for one in sums.replicas if one.id in states and states[one.id] is ReplicaState.READY]
    rooms = [_room(one, slots.get(one.id)) for one in mine]
    known = [room for room in rooms if room is not None]
    room = float(sum(known)) if known and len(known) == len(rooms) else None
    in_flight = sum(one.in_flight for one in mine)
    waits = alone or room is None or in_flight >= FULL * room
    return Seen(
        replicas=len(states),
        starting=sum(state in COMING for state in states.values()),
        wait_s=max((one.wait_s for one in sums.classes if one.queued), default=0.0) if waits else 0.0,
        refused=sum(one.refused for one in sums.classes) if waits else 0,
        in_flight=in_flight,
        room=room,
    )


def _room(replica: ReplicaSum, slots: int | None) -> int | None:
    return replica.limit if replica.limit is not None else slots


def scaler(control: "Control", *, clock: Callable[[], float], log: structlog.stdlib.BoundLogger) -> Scaler:
    """The scaler of a control."""

    def look(pool: str) -> Seen | None:
        sums = control.steering.sums()
        if not sums.gateways:
            return None
        specs = [spec for spec in control.replicas.plan.replicas if spec.pool == pool]
        status = control.replicas.status()
        states = {spec.id: status[spec.id].state for spec in specs if spec.id in status}
        slots = {name: facts.slots if (facts := status[name].facts) is not None else None for name in states}
        return seen(sums, states, slots, alone=len(control.settings.pool) == 1)

    return Scaler(lambda: bounds(control.settings), look, control.resize, clock=clock, log=log)
