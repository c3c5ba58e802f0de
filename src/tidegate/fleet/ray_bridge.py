"""`python -m tidegate.fleet.ray_bridge`: the one process that speaks with a Ray cluster, for control.

A driver of Ray's ends its process when the cluster goes away, and fills it with threads; control must live on. Control
writes orders to its input and reads what happens from its output, one line of JSON each (`placement`). The replicas are
detached actors, named OWNER/REPLICA/DIGEST/LIFE: they live on when this process ends, and the next one finds them again.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import ray
import ray.cloudpickle
import ray.exceptions

from tidegate.config import split_address
from tidegate.fleet import ray_actor
from tidegate.fleet.placement import (
    Connected,
    Ended,
    Heard,
    KeepOnly,
    Kill,
    Place,
    Ready,
    Refused,
    Said,
    Stop,
    Told,
    Waits,
    Watch,
    Word,
)

NAMESPACE: Final = "tidegate"
WORD_WAIT_S: Final = 2.0
ANSWER_MARGIN_S: Final = 1.0
OUTPUT: Final = 9
"""The descriptor of the words: what libraries print must not come between them."""
RETRY_S: Final = 0.5
CONNECT_S: Final = 3.0
ROOM_EVERY_S: Final = 10.0
"""How often it is said that a replica waits for room."""
ENDED_S: Final = 15.0
"""Longest wait for an actor's own end, past the grace."""


class LostError(Exception):
    """A replica is no more; why."""


@dataclass
class Life:
    """One placed replica."""

    id: str
    """Control's name for it."""
    actor: str
    handle: Any
    wants: str = ""
    placed: bool = False
    """Whether it is known to have found a place."""
    node: str = ""
    url: str = ""
    task: "asyncio.Task[None] | None" = None


class Bridge:
    """Orders in, words out."""

    def __init__(self, owner: str, *, lost_after_s: float, orphan_after_s: float) -> None:
        self._owner = owner
        self._lost_after_s, self._orphan_after_s = lost_after_s, orphan_after_s
        self._lives: dict[str, Life] = {}
        self._given_up: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the input ends."""
        reader = asyncio.StreamReader(limit=1 << 24)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            told = msgspec.json.decode(line, type=Told)
            task = loop.create_task(self._do(told))
            self._tasks.add(task)
            task.add_done_callback(self._done)
            if isinstance(told, Place | Watch | Kill):
                await asyncio.wait({task})  # whoever is placed or found is known before the next order

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger(__name__).error("an order failed", exc_info=error)

    async def _do(self, told: Told) -> None:
        match told:
            case Place():
                await self._place(told)
            case Watch():
                name = next((name for name in await self._names() if name.endswith(f"/{told.life}")), None)
                handle = await self._find(name) if name is not None else None
                if name is None or handle is None:
                    say(Word(told.life, Ended("the cluster does not know it any more")))
                else:
                    self._begin(Life(told.life, name, handle, placed=True))
            case Stop():
                await self._stop(told.life, told.grace_s)
            case KeepOnly():
                await self._keep_only(told.digests)
            case Kill():
                names = [name for name in await self._names() if name.startswith(f"{self._owner}/")]
                await asyncio.gather(*(self._end(name, 0.0) for name in names))

    async def _place(self, place: Place) -> None:
        job = place.job
        life = job.life
        mine = f"{self._owner}/{job.replica}/"
        others = [name for name in await self._names() if name.startswith(mine) and name not in self._given_up]
        used = {one.actor for one in self._lives.values()}
        wants = _wants(place)
        try:
            for name in others:
                if name in used:
                    continue
                handle = await self._find(name)
                if handle is not None and name.startswith(f"{mine}{place.digest}/"):
                    self._begin(Life(life, name, handle, wants))
                    return
                await self._end(name, 0.0)
            name = f"{mine}{place.digest}/{life}"
            handle = await asyncio.to_thread(self._create, name, place)
        except (ValueError, TypeError, ray.exceptions.RayError) as error:
            say(Word(life, Ended(f"Ray refused to place it: {_first_line(error)}")))
            return
        self._begin(Life(life, name, handle, wants))

    def _create(self, name: str, place: Place) -> Any:
        actor = ray.remote(ray_actor.ReplicaActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            memory=place.memory_bytes or None,
            resources=place.resources or None,
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        return actor.remote(msgspec.json.encode(place.job).decode(), self._orphan_after_s)

    def _begin(self, life: Life) -> None:
        self._lives[life.id] = life
        life.task = asyncio.get_running_loop().create_task(self._follow(life))

    async def _follow(self, life: Life) -> None:
        """Pass on what a replica says, until it ends or is lost."""
        known, told = 0, time.monotonic()
        heard = told if life.placed else None
        try:
            while True:
                lines = await self._ask(life, known)
                now = time.monotonic()
                if lines is not None:
                    heard = now
                    known += len(lines)
                    if any(self._pass_on(life, line) for line in lines):
                        self._lives.pop(life.id, None)
                        await self._end(life.actor, 0.0)
                        return
                elif heard is None and now - told >= ROOM_EVERY_S:
                    told = now
                    say(Waits(life.id, life.wants, await asyncio.to_thread(_free)))
                elif heard is not None and now - heard > self._lost_after_s and not await _reachable(life.url):
                    raise LostError(f"nothing was heard of its node for {now - heard:.0f} s")  # noqa: TRY301 - told below, with the others
        except LostError as error:
            await self._lost(life, f"it is lost: {error}")

    @staticmethod
    async def _ask(life: Life, known: int) -> list[str] | None:
        """What it has said since; None when it does not answer. Raises LostError."""
        asked = life.handle.words.remote(known, WORD_WAIT_S)
        try:
            life.node, lines = await asyncio.wait_for(_answer(asked), WORD_WAIT_S + ANSWER_MARGIN_S)
        except TimeoutError:
            return None
        except ray.exceptions.ActorUnavailableError:
            await asyncio.sleep(RETRY_S)
            return None
        except ray.exceptions.RayError as error:
            raise LostError(_cause(error)) from None
        return list(lines)

    @staticmethod
    def _pass_on(life: Life, line: str) -> bool:
        """Tell control; whether that was its last word."""
        said = msgspec.json.decode(line, type=Said)
        if isinstance(said, Ready):
            life.url = said.url
        say(Word(life.id, said, life.node))
        return isinstance(said, Ended)

    async def _lost(self, life: Life, cause: str) -> None:
        self._lives.pop(life.id, None)
        self._given_up.add(life.actor)
        say(Word(life.id, Ended(cause)))
        with contextlib.suppress(ray.exceptions.RayError):
            await asyncio.to_thread(ray.kill, life.handle)

    async def _stop(self, life_id: str, grace_s: float) -> None:
        life = self._lives.pop(life_id, None)
        if life is None:
            return
        if life.task is not None:
            life.task.cancel()
        await self._end(life.actor, grace_s)
        say(Word(life_id, Ended("it was ended")))

    async def _keep_only(self, digests: Mapping[str, str]) -> None:
        wanted = tuple(f"{self._owner}/{replica}/{digest}/" for replica, digest in digests.items())
        used = {one.actor for one in self._lives.values()}
        names = [name for name in await self._names() if name.startswith(f"{self._owner}/")]
        useless = [name for name in names if not name.startswith(wanted) and name not in used]
        await asyncio.gather(*(self._end(name, 0.0) for name in useless))

    async def _end(self, name: str, grace_s: float) -> None:
        """End an actor and its replica; nothing happens where it is gone."""
        handle = await self._find(name)
        if handle is None:
            return
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            await asyncio.wait_for(_answer(handle.stop.remote(grace_s)), grace_s + ENDED_S)
        with contextlib.suppress(ray.exceptions.RayError):
            await asyncio.to_thread(ray.kill, handle)

    async def _names(self) -> list[str]:
        return await asyncio.to_thread(ray.util.list_named_actors)

    @staticmethod
    async def _find(name: str) -> Any:
        try:
            return await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except ValueError:
            return None


async def _answer(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())


async def _reachable(url: str) -> bool:
    """Whether the replica itself can be connected to: then it serves, whatever Ray says."""
    if not url:
        return False
    parts = urlsplit(url)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
    return False


def _wants(place: Place) -> str:
    wants = {"CPU": place.cpus, "GPU": place.gpus, "memory": place.memory_bytes, **place.resources}
    return _listed(wants)


def _free() -> str:
    return _listed({name: count for name, count in ray.available_resources().items() if not name.startswith("node:")})


def _listed(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in sorted(counts.items()) if count) or "nothing"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cause(error: BaseException) -> str:
    """Ray's words are many; the line that says why is told."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "node" in line.lower() or "exit" in line.lower()]
    return (telling or lines or [type(error).__name__])[-1][:300]


def say(what: Heard) -> None:
    """One line of output; without a reader there is nothing left to do here."""
    try:
        os.write(OUTPUT, msgspec.json.encode(what) + b"\n")
    except BrokenPipeError:
        os._exit(0)


def connect(address: str) -> Connected | Refused:
    """Join the cluster as its driver, or say in plain words why not."""
    if address != "auto":
        host, port = split_address(address.removeprefix("ray://"))
        try:
            socket.create_connection((host, port), CONNECT_S).close()
        except OSError as error:
            why = f"no Ray cluster answers at {address}: {error.strerror or error}"
            return Refused(why, "is its head running (`ray start --head`), and is ray.address right?")
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        resources = ray.cluster_resources()
        alive = [node for node in ray.nodes() if node["Alive"]]
    except (ConnectionError, RuntimeError, ValueError, AssertionError, ray.exceptions.RayError) as error:
        hint = "this machine has to be a part of the cluster: `ray start --address=HOST:PORT`"
        return Refused(f"the Ray cluster at {address} cannot be joined: {_first_line(error)}", hint)
    ray.cloudpickle.register_pickle_by_value(ray_actor)
    return Connected(address, ray.__version__, len(alive), resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def main() -> int:
    """Connect, say so, and do what is ordered until the input ends."""
    parser = argparse.ArgumentParser(prog="ray_bridge")
    parser.add_argument("--address", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--lost-after-s", type=float, required=True)
    parser.add_argument("--orphan-after-s", type=float, required=True)
    arguments = parser.parse_args()
    os.dup2(1, OUTPUT, inheritable=False)
    os.dup2(2, 1)
    answer = connect(arguments.address)
    say(answer)
    if isinstance(answer, Refused):
        return 2
    bridge = Bridge(arguments.owner, lost_after_s=arguments.lost_after_s, orphan_after_s=arguments.orphan_after_s)
    asyncio.run(bridge.run())
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
