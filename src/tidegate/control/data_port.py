"""The data port: its listening socket, which is control's, and the processes that serve it, each with its keeper.

Every process accepts on the one socket it inherited. A process of an earlier control hands it back, so that the port
passes from one control, and from one process, to the next without refusing a connection. One that is replaced, or no
longer wanted, is first succeeded, then stops accepting and finishes what it has.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence

import structlog

from tidegate.config import Settings
from tidegate.control import ports
from tidegate.control.gateways import Gateways, Link
from tidegate.control.keeper import Keeper, World
from tidegate.control.launch import Launcher
from tidegate.control.lives import GatewayLife, retire
from tidegate.control.plan import digest
from tidegate.control.restarts import RestartPolicy
from tidegate.control.state import METRICS_FOLDER, ProcessKind, ProcessRecord
from tidegate.errors import OperatorError
from tidegate.fleet.local import LocalChild, adopt, is_alive
from tidegate.gateway import shared_metrics
from tidegate.home import Home
from tidegate.types import ReplicaState

NAME = "gateway"
OLD = "gateway-old-"
"""What the record of a replaced process is called, with its pid, until it has finished."""
HANDOVER_S = 3.0
"""A living gateway looks for a new control every 0.25 s."""
REPLACED_GRACE_S = 5.0
SILENT_S = 30.0
"""A gateway that reports every second and is not heard for so long hangs, and is replaced."""
NEVER_GIVE_UP = RestartPolicy(give_up=None, longest_s=2.0)
"""Without them nothing is served, whatever their faults; only one that never came up is left alone."""


def name_of(position: int) -> str:
    """Of the data process at a position: gateway, gateway-2, gateway-3 …"""
    return f"{NAME}-{position + 1}" if position else NAME


class DataPort:
    """Keepers of the data processes, and the socket they share. `silent_s` is how long one may say nothing."""

    def __init__(
        self,
        settings: Settings,
        home: Home,
        launcher: Launcher,
        gateways: Gateways,
        *,
        command: Sequence[str],
        world: World,
        changed: Callable[[], None],
        silent_s: float = SILENT_S,
    ) -> None:
        self.url = ""
        self.keepers: list[Keeper] = []
        self._settings, self._home, self._launcher, self._gateways = settings, home, launcher, gateways
        self._command, self._world, self._tell, self._silent_s = command, world, changed, silent_s
        self._listening: socket.socket | None = None
        self._leaving: set[Keeper] = set()
        self._left: set[LocalChild] = set()
        """Of an earlier control; they finish what they have."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._begun = self._ending = False

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        return self._world.log

    @property
    def serving(self) -> bool:
        """Whether somebody accepts."""
        return any(one.view.state is ReplicaState.READY for one in (*self.keepers, *self._leaving))

    @property
    def failed(self) -> bool:
        """Whether every process was given up."""
        return all(one.view.state is ReplicaState.FAILED for one in self.keepers)

    async def open(self) -> None:
        """Take over what lives of an earlier control, and have the port. Nothing new runs yet. Raises PortTakenError."""
        shared_metrics.fold(self._home.run / METRICS_FOLDER, is_alive)
        adopted = await self._take_over()
        if self._listening is None:
            self._listening = ports.bind(self._settings.gateway.listen, "gateway.listen")
        scheme = "https" if self._settings.gateway.tls_cert_file else "http"
        self.url = ports.url_of(ports.address_of(self._listening), scheme)
        for position in range(self._settings.gateway.processes):
            name = name_of(position)
            self.keepers.append(self._keeper(name, adopted.get(name)))

    def begin(self) -> None:
        """Start every process."""
        self._begun = True
        for keeper in self.keepers:
            keeper.begin()

    async def apply(self, settings: Settings) -> None:
        """As many processes as these settings want: more are started, the last ones retired."""
        async with self._turn:
            self._settings = settings
            if self._ending:
                return
            while len(self.keepers) > settings.gateway.processes:
                self._retire(self.keepers.pop())
            while len(self.keepers) < settings.gateway.processes:
                self.keepers.append(self._keeper(name_of(len(self.keepers))))
                if self._begun:
                    self.keepers[-1].begin()
        self._tell()

    async def replace(self) -> tuple[str, ...]:
        """Replace every process, one after the other: the next one serves before the last one stops to accept.

        The names of the replaced. Raises OperatorError if a new one does not come up; the old one then goes on.
        """
        async with self._turn:
            names = []
            for position in range(len(self.keepers)):
                if self._ending:
                    break
                await self._replace(position)
                names.append(self.keepers[position].view.name)
            return tuple(names)

    async def stop(self, grace_s: float) -> None:
        """Refuse new connections, and end every process once its answers are whole."""
        self._ending = True
        self._gateways.refuse()
        self.close()
        for child in self._left:
            child.signal(signal.SIGTERM)
        await asyncio.gather(*(keeper.stop(grace_s) for keeper in (*self.keepers, *self._leaving)), *self._retiring)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()

    async def watch(self) -> None:
        """Replace a process that lives and says nothing; runs until cancelled."""
        heard: dict[Keeper, float] = {}
        while True:
            now = self._world.clock()
            heard = {keeper: self._look_at(keeper, heard.get(keeper, now), now) for keeper in self.keepers}
            await asyncio.sleep(min(1.0, self._silent_s / 4))

    def _look_at(self, keeper: Keeper, heard: float, now: float) -> float:
        """When it was heard last, if that matters."""
        view, child = keeper.view, keeper.life.child if keeper.life else None
        if view.ready_since is None or not isinstance(child, LocalChild):
            return now
        link = self._gateways.links.get(child.id)
        heard = max(heard, view.ready_since, link.reported_at_s if link else 0.0)
        if now - heard <= self._silent_s:
            return heard
        self.log.error(
            "gateway hangs and is replaced", process=view.name, pid=child.id.pid, silent_s=round(now - heard)
        )
        child.kill()
        return now

    async def _replace(self, position: int) -> None:
        old = self.keepers[position]
        name, life = old.view.name, old.life
        old.hold()  # if it ends meanwhile, its successor is on its way
        if isinstance(life, GatewayLife):
            life.rename(f"{OLD}{life.child.id.pid}" if life.child else name)
        fresh = self.keepers[position] = self._keeper(name)
        self._leaving.add(old)
        fresh.begin()
        while fresh.view.state in {ReplicaState.STARTING, ReplicaState.WARMING} and not fresh.view.restarts:
            await self._changed.wait()
        if self._ending:
            return
        self._leaving.discard(old)
        if fresh.view.state is ReplicaState.READY or not old.resume():
            self._retire(old)
            return
        self.keepers[position] = old
        await fresh.stop(0.0)
        if isinstance(life, GatewayLife):
            life.rename(name)
        self.log.error("gateway cannot be replaced; the old one serves on", process=name, cause=fresh.view.cause)
        raise OperatorError(f"{name} cannot be replaced: {fresh.view.cause}", hint="the old one serves on")

    def _retire(self, keeper: Keeper) -> None:
        """Let it finish what it has, beside the others."""
        keeper.hold()
        life = keeper.life

        async def finish() -> None:
            if isinstance(life, GatewayLife):
                await life.retire(self._settings.gateway.drain_timeout_s + REPLACED_GRACE_S)
            await keeper.stop(REPLACED_GRACE_S)
            self._leaving.discard(keeper)
            if all(keeper.view.name != other.view.name for other in self.keepers):
                self._launcher.followers.forget(keeper.view.name)

        self._leaving.add(keeper)
        self._in_background(finish())

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _digest(self) -> str:
        gateway = self._settings.gateway
        what = {"tls_cert": str(gateway.tls_cert_file), "tls_key": str(gateway.tls_key_file), "listen": gateway.listen}
        return digest(what)

    def _argv(self) -> list[str]:
        run, gateway = self._home.run, self._settings.gateway
        argv = [*self._command, "--control", str(run / "control.sock"), "--metrics", str(run / METRICS_FOLDER)]
        for flag, file in (("--tls-cert", gateway.tls_cert_file), ("--tls-key", gateway.tls_key_file)):
            argv += [flag, str(file)] if file else []
        return argv

    def _keeper(self, name: str, child: LocalChild | None = None) -> Keeper:
        def life(child: LocalChild | None = None) -> GatewayLife:
            assert self._listening is not None  # noqa: S101 - after `open`
            return GatewayLife(
                name,
                self._launcher,
                self._gateways,
                self._argv(),
                digest=self._digest(),
                listening=self._listening,
                url=self.url,
                gone=self._fold,
                child=child,
            )

        return Keeper(
            name,
            life,
            world=self._world,
            changed=self._on_change,
            policy=NEVER_GIVE_UP,
            adopted=life(child) if child else None,
            log_tail=lambda: self._launcher.followers.tail(name),
        )

    def _on_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._tell()

    def _fold(self) -> None:
        """What the ended have counted stays counted."""
        try:
            shared_metrics.fold(self._home.run / METRICS_FOLDER, is_alive)
        except OSError as error:
            self.log.warning("metrics of an ended gateway are kept for later", cause=str(error))

    async def _take_over(self) -> dict[str, LocalChild]:
        """The processes that live and fit, by name; the socket is kept even where none fits, if the address does."""
        living = [
            (record, child)
            for record in self._launcher.records.all()
            if record.kind is ProcessKind.GATEWAY and (child := self._found(record)) is not None
        ]
        arrivals = (self._gateways.arrival(record.id, timeout_s=HANDOVER_S) for record, _ in living)
        links = await asyncio.gather(*arrivals)
        for link in links:
            self._take_socket(link)
        names = {name_of(position) for position in range(self._settings.gateway.processes)}
        adopted: dict[str, LocalChild] = {}
        for (record, child), link in zip(living, links, strict=True):
            serves = link is not None and link.listening is not None
            if self._is_same_socket(link) and record.name in names and record.digest == self._digest():
                self.log.info("gateway adopted", process=record.name, pid=record.id.pid)
                adopted[record.name] = child
            else:
                await self._let_go(record, child, serves=serves)
        return adopted

    def _found(self, record: ProcessRecord) -> LocalChild | None:
        """The process, if it lives. One that was replaced writes into its successor's log, which is followed."""
        return adopt(record.id) if record.name.startswith(OLD) else self._launcher.adopt(record)

    def _take_socket(self, link: Link | None) -> None:
        if link is None or link.listening is None or self._listening is not None:
            return
        if ports.matches(link.listening, self._settings.gateway.listen):
            self._listening = link.listening.dup()
            self._listening.setblocking(False)

    def _is_same_socket(self, link: Link | None) -> bool:
        if link is None or link.listening is None or self._listening is None:
            return False
        address: object = link.listening.getsockname()
        return bool(address == self._listening.getsockname())

    async def _let_go(self, record: ProcessRecord, child: LocalChild, *, serves: bool) -> None:
        """Its clients keep their answers where the port is served on meanwhile; else it has to give up the address."""
        self.log.info("gateway from before is replaced" if serves else "gateway from before ends", pid=record.id.pid)
        if self._listening is None:
            await self._launcher.end(record, REPLACED_GRACE_S)
            return
        old = f"{OLD}{record.id.pid}"
        self._launcher.rename(record, old)
        grace_s = self._settings.gateway.drain_timeout_s + REPLACED_GRACE_S

        async def finish() -> None:
            self._left.add(child)
            await retire(child, grace_s)
            self._left.discard(child)
            self._launcher.ended(old, child.id)
            self._fold()

        self._in_background(finish())
