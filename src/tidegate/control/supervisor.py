"""Ends replicas that hang, so that their keepers start them again.

What gateways say of a replica is suspicion. While others of its pool are sound, three looks in which they agree are
enough. The last one of a pool is ended only when it is silent: it has work, its process uses no CPU time, and a request
of one token, asked for by control itself, is not answered. The rules are pure (`after`); docs/decisions/0120 has reasons.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import httpx

from tidegate.control.gateways import Heard
from tidegate.control.keeper import World
from tidegate.control.lives import AdoptedEngineLife, EngineLife
from tidegate.control.plan import ReplicaSpec
from tidegate.control.replicas import Replicas
from tidegate.engines import readiness
from tidegate.errors import EngineStartError
from tidegate.fleet import local
from tidegate.gateway.health import Failure
from tidegate.types import ReplicaReport, ReplicaState

LOOK_S: Final = 1.0
AGREE: Final = 3
"""Looks in a row in which gateways agree."""
FRESH_S: Final = 3.0
"""A gateway reports every second; what it said before this long ago counts no more."""
BUSY_SHARE: Final = 0.05
"""Of a core: who uses less has computed nothing. Answering /metrics costs less than this."""
MOVE_S: Final = 5.0
"""Longest wait for its streams to be continued elsewhere."""


@dataclass(frozen=True)
class Look:
    """What is known of a replica at one moment."""

    at_s: float
    suspected: bool
    """Whether gateways agree that it makes no progress."""
    working: bool
    """Whether gateways have requests there, or would have if they trusted it."""
    computed: bool
    """Whether its process has used CPU time since the last look."""
    alone: bool
    """Whether no other replica of its pool is sound."""


@dataclass(frozen=True)
class Suspicion:
    """What is held against a replica."""

    agreed: int = 0
    silent_since_s: float | None = None


class Step(Enum):
    """What to do."""

    WAIT = "wait"
    ASK = "ask it for one token; without an answer it is silent"
    END = "end it"


def after(held: Suspicion, look: Look, *, stuck_s: float) -> tuple[Suspicion, Step]:
    """What is held against a replica after a look at it, and what to do. Pure."""
    agreed = held.agreed + 1 if look.suspected else 0
    silent = look.working and not look.computed
    since = (look.at_s if held.silent_since_s is None else held.silent_since_s) if silent else None
    held = Suspicion(agreed, since)
    if not look.alone:
        return held, Step.END if agreed >= AGREE else Step.WAIT
    return held, Step.ASK if since is not None and look.at_s - since >= stuck_s else Step.WAIT


def suspected(rows: Iterable[ReplicaReport], *, before: bool) -> bool:
    """Whether gateways agree: one says that it is stuck, and none has requests there that go on.

    `before`: whether they agreed the last time; while it is out, what else they find wrong is no other matter.
    """
    rows = list(rows)
    accused = any(row.health == Failure.STUCK or (before and row.health) for row in rows)
    return accused and not any(row.in_flight and not row.health for row in rows)


class Supervisor:
    """Looks at every replica of ours each second. `heard` is what gateways reported, `drained` who is out by hand."""

    def __init__(
        self,
        replicas: Replicas,
        *,
        heard: Callable[[], Iterable[Heard]],
        drained: Callable[[str], bool],
        stuck_s: Callable[[], float],
        world: World,
        look_s: float = LOOK_S,
    ) -> None:
        self._replicas, self._heard, self._drained, self._stuck_s = replicas, heard, drained, stuck_s
        self._world, self._look_s = world, look_s
        self._held: dict[str, Suspicion] = {}
        self._cpu: dict[str, tuple[float, float]] = {}
        """By replica: when its process was looked at last, and its CPU seconds then."""
        self._dealing: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(self._look_s)
        finally:
            for task in self._dealing.values():
                task.cancel()
            await asyncio.gather(*self._dealing.values(), return_exceptions=True)

    def look(self) -> None:
        """One look at every replica."""
        now = self._world.clock()
        reports = [one.report for one in self._heard() if one.report and now - one.reported_at_s <= FRESH_S]
        rows = {
            spec.id: [row for report in reports for row in report.replicas if row.id == spec.id]
            for spec in self._replicas.plan.replicas
        }
        for spec in self._replicas.plan.replicas:
            keeper = self._replicas.keepers.get(spec.id)
            life = keeper.life if keeper is not None else None
            if keeper is None or life is None or life.child is None or keeper.view.state is not ReplicaState.READY:
                self._held.pop(spec.id, None)
                self._cpu.pop(spec.id, None)
                continue
            held = self._held.get(spec.id, Suspicion())
            accused = suspected(rows[spec.id], before=held.agreed > 0)
            working = accused or any(row.in_flight for row in rows[spec.id])
            alone = not any(self._sound(peer, rows[peer.id]) for peer in self._peers(spec))
            computed = self._computed(spec.id, now) if alone and working else True  # else it makes no difference
            look = Look(now, suspected=accused, working=working, computed=computed, alone=alone)
            self._held[spec.id], step = after(held, look, stuck_s=self._stuck_s())
            if step is not Step.WAIT and spec.id not in self._dealing:
                self._deal(spec, step)

    def _peers(self, spec: ReplicaSpec) -> list[ReplicaSpec]:
        return [one for one in self._replicas.plan.replicas if one.pool == spec.pool and one.id != spec.id]

    def _sound(self, spec: ReplicaSpec, rows: list[ReplicaReport]) -> bool:
        keeper = self._replicas.keepers.get(spec.id)
        ready = keeper is not None and keeper.view.state is ReplicaState.READY and not self._drained(spec.id)
        return ready and not any(row.health for row in rows) and spec.id not in self._dealing

    def _computed(self, name: str, now: float) -> bool:
        life = self._replicas.keepers[name].life
        process = life.child.id if life is not None and life.child is not None else None
        spent_s = local.cpu_s(process) if process is not None else None
        if spent_s is None:  # elsewhere, or gone: it is not known to have
            return False
        before = self._cpu.get(name)
        self._cpu[name] = (now, spent_s)
        return before is None or now - before[0] > FRESH_S or spent_s - before[1] >= BUSY_SHARE * (now - before[0])

    def _deal(self, spec: ReplicaSpec, step: Step) -> None:
        work = self._ask(spec) if step is Step.ASK else self._end(spec, "it made no progress, as the gateways say")
        task = asyncio.get_running_loop().create_task(work)
        self._dealing[spec.id] = task
        task.add_done_callback(lambda _: self._dealing.pop(spec.id, None))

    async def _ask(self, spec: ReplicaSpec) -> None:
        """End it if it says nothing at all."""
        patience_s, keeper = self._stuck_s(), self._replicas.keepers.get(spec.id)
        life = keeper.life if keeper is not None else None
        if not isinstance(life, EngineLife | AdoptedEngineLife) or life.facts is None:
            return
        answered = await _answers(life.url, life.api_key, life.facts.served_name or spec.model, patience_s)
        held = self._held.get(spec.id, Suspicion())
        if answered or held.silent_since_s is None:
            self._held[spec.id] = Suspicion(held.agreed)
        else:
            silent_s = self._world.clock() - held.silent_since_s
            await self._end(spec, f"it was silent for {silent_s:.0f} s: no CPU time, and no token when asked for one")

    async def _end(self, spec: ReplicaSpec, cause: str) -> None:
        keeper = self._replicas.keepers.get(spec.id)
        if keeper is None or not keeper.stuck(cause):
            return
        self._world.log.warning("replica stuck; it is started anew", replica=spec.id, cause=cause)
        await self._replicas.idle(spec.id, MOVE_S)
        await keeper.end_stuck()


async def _answers(url: str, api_key: str, model: str, within_s: float) -> bool:
    """Whether it answers a request of one token, be it with a refusal."""
    with contextlib.suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(within_s), readiness.client(url, api_key) as http:
            with contextlib.suppress(EngineStartError):
                await readiness.one_token(http, model)
            return True
    return False
