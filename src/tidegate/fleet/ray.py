"""Replicas on a Ray cluster, as control sees them: engines that are placed, heard of, and asked over plain HTTP.

Ray itself is in a process of its own (`ray_bridge`): when that ends, with the cluster or without, another one is started,
and replicas count as they were until it says otherwise. What was placed is kept in `run/ray.json`, so that the next
control knows where everybody is before it has reached the cluster.
"""

import asyncio
import contextlib
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from tidegate import __version__
from tidegate.config import RaySettings
from tidegate.engines.base import EngineFacts
from tidegate.errors import EngineStartError, OperatorError
from tidegate.fleet.base import Adopted, Order
from tidegate.fleet.placement import (
    Connected,
    Ended,
    Heard,
    Job,
    KeepOnly,
    Kill,
    Place,
    Ready,
    Refused,
    Stop,
    Told,
    Waits,
    Watch,
    Word,
    files_of,
)
from tidegate.home import Home, write_private
from tidegate.types import DialectName

BRIDGE: Final = (sys.executable, "-m", "tidegate.fleet.ray_bridge")
OWNER_FILE: Final = "ray-owner"
"""In the data folder: by this its actors are known from those of other controls on the same cluster."""
STATE_FILE: Final = "ray.json"
AGAIN_S: Final = (0.5, 1.0, 2.0, 5.0)
"""Waits before the bridge is started again."""
STOPPED_S: Final = 20.0
"""Longest wait for a replica's end, past its grace."""
BRIDGE_END_S: Final = 5.0
LINE_BYTES: Final = 1 << 24


class Placed(msgspec.Struct, frozen=True):
    """A replica that was found ready."""

    digest: str
    life: str
    url: str
    api_key: str
    dialect: DialectName
    facts: EngineFacts


class RayChild:
    """One life of a replica on a node, as a `Child`."""

    id = None

    def __init__(self, fleet: "RayFleet", life: str) -> None:
        self.life = life
        self.why = ""
        self._fleet = fleet
        self.ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def alive(self) -> bool:
        return not self.ended.done()

    async def wait(self) -> int | None:
        return (await asyncio.shield(self.ended)).status

    async def stop(self, grace_s: float) -> None:
        if self.alive() and self._fleet.end(self.life, grace_s):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s + STOPPED_S)
        self._fleet.forget(self.life)


class RayEngine:
    """A replica on the cluster, as an `Engine`."""

    def __init__(self, fleet: "RayFleet", order: Order) -> None:
        self.dialect = DialectName.OPENAI
        self.url = self.api_key = ""
        self.child: RayChild | None = None
        self._fleet, self._order = fleet, order

    async def start(self) -> None:
        """Ask for a place."""
        order = self._order
        self.child = self._fleet.place(order)

    async def ready(self) -> EngineFacts:
        """Wait until it is placed and answers. Raises EngineStartError, or OperatorError where something must be mended."""
        child = self.child
        if child is None:
            raise EngineStartError(f"{self._order.replica} was not started")
        either: set[asyncio.Future[Any]] = {child.ready, child.ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not child.ready.done():
            ended = child.ended.result()
            if ended.mend:
                raise OperatorError(ended.cause, hint=ended.hint)
            raise EngineStartError(
                f"{self._order.replica} ended before it was ready: {ended.cause}",
                log_tail=ended.log_tail,
                cause=ended.cause,
            )
        said = child.ready.result()
        self.url, self.api_key, self.dialect = said.url, said.api_key, said.dialect
        self._fleet.remember(self._order, child.life, said)
        return said.facts

    async def stop(self, grace_s: float) -> None:
        """End it; returns when nothing of it is left."""
        child, self.child = self.child, None
        if child is not None:
            await child.stop(grace_s)


class RayFleet:
    """A `Fleet` on Ray."""

    def __init__(
        self,
        home: Home,
        *,
        environ: Mapping[str, str],
        log: structlog.stdlib.BoundLogger,
        bridge: Sequence[str] = BRIDGE,
    ) -> None:
        self._bridge = tuple(bridge)
        self._settings = RaySettings()
        self._home, self._environ, self._log = home, environ, log
        self._process: Process | None = None
        self._children: dict[str, RayChild] = {}
        self._orders: dict[str, Place] = {}
        """Of those that are not ready yet, by life: they are told again to a new bridge."""
        self._owed: list[str] = []
        """Lives that ended for us while there was no bridge to tell."""
        self._placed = self._load()
        self._keeping: asyncio.Task[None] | None = None

    async def open(self, settings: RaySettings) -> None:
        """Start the bridge. Raises OperatorError that says why the cluster cannot be used."""
        self._settings = settings
        answer = await self._connect()
        if isinstance(answer, Refused):
            raise OperatorError(answer.why, hint=answer.hint)
        self._told(answer)
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def engine(self, order: Order) -> RayEngine:
        return RayEngine(self, order)

    def adopt(self, replica: str, digest: str) -> Adopted | None:
        placed = self._placed.get(replica)
        if placed is None or placed.digest != digest:
            return None
        child = self._child(placed.life)
        self.tell(Watch(replica, placed.life))
        self._log.info("engine adopted", replica=replica, url=placed.url)
        return Adopted(placed.url, placed.api_key, placed.dialect, placed.facts, child)

    def keep_only(self, digests: Mapping[str, str]) -> None:
        self._placed = {name: one for name, one in self._placed.items() if digests.get(name) == one.digest}
        self._save()
        self.tell(KeepOnly(dict(digests)))

    def kill(self) -> None:
        self.tell(Kill())

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._end_bridge()

    # what engines and children use

    def place(self, order: Order) -> RayChild:
        """A new life of a replica."""
        life = secrets.token_hex(4)
        job = Job(
            version=__version__,
            replica=order.replica,
            life=life,
            model=order.model,
            engine=order.engine,
            options=dict(order.options),
            files=files_of(order.files),
            cores=max(int(order.cpus), 1),
        )
        place = Place(job, order.digest, order.cpus, order.gpus, order.memory_bytes, dict(order.resources or {}))
        self._orders[life] = place
        child = self._child(life)
        self.tell(place)
        return child

    def remember(self, order: Order, life: str, said: Ready) -> None:
        """It is ready: the next control may go on with it."""
        self._orders.pop(life, None)
        self._placed[order.replica] = Placed(order.digest, life, said.url, said.api_key, said.dialect, said.facts)
        self._save()

    def forget(self, life: str) -> None:
        """It has ended."""
        self._children.pop(life, None)
        self._orders.pop(life, None)
        held = {name: one for name, one in self._placed.items() if one.life != life}
        if held != self._placed:
            self._placed = held
            self._save()

    def end(self, life: str, grace_s: float) -> bool:
        """Have a life ended; false where that has to wait for the next bridge."""
        told = self.tell(Stop(life, grace_s))
        if not told:
            self._owed.append(life)
        return told

    def tell(self, what: Told) -> bool:
        """To the bridge, if there is one; the next one is told all that is under way."""
        pipe = self._process.stdin if self._process is not None else None
        if pipe is None or pipe.is_closing():
            return False
        pipe.write(msgspec.json.encode(what) + b"\n")
        return True

    # the bridge

    async def _connect(self) -> Connected | Refused:
        settings = self._settings
        with (self._home.logs / "ray.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._bridge,
                *("--address", settings.address, "--owner", self._owner()),
                *("--lost-after-s", str(settings.lost_after_s)),
                *("--orphan-after-s", str(settings.orphan_after_s)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,
                limit=LINE_BYTES,
                env={**self._environ, "RAY_USAGE_STATS_ENABLED": "0", "TIDEGATE_HOME": str(self._home.path)},
            )
        where = f"the Ray cluster at {settings.address}"
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                heard = await self._hear()
        except TimeoutError:
            heard = Refused(
                f"{where} did not answer within {settings.connect_timeout_s:g} s",
                "is ray.address that of a Ray head, with the Ray and the Python of this machine?",
            )
        if not isinstance(heard, Connected):
            await self._end_bridge()
        if isinstance(heard, Connected | Refused):
            return heard
        return Refused(f"{where} cannot be used", f"{self._home.logs / 'ray.log'} says more")

    async def _hear(self) -> Heard | None:
        """The bridge's next word; None at its end."""
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018 - started with pipes
        line = await self._process.stdout.readline()
        return msgspec.json.decode(line, type=Heard) if line else None

    async def _keep(self) -> None:
        """Take what the bridge says; start another one when it ends, and tell it all that is under way."""
        failures = 0
        while True:
            while (heard := await self._hear()) is not None:
                failures = 0
                self._take(heard)
            await self._end_bridge()
            self._log.warning("ray lost", address=self._settings.address, replicas=len(self._children))
            while True:
                await asyncio.sleep(AGAIN_S[min(failures, len(AGAIN_S) - 1)])
                failures += 1
                try:
                    answer = await self._connect()
                except OSError as error:
                    answer = Refused(f"{self._bridge[0]} cannot be started: {error}")
                if isinstance(answer, Connected):
                    break
                if failures == 1:
                    self._log.warning("ray does not answer", cause=answer.why)
            self._told(answer)
            for life, child in self._children.items():
                self.tell(self._orders.get(life) or Watch("", child.life))
            for life in self._owed:
                self.tell(Watch("", life))
                self.tell(Stop(life, 0.0))
            self._owed = []

    def _take(self, heard: Heard) -> None:
        if isinstance(heard, Waits):
            place = self._orders.get(heard.life)
            replica = place.job.replica if place is not None else ""
            if (waiting := self._children.get(heard.life)) is not None:
                waiting.why = f"it waits for room in the cluster: {heard.wants}; free: {heard.free}"
            self._log.warning("replica waits for room", replica=replica, wants=heard.wants, free=heard.free)
        if not isinstance(heard, Word):
            return
        child = self._children.get(heard.life)
        if child is None:
            return
        if isinstance(heard.said, Ready) and not child.ready.done():
            child.why = ""
            child.ready.set_result(heard.said)
        elif isinstance(heard.said, Ended) and not child.ended.done():
            child.why = heard.said.cause
            child.ended.set_result(heard.said)

    def _told(self, answer: Connected) -> None:
        self._log.info(
            "ray joined",
            address=answer.address,
            ray=answer.version,
            nodes=answer.nodes,
            cpus=answer.cpus,
            gpus=answer.gpus,
        )

    async def _end_bridge(self) -> None:
        """It leaves when its input ends."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), BRIDGE_END_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _child(self, life: str) -> RayChild:
        child = self._children[life] = RayChild(self, life)
        return child

    def _owner(self) -> str:
        """The name of this data folder among those that use the cluster."""
        file = self._home.path / OWNER_FILE
        with contextlib.suppress(OSError):
            if held := file.read_text("ascii").strip():
                return held
        made = secrets.token_hex(6)
        write_private(file, made.encode())
        return made

    def _load(self) -> dict[str, Placed]:
        try:
            return msgspec.json.decode((self._home.run / STATE_FILE).read_bytes(), type=dict[str, Placed])
        except (FileNotFoundError, msgspec.DecodeError):
            return {}

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the last whole file stays; the cluster knows better anyway
            write_private(self._home.run / STATE_FILE, msgspec.json.encode(self._placed))
