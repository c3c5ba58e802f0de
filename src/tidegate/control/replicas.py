"""The replicas of the fleet: one keeper each, brought from one plan to the next."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from tidegate.control.keeper import Keeper, World
from tidegate.control.launch import Launcher
from tidegate.control.lives import AdoptedEngineLife, EngineLife
from tidegate.control.plan import Plan, ReplicaSpec
from tidegate.control.restarts import RestartPolicy
from tidegate.control.snapshot import PENDING_URL, ReplicaStatus
from tidegate.control.state import ProcessKind, ProcessRecord
from tidegate.engines import continuation
from tidegate.engines.base import Engine, Spawn
from tidegate.fleet.base import Adopted
from tidegate.types import ProcessId, ReplicaState

STOP_GRACE_S = 5.0
DRAIN_POLL_S = 0.1
FOREIGN = RestartPolicy(longest_s=5.0, give_up=None, give_up_unready=None)
"""An engine that is not ours is asked again for as long as it takes."""
CHECK_DELAY_S: Final = 1.0
"""An engine's first answers after its start are its users'; whether it continues equally is asked after them."""


class Replicas:
    """Keepers by replica id. `idle` says whether no gateway has a request on a replica or will send it one.

    `drained` says whether an operator wants it to have no new ones, `elsewhere` knows what an earlier control has placed on
    other machines.
    """

    def __init__(
        self,
        launcher: Launcher,
        make_engine: Callable[[ReplicaSpec, Spawn], Engine],
        *,
        world: World,
        changed: Callable[[], None],
        idle: Callable[[str], bool],
        drained: Callable[[str], bool] = lambda _: False,
        released: Callable[[str], None] = lambda _: None,
        elsewhere: Callable[[ReplicaSpec], Adopted | None] = lambda _: None,
    ) -> None:
        self.plan = Plan()
        self.keepers: dict[str, Keeper] = {}
        self._launcher, self._make_engine = launcher, make_engine
        self._world, self._changed, self._idle, self._drained = world, changed, idle, drained
        self._elsewhere, self._released = elsewhere, released
        self._leaving: set[str] = set()
        self._ending = False
        self._checks: dict[str, tuple[EngineLife | AdoptedEngineLife, asyncio.Task[None]]] = {}
        self._proven: set[str] = set()
        """What engines of ours were started with that were seen to continue equally."""

    async def apply(self, plan: Plan, drain_s: float = 0.0) -> None:
        """Start what is new, end what is gone, replace what is another; what stays the same is not touched.

        A replica that goes is given no new work, and `drain_s` to finish what it has. One that lives on from an
        earlier control is adopted.
        """
        wanted = {spec.id: spec for spec in plan.replicas}
        held = {spec.id: spec for spec in self.plan.replicas}
        going = [name for name in self.keepers if name not in wanted or wanted[name].digest != held[name].digest]
        self._leaving.update(going)
        come = [spec for spec in plan.replicas if spec.engine == "external" and spec.id not in self.keepers]
        self.plan = replace(self.plan, replicas=(*self.plan.replicas, *come))
        self._begin(come)  # they take nothing of this machine, and need not wait for those that go
        self._changed()
        await asyncio.gather(*(self._retire(name, drain_s) for name in going))
        for name in going:
            del self.keepers[name]
        self.plan = plan
        self._begin(plan.replicas)
        self._changed()

    def _begin(self, specs: Iterable[ReplicaSpec]) -> None:
        for spec in specs:
            if spec.id not in self.keepers and not self._ending:
                self.keepers[spec.id] = self._keeper(spec)
                self.keepers[spec.id].begin()

    def start_again(self, pool: str) -> tuple[str, ...]:
        """Start the replicas of a pool that were given up; their names."""
        again = [
            spec
            for spec in self.plan.replicas
            if spec.pool == pool and spec.id in self.keepers and not self._ending
            if self.keepers[spec.id].view.state is ReplicaState.FAILED
        ]
        for spec in again:
            self.keepers[spec.id] = self._keeper(spec)
            self.keepers[spec.id].begin()
        self._changed()
        return tuple(spec.id for spec in again)

    async def idle(self, name: str, longest_s: float) -> None:
        """Wait until a replica that gets nothing new has finished what it has, `longest_s` at most."""
        deadline = self._world.clock() + longest_s
        while not self._idle(name) and self._world.clock() < deadline:  # noqa: ASYNC110 - reports come once a second
            await asyncio.sleep(DRAIN_POLL_S)

    def status(self) -> Mapping[str, ReplicaStatus]:
        """What is known of each replica."""
        return {name: self._status(name, keeper) for name, keeper in self.keepers.items()}

    def adopting(self) -> bool:
        """Whether engines of an earlier control are still being looked at."""
        early = {ReplicaState.STARTING, ReplicaState.WARMING}
        return any(
            isinstance(keeper.life, AdoptedEngineLife) and keeper.view.state in early
            for keeper in self.keepers.values()
        )

    def settled(self, name: str) -> bool:
        """Whether its first start came to an end, good or bad; for an engine that is not ours, whether it was tried.

        One that waits for room in a cluster may do so for days.
        """
        keeper = self.keepers[name]
        child = keeper.life.child if keeper.life is not None else None
        if child is not None and child.why and child.alive():
            return True
        if keeper.view.state in {ReplicaState.READY, ReplicaState.FAILED}:
            return True
        return self._spec(name).engine == "external" and keeper.view.restarts > 0

    async def stop(self, grace_s: float) -> None:
        """End every replica; none is started any more."""
        self._ending = True
        checks = [task for _, task in self._checks.values()]
        for task in checks:
            task.cancel()
        await asyncio.gather(*(keeper.stop(grace_s) for keeper in self.keepers.values()))
        await asyncio.gather(*checks, return_exceptions=True)

    def _spec(self, name: str) -> ReplicaSpec:
        return next(spec for spec in self.plan.replicas if spec.id == name)

    def _status(self, name: str, keeper: Keeper) -> ReplicaStatus:
        life, state = keeper.life, keeper.view.state
        if state is ReplicaState.READY and (name in self._leaving or self._drained(name)):
            state = ReplicaState.DRAINING
        if not isinstance(life, EngineLife | AdoptedEngineLife) or life.facts is None:
            return ReplicaStatus(state=state, url=PENDING_URL)
        process = life.child.id if life.child is not None else None
        pid = process.pid if process is not None else None
        return ReplicaStatus(state, life.url, life.dialect, life.api_key, life.facts, pid)

    def _keeper(self, spec: ReplicaSpec) -> Keeper:
        return Keeper(
            spec.id,
            lambda: EngineLife(
                self._launcher, replace(spec, starting=self._starting()), self._make_engine, self._world.log
            ),
            world=self._world,
            changed=lambda: self._noticed(spec.id),
            policy=FOREIGN if spec.engine == "external" else None,
            adopted=self._adopted(spec),
            last_words=lambda status: self._last_words(spec.id, status),
            again=f"tidegate scale {spec.pool}",
        )

    def _starting(self) -> int:
        """How many replicas of this machine have yet to take their memory, one that is being made included."""
        early = {ReplicaState.STARTING, ReplicaState.WARMING}
        here = {spec.id for spec in self.plan.replicas if spec.fleet == "local" and spec.engine != "external"}
        return max(sum(keeper.view.state in early for name, keeper in self.keepers.items() if name in here), 1)

    def _last_words(self, name: str, status: int | None) -> tuple[str, tuple[str, ...]]:
        life = self.keepers[name].life
        return life.last_words(status) if isinstance(life, EngineLife | AdoptedEngineLife) else ("", ())

    def _noticed(self, name: str) -> None:
        """A keeper's view has changed. What has become ready is asked, beside all else, whether it continues equally."""
        keeper = self.keepers.get(name)
        life = keeper.life if keeper is not None else None
        if keeper is not None and keeper.view.state is ReplicaState.READY and not self._ending:
            known, _ = self._checks.get(name, (None, None))
            if isinstance(life, EngineLife) and life.facts is not None and self._digest(name) in self._proven:
                life.facts = replace(life.facts, continues=True)  # its like has been asked: all else is the same
            if isinstance(life, EngineLife | AdoptedEngineLife) and life is not known:
                task = asyncio.get_running_loop().create_task(self._check(name, life))
                self._checks[name] = (life, task)
        self._changed()

    async def _check(self, name: str, life: EngineLife | AdoptedEngineLife) -> None:
        await asyncio.sleep(CHECK_DELAY_S)
        facts = life.facts
        if facts is None or facts.continues:
            return
        equal = await continuation.continues(life.url, life.api_key, life.dialect, facts.served_name)
        self._world.log.info("engine checked", replica=name, continues=equal)
        record = self._launcher.records.get(name)
        if equal and self.keepers.get(name) is not None and self.keepers[name].life is life:
            life.facts = replace(facts, continues=True)
            if self._digest(name):
                self._proven.add(self._digest(name))
            if record is not None:
                self._launcher.answers(record, life.url, api_key=life.api_key, dialect=life.dialect, facts=life.facts)
            self._changed()

    def _digest(self, name: str) -> str:
        """Of what a replica was started with; empty for one that is not ours."""
        record = self._launcher.records.get(name)
        return record.digest if record is not None else ""

    def _adopted(self, spec: ReplicaSpec) -> AdoptedEngineLife | None:
        if spec.fleet == "ray":
            there = self._elsewhere(spec)
            if there is None:
                return None
            known = there.url, there.api_key, there.dialect, there.facts
            nowhere = ProcessId(pid=0, started=0)  # no process of this machine; the record is never kept
            placed = ProcessRecord(spec.id, ProcessKind.ENGINE, nowhere, spec.digest, *known)
            return AdoptedEngineLife(self._launcher, placed, there.child)
        record = self._launcher.records.get(spec.id)
        if record is None or record.digest != spec.digest or not record.url or record.facts is None:
            return None
        child = self._launcher.adopt(record)
        if child is None:
            return None
        self._world.log.info("engine adopted", replica=spec.id, pid=record.id.pid)
        return AdoptedEngineLife(self._launcher, record, child)

    async def _retire(self, name: str, drain_s: float) -> None:
        if self.keepers[name].view.state is ReplicaState.READY:
            await self.idle(name, drain_s)
        await self.keepers[name].stop(STOP_GRACE_S)
        self._leaving.discard(name)
        self._released(name)
        if self._launcher.records.get(name) is None:
            self._launcher.followers.forget(name)


def unwanted(launcher: Launcher, plan: Plan) -> list[str]:
    """Names of recorded engines that the plan has no use for as they are."""
    digests = {spec.id: spec.digest for spec in plan.replicas}
    return [
        record.name
        for record in launcher.records.all()
        if record.kind is ProcessKind.ENGINE
        and (digests.get(record.name) != record.digest or not record.url or record.facts is None)
    ]
