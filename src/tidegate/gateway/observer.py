"""Looks at every replica each second: its load, its progress, and, while it is out, whether it may come back.

One task and one connection for each replica, none for a request. What it finds goes to the replica's health; nothing
that cannot be read is held against anybody.

A replica that is out is probed every 0.25 s: first with a GET that costs the engine nothing, and if that is answered,
with one real token. /health alone would bring back an engine that answers it while every request fails, only to have
three more requests fail; the token alone would be asked of a process that is still loading. A probe that takes too
long is no proof in either direction.

Whoever puts requests in order wants to know sooner than in a second when an engine has room: `wake` has one looked at
between. Such a look tells its load and no more; it moves no other look, and is no evidence for or against its health.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tidegate import logs
from tidegate.errors import ConnectError, EngineError
from tidegate.gateway.fleet import EMBEDDINGS, Replica
from tidegate.gateway.health import Failure, Succeeded
from tidegate.gateway.load_reader import LOOK_TIMEOUT_S, MAX_BYTES, LoadReader, Observation
from tidegate.gateway.progress import Progress
from tidegate.http import Endpoint
from tidegate.http.fetch import fetch
from tidegate.types import DialectName, Load, ReplicaState

LOOK_S: Final = 1.0
PROBE_S: Final = 0.25
SPACING_S: Final = 0.05
"""Least time between two looks at a replica, however many ask for one: it costs vLLM milliseconds to write its numbers."""
TOKEN_TIMEOUT_S: Final = 5.0
"""Longest wait for one token: an engine that works may have a queue."""
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"


class Observer:
    """Watches the replicas of a fleet. `begin` starts it; `follow` tells it of a new fleet."""

    def __init__(self, *, now: Callable[[], float], stuck_s: Callable[[], float]) -> None:
        self.look_s = LOOK_S
        """How often a replica is looked at."""
        self.on_load: Callable[[Replica, Load | None], None] | None = None
        """Called after every look with what was read; None where nothing could be."""
        self._now, self._stuck_s = now, stuck_s
        self._watches: dict[Replica, Watch] = {}
        self._begun = False

    def begin(self, replicas: Iterable[Replica]) -> None:
        """Watch these, and whoever follows."""
        self._begun = True
        self.follow(replicas)

    def follow(self, replicas: Iterable[Replica]) -> None:
        """Watch these replicas, and no others any more."""
        if not self._begun:
            return
        wanted = [r for r in replicas if r.view.state in {ReplicaState.READY, ReplicaState.DRAINING}]
        for replica in self._watches.keys() - set(wanted):
            self._watches.pop(replica).end()
        for number, replica in enumerate(wanted):
            if replica not in self._watches:
                delay_s = self.look_s * (number % 16) / 16  # not all in the same moment
                self._watches[replica] = Watch(
                    replica, self._now, self._stuck_s, self._looked, look_s=self.look_s, delay_s=delay_s
                )

    def progress(self, replica: Replica) -> Progress | None:
        """What is known of a replica's load and progress; None for one that is not watched."""
        watch = self._watches.get(replica)
        return watch.progress if watch is not None else None

    def load(self, replica: Replica) -> Load | None:
        """What a replica said of itself last, for as long as that may be true."""
        watch = self._watches.get(replica)
        return watch.progress.load if watch is not None else None

    def wake(self, replica: Replica) -> None:
        """Look at a replica soon, besides the looks of every second. Costs next to nothing when called often."""
        watch = self._watches.get(replica)
        if watch is not None:
            watch.ask()

    def changed(self, replica: Replica) -> None:
        """A replica's health has changed: do not wait for the second to end."""
        watch = self._watches.get(replica)
        if watch is not None and replica.rank:
            watch.change()

    def _looked(self, replica: Replica, load: Load | None) -> None:
        if self.on_load is not None:
            self.on_load(replica, load)

    async def close(self) -> None:
        """Look no more."""
        self._begun = False
        watches = list(self._watches.values())
        self._watches.clear()
        for watch in watches:
            watch.end()
        await asyncio.gather(*(watch.task for watch in watches), return_exceptions=True)


class Watch:
    """The look at one replica."""

    def __init__(
        self,
        replica: Replica,
        now: Callable[[], float],
        stuck_s: Callable[[], float],
        looked: Callable[[Replica, Load | None], None],
        *,
        look_s: float,
        delay_s: float,
    ) -> None:
        self.progress = Progress(replica)
        self._replica, self._now, self._stuck_s, self._look_s = replica, now, stuck_s, look_s
        self._looked = looked
        self._endpoint = Endpoint(replica.view.url, connect_timeout_s=LOOK_TIMEOUT_S)
        self._told = ""
        self._reader = LoadReader(replica, self._endpoint, now)
        self._asked = self._changed = False
        self._woken = asyncio.Event()
        self._ended_s = float("-inf")
        """When the last look ended, by the loop's clock."""
        self.task = asyncio.get_running_loop().create_task(self._watch(delay_s))

    def ask(self) -> None:
        """Have a look between the others."""
        if not self._asked:
            self._asked = True
            self._woken.set()

    def change(self) -> None:
        """Its health has changed."""
        self._changed = True
        self._woken.set()

    def end(self) -> None:
        """Look no more."""
        self.task.cancel()
        self._endpoint.close()

    async def _watch(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        looked_s = float("-inf")
        while True:
            begun_s = self._now()
            probing = self._replica.rank > 0
            if not probing or begun_s - looked_s >= self._look_s:
                looked_s = begun_s
                self.take(await self._look())
            if self._replica.rank:
                await self._probe()
            self._changed = False
            interval_s = PROBE_S if self._replica.rank else self._look_s
            await self._rest(max(interval_s - (self._now() - begun_s), PROBE_S / 2))

    async def _rest(self, seconds: float) -> None:
        """Until the time is over, or a replica that was sound is no more; looks that are asked for come between."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        hasten = seconds > PROBE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end_s):
                while not (hasten and self._changed):
                    if not self._asked:
                        self._woken.clear()
                        await self._woken.wait()
                        continue
                    begin_s = max(loop.time(), self._ended_s + SPACING_S)
                    await asyncio.sleep(begin_s - loop.time())
                    if begin_s + SPACING_S > end_s:  # the next look is as soon
                        await asyncio.sleep(end_s - begin_s)
                        return
                    await self._look_between()
                await asyncio.sleep(PROBE_S)

    async def _look_between(self) -> None:
        """What comes of it is its load. One that the next look cuts short is lost: that look tells the same."""
        observation = await self._look()
        if observation.load is not None:
            self.progress.read(observation.load, observation.at_s)
        self._looked(self._replica, observation.load)

    def take(self, observation: Observation) -> None:
        """Tell the health what was seen. A connection that cannot be made counts; anything else that went wrong does not."""
        if observation.unreachable:
            self._replica.failed(Failure.CONNECT)
        if observation.error != self._told:
            self._told = observation.error
            if observation.error:
                logs.get().info("engine metrics not readable", replica=self._replica.view.id, cause=observation.error)
        self._replica.take(self.progress.look(observation.load, observation.at_s, self._stuck_s()))
        self._looked(self._replica, observation.load)

    async def _look(self) -> Observation:
        self._asked = False  # who asks from here on wants what will be true later
        try:
            return await self._reader.look()
        finally:
            self._ended_s = asyncio.get_running_loop().time()

    async def _probe(self) -> None:
        replica = self._replica
        path = "/v1/models" if replica.view.dialect is DialectName.OPENAI else "/health"
        status = await self._ask(self._reader.get(path), LOOK_TIMEOUT_S)
        if status is None:
            return
        if status >= 500:
            replica.failed(Failure.STATUS)
        elif replica.health.out is None:  # only whether it can be connected to was in doubt
            replica.take(Succeeded())
        else:
            await self._one_token()

    async def _one_token(self) -> None:
        """One real token. An engine that refuses the request (4xx) has no such path, and answers: that will do."""
        replica = self._replica
        for path, fields in (
            (COMPLETIONS, {"prompt": "Hi"}),
            (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
        ):
            if not replica.answers(path):
                continue
            status = await self._ask(self._post(path, {**fields, "max_tokens": 1, "stream": True}), TOKEN_TIMEOUT_S)
            if status is None:
                return
            if status >= 500 and status != 501:
                replica.failed(Failure.STATUS)
                return
            if status < 400:
                break
        else:
            if replica.answers(EMBEDDINGS):
                status = await self._ask(self._post(EMBEDDINGS, {"input": "Hi"}), TOKEN_TIMEOUT_S)
                if status is None or status >= 500:
                    if status is not None:
                        replica.failed(Failure.STATUS)
                    return
        replica.succeeded()

    async def _ask(self, request: bytes, timeout_s: float) -> int | None:
        """The status of the answer, 500 for an error within a stream; None where there is none, and it was said why."""
        try:
            async with asyncio.timeout(timeout_s):
                status, body = await fetch(self._endpoint, request, max_bytes=MAX_BYTES)
        except ConnectError:
            self._replica.failed(Failure.CONNECT)
        except EngineError:
            self._replica.failed(Failure.BROKEN)
        except TimeoutError:
            return None
        else:
            return 500 if status == 200 and b'data: {"error"' in body else status
        return None

    def _post(self, path: str, fields: dict[str, object]) -> bytes:
        replica = self._replica
        body = msgspec.json.encode({**fields, "model": replica.view.served_name or replica.view.model})
        return b"%bcontent-length: %d\r\n\r\n%b" % (replica.head(path), len(body), body)
