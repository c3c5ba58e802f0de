"""Keeps one process running: starts it, waits until it is ready, starts it again when it dies, stops it.

A keeper is the only writer of its process's state. Everybody else reads `view`, which is replaced whole, and is told
through `changed`. What others know of the process (that it is stuck) they tell the keeper, which decides what it is.
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
HUNG_GRACE_S = 2.0
"""A process that hangs seldom hears SIGTERM; it is given this long, and then killed."""


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
        last_words: Callable[[int | None], tuple[str, tuple[str, ...]]] | None = None,
        again: str = "",
    ) -> None:
        """`last_words` tells, from an exit status, the likely cause of an end and the log's last lines; without it, the
        lines are `log_tail`'s.

        `again` is the command that starts one which was given up.
        """
        self.view = KeeperView(name)
        self.life = adopted
        self._make = make
        self._world, self._changed = world, changed
        self._policy = policy or RestartPolicy()
        self._last_words = last_words or (lambda _: ("", log_tail()))
        self._again = again
        self._hung = ""
        """Why this life is ended, where others found it stuck."""
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

    def stuck(self, cause: str) -> bool:
        """It makes no progress: nobody is to ask it from now on. False if it is not ready, and so nobody does."""
        if self.view.state is not ReplicaState.READY:
            return False
        self._hung = cause
        self._set(state=ReplicaState.STUCK, cause=cause)
        return True

    async def end_stuck(self) -> None:
        """End a stuck life; the next one begins as after any death."""
        life = self.life
        if self.view.state is ReplicaState.STUCK and life is not None and life.child is not None:
            await life.child.stop(HUNG_GRACE_S)

    async def _keep(self) -> None:
        deaths = 0
        life = self.life
        while True:
            self.life = life = life or self._make()
            self._set(state=ReplicaState.STARTING, ready_since=None)
            try:
                cause, tail = await self._live(life)
            except EngineStartError as error:
                cause, tail = error.cause or str(error), error.log_tail or self._last_words(None)[1]
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
                log_tail=tail[-LOG_TAIL_LINES:],
            )
            life = self.life = None
            await asyncio.sleep(step.delay_s)

    async def _live(self, life: Life) -> tuple[str, tuple[str, ...]]:
        """From the start to the end of a life: why it ended, and its last words."""
        self._hung = ""
        await life.start()
        self._set(state=ReplicaState.WARMING, pid=_pid(life))
        await life.ready()
        self._ever_ready = True
        self._set(state=ReplicaState.READY, ready_since=self._world.clock(), cause="", log_tail=())
        child = life.child
        while child is None:
            await asyncio.Event().wait()  # it is not ours to see the end of
        status = await child.wait()
        likely, tail = self._last_words(status)
        if self._hung:
            return self._hung, tail
        ended = _ended(status)
        return f"{ended}: {likely}" if likely else ended, tail

    def _fail(self, cause: str, tail: tuple[str, ...], error: OperatorError | None) -> None:
        tail = tail[-LOG_TAIL_LINES:]
        for line in tail:
            self._world.log.error("last words", process=self.view.name, line=line)
        more = {"start_again": self._again} if self._again else {}
        self._world.log.error("process given up", process=self.view.name, cause=cause, **more)
        self._set(state=ReplicaState.FAILED, pid=None, ready_since=None, cause=cause, log_tail=tail, error=error)

    def _set(self, **values: object) -> None:
        view = replace(self.view, **values)  # type: ignore[arg-type]  # fields of the view, by name
        if view != self.view:
            self.view = view
            self._changed()


def _pid(life: Life) -> int | None:
    """Of its process, if that is on this machine."""
    process = life.child.id if life.child is not None else None
    return process.pid if process is not None else None


def _ended(status: int | None) -> str:
    if status is None:
        return "it ended"
    return f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}"
