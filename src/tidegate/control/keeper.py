"""Keeps one process running: starts it, waits until it is ready, starts it again when it dies, stops it.

A keeper is the only writer of its process's state. Everybody else reads `view`, which is replaced whole, and is told
through `changed`.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from tidegate.control.restarts import GiveUp, RestartPolicy, in_a_row, next_step
from tidegate.engines.base import Child
from tidegate.errors import EngineStartError, OperatorError
from tidegate.types import ReplicaState

LOG_TAIL_LINES = 20


class Life(Protocol):
    """One life of a process: started once, ready once, ended once."""

    @property
    def child(self) -> Child | None:
        """The process; None where it is not ours to start (an engine given by its URL)."""

    async def start(self) -> None:
        """Raises OSError, EngineStartError or OperatorError."""

    async def ready(self) -> None:
        """Returns once it answers. Raises EngineStartError when it dies first."""

    async def stop(self, grace_s: float) -> None:
        """Ends it, and whatever it had made for itself."""


@dataclass(frozen=True)
class KeeperView:
    """What is known of a process."""

    name: str
    state: ReplicaState = ReplicaState.STARTING
    restarts: int = 0
    pid: int | None = None
    ready_since: float | None = None
    """By the clock handed in."""
    cause: str = ""
    """Why it ended last, or why it cannot start."""
    log_tail: tuple[str, ...] = field(default=(), repr=False)
    error: OperatorError | None = None
    """What an operator has to mend before it can start."""


@dataclass(frozen=True)
class World:
    """What control needs from outside: time, chance, the log."""

    clock: Callable[[], float]
    """Seconds that only ever grow."""
    wall: Callable[[], float]
    """CLOCK_REALTIME seconds."""
    rng: random.Random
    log: structlog.stdlib.BoundLogger


class Keeper:
    """Keeps the process `name`, whose lives `make` makes. `adopted` is a life that goes on already."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Life],
        *,
        world: World,
        changed: Callable[[], None],
        policy: RestartPolicy | None = None,
        adopted: Life | None = None,
        log_tail: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.view = KeeperView(name)
        self.life = adopted
        self._make = make
        self._world, self._changed = world, changed
        self._policy = policy or RestartPolicy()
        self._log_tail = log_tail
        self._ever_ready = False
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start keeping."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"keeper {self.view.name}")

    def hold(self) -> None:
        """Let the process live on, and never start another."""
        self._stopping = True

    def resume(self) -> bool:
        """Keep it again after `hold`; false if its keeping has ended meanwhile."""
        if self._task is None or self._task.done():
            return False
        self._stopping = False
        return True

    async def stop(self, grace_s: float) -> None:
        """End the process and the keeping; a restart in progress is given up."""
        self.hold()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.life is not None:
            await self.life.stop(grace_s)
        self._set(state=ReplicaState.STOPPED, pid=None, ready_since=None)

    async def _keep(self) -> None:
        deaths = 0
        life = self.life
        while True:
            self.life = life = life or self._make()
            self._set(state=ReplicaState.STARTING, ready_since=None)
            try:
                await self._live(life)
                cause, tail = await _how_it_ended(life), self._log_tail()
            except EngineStartError as error:
                cause, tail = error.cause or str(error), error.log_tail or self._log_tail()
            except OSError as error:
                cause, tail = f"cannot be started: {error}", ()
            except OperatorError as error:
                if not self._ever_ready:  # the operator waits for the first start, and has to hear of it
                    await life.stop(0.0)
                    self._fail(str(error), (), error)
                    return
                cause, tail = str(error), ()
            await life.stop(0.0)
            if self._stopping:
                return
            deaths = in_a_row(deaths, self.view.ready_since, self._world.clock(), self._policy)
            step = next_step(deaths, self._policy, self._world.rng.random(), ever_ready=self._ever_ready)
            if isinstance(step, GiveUp):
                self._fail(f"{cause}; it ended {step.deaths} times in a row and is left alone", tail, None)
                return
            self._world.log.warning(
                "process ended", process=self.view.name, cause=cause, restart_in_s=round(step.delay_s, 2)
            )
            self._set(
                state=ReplicaState.STARTING,
                restarts=self.view.restarts + 1,
                pid=None,
                ready_since=None,
                cause=cause,
                log_tail=tail,
            )
            life = self.life = None
            await asyncio.sleep(step.delay_s)

    async def _live(self, life: Life) -> None:
        """From the start to the end of a life."""
        await life.start()
        self._set(state=ReplicaState.WARMING, pid=life.child.id.pid if life.child else None)
        await life.ready()
        self._ever_ready = True
        self._set(state=ReplicaState.READY, ready_since=self._world.clock(), cause="", log_tail=())
        if life.child is None:
            await asyncio.get_running_loop().create_future()
        else:
            await life.child.wait()

    def _fail(self, cause: str, tail: tuple[str, ...], error: OperatorError | None) -> None:
        for line in tail[-LOG_TAIL_LINES:] if self._ever_ready else ():  # else the start's error shows them
            self._world.log.error("last words", process=self.view.name, line=line)
        self._world.log.error("process given up", process=self.view.name, cause=cause)
        self._set(state=ReplicaState.FAILED, pid=None, ready_since=None, cause=cause, log_tail=tail, error=error)

    def _set(self, **values: object) -> None:
        view = replace(self.view, **values)  # type: ignore[arg-type]  # fields of the view, by name
        if view != self.view:
            self.view = view
            self._changed()


async def _how_it_ended(life: Life) -> str:
    status = await life.child.wait() if life.child is not None else None
    if status is None:
        return "it ended"
    return f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}"
