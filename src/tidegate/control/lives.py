"""The lives a keeper keeps: of a gateway, of the chat page, of an engine. Each may be one that goes on from before."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import structlog

from tidegate import machine
from tidegate.config import split_address
from tidegate.control.gateways import Gateways
from tidegate.control.launch import Launcher
from tidegate.control.plan import ReplicaSpec
from tidegate.control.state import ProcessKind, ProcessRecord
from tidegate.engines import causes, start_times, vllm_causes
from tidegate.engines.base import Child, Engine, EngineFacts, Spawn
from tidegate.errors import EngineStartError
from tidegate.fleet.local import LocalChild, memory_bytes, read_bytes
from tidegate.types import DialectName

GATEWAY_START_S = 30.0
CHAT_START_S = 120.0
"""On two busy cores, with nothing compiled yet, Chainlit's imports take their time."""
ADOPTION_CHECK_S = 2.0
POLL_S = 0.05
LAST_REPORT_S = 1.0
"""Longest wait for an ended gateway's last report; it is there already."""
RETIRED_GRACE_S = 5.0
MIB = 1024 * 1024

Result = TypeVar("Result")


class GatewayLife:
    """A data process: ready once control has heard that it knows the fleet.

    `gone` is called when it has ended and its last report is read.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        gateways: Gateways,
        argv: Sequence[str],
        *,
        digest: str,
        listening: socket.socket,
        url: str,
        gone: Callable[[], None],
        child: LocalChild | None = None,
    ) -> None:
        self.child = child
        self._name, self._launcher, self._gateways = name, launcher, gateways
        self._argv, self._digest, self._listening, self._url = argv, digest, listening, url
        self._gone = gone
        self._fleet = 0

    async def start(self) -> None:
        if self.child is None:
            descriptor = self._listening.fileno()
            argv = [*self._argv, "--listen-fd", str(descriptor)]
            self._fleet = self._gateways.snapshot.number
            if self._fleet:  # others serve, or did: nobody may hear from this one that there is no model yet
                argv.append("--await-fleet")
            self.child = await self._launcher.start(
                self._name, ProcessKind.GATEWAY, self._digest, argv, pass_fds=(descriptor,)
            )

    async def ready(self) -> None:
        assert self.child is not None  # noqa: S101 - started
        arriving = self._gateways.arrival(self.child.id, snapshot=self._fleet, timeout_s=GATEWAY_START_S)
        if await unless_it_ends("gateway", self.child, arriving) is None:
            raise EngineStartError(f"the gateway did not greet control within {GATEWAY_START_S:g} s")
        _answers(self._launcher, self._name, self._url)

    async def stop(self, grace_s: float) -> None:
        await _stop(self._launcher, self._name, self.child, grace_s)
        if self.child is not None:
            await self._gateways.departure(self.child.id, timeout_s=LAST_REPORT_S)
            self._gone()

    async def retire(self, grace_s: float) -> None:
        """Let it finish what it has while others serve the port."""
        if self.child is not None:
            await retire(self.child, grace_s)

    def rename(self, name: str) -> None:
        """Leave its name to a successor, or have it back."""
        record = self._launcher.records.get(self._name)
        if record is not None and self.child is not None and record.id == self.child.id:
            self._launcher.rename(record, name)
        self._name = name


class ChatLife:
    """The chat page's process: ready once it answers a request."""

    def __init__(
        self,
        launcher: Launcher,
        argv: Sequence[str],
        *,
        digest: str,
        address: str,
        url: str,
        child: LocalChild | None = None,
    ) -> None:
        self.child = child
        self._launcher, self._argv, self._digest = launcher, argv, digest
        self._address, self._url = address, url

    async def start(self) -> None:
        if self.child is None:
            self.child = await self._launcher.start("chat", ProcessKind.CHAT, self._digest, self._argv)
            _answers(self._launcher, "chat", self._url)  # its address is known before it answers, port 0 resolved

    async def ready(self) -> None:
        assert self.child is not None  # noqa: S101 - started
        if not await unless_it_ends("chat page", self.child, _answering(self._address, CHAT_START_S)):
            raise EngineStartError(f"the chat page did not answer within {CHAT_START_S:g} s")

    async def stop(self, grace_s: float) -> None:
        await _stop(self._launcher, "chat", self.child, grace_s)


class EngineLife:
    """An engine of ours, or one given by its URL."""

    def __init__(
        self,
        launcher: Launcher,
        spec: ReplicaSpec,
        make: Callable[[ReplicaSpec, Spawn], Engine],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.facts: EngineFacts | None = None
        self._launcher, self._spec, self._log = launcher, spec, log
        self._log_start = 0
        self._engine = make(spec, self._spawn)

    @property
    def child(self) -> Child | None:
        return self._engine.child

    @property
    def url(self) -> str:
        return self._engine.url

    @property
    def api_key(self) -> str:
        return self._engine.api_key

    @property
    def dialect(self) -> DialectName:
        return self._engine.dialect

    async def start(self) -> None:
        spec = self._spec
        what = {"model": spec.model, "engine": spec.engine, "url": spec.url or None}
        if spec.files is not None:
            what |= {"file": str(spec.files.path), "quantisation": spec.files.quantisation}
        told = {name: value for name, value in what.items() if value is not None}
        self._log.info("engine starting", replica=spec.id, **told)
        self._log_start = causes.size(self._launcher.log_file(spec.id))
        await self._engine.start()

    async def ready(self) -> None:
        facts = await self._engine.ready()
        child, memory = self._engine.child, machine.memory()
        held = memory_bytes(child.id) if child is not None and child.id is not None else None
        took = self._took()
        self.facts = facts = replace(facts, start=took)
        self._log.info(
            "engine ready",
            replica=self._spec.id,
            model=self._spec.model,
            seconds=round(facts.started_s, 2),
            **took.fields(),
            slots=facts.slots,
            context_tokens=facts.context_tokens,
            engine_memory_mib=held // MIB if held else None,
            memory_used_mib=memory.used_bytes // MIB,
            memory_total_mib=memory.total_bytes // MIB,
        )
        if why := took.slow_disk(facts.started_s):
            advice = f"`tidegate models stage {self._spec.model}` copies them to a fast one, once"
            self._log.warning("start was slow", replica=self._spec.id, cause=why, advice=advice)
        record = self._launcher.records.get(self._spec.id)
        if record is not None:
            self._launcher.answers(record, self.url, api_key=self.api_key, dialect=self.dialect, facts=self.facts)

    async def stop(self, grace_s: float) -> None:
        child = self._engine.child
        await self._engine.stop(grace_s)
        if child is not None and child.id is not None:
            self._launcher.ended(self._spec.id, child.id)

    def last_words(self, status: int | None) -> tuple[str, tuple[str, ...]]:
        """Why it most likely ended, and its last lines."""
        if self.child is not None and self.child.why:
            return self.child.why, ()
        return _last_words(self._spec.engine, self._launcher.log_file(self._spec.id), self._log_start, status)

    def _took(self) -> start_times.StartTimes:
        child, files = self._engine.child, self._spec.files
        return start_times.of_log(
            self._launcher.log_file(self._spec.id),
            self._log_start,
            weights=files.path if files is not None else None,
            read_bytes=read_bytes(child.id) if child is not None and child.id is not None else None,
        )

    async def _spawn(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> LocalChild:
        return await self._launcher.start(self._spec.id, ProcessKind.ENGINE, self._spec.digest, argv, env=env, log=log)


class AdoptedEngineLife:
    """An engine that an earlier control started and found ready. It may be busy: that it can be connected to is enough."""

    def __init__(self, launcher: Launcher, record: ProcessRecord, child: Child) -> None:
        self.child: Child = child
        self.url, self.api_key = record.url, record.api_key
        self.dialect = record.dialect or DialectName.OPENAI
        self.facts = record.facts
        self._launcher, self._record = launcher, record

    async def start(self) -> None:
        """It runs."""

    async def ready(self) -> None:
        host, port = split_address(self.url.removeprefix("http://"))
        try:
            async with asyncio.timeout(ADOPTION_CHECK_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise EngineStartError(f"an engine from before does not answer at {self.url}: {error}") from error
        writer.close()

    async def stop(self, grace_s: float) -> None:
        await _stop(self._launcher, self._record.name, self.child, grace_s)

    def last_words(self, status: int | None) -> tuple[str, tuple[str, ...]]:
        """Why it most likely ended, and its last lines: of all that its log holds."""
        if self.child.why:
            return self.child.why, ()
        engine = "vllm" if self.dialect is DialectName.VLLM else ""
        return _last_words(engine, self._launcher.log_file(self._record.name), 0, status)


def _last_words(engine: str, log: Path, since: int, status: int | None) -> tuple[str, tuple[str, ...]]:
    return vllm_causes.last_words(log, since, status) if engine == "vllm" else causes.last_words(log, since, status)


async def unless_it_ends(what: str, child: Child, work: Coroutine[None, None, Result]) -> Result:
    """The result of `work`; EngineStartError if the child ends first."""
    loop = asyncio.get_running_loop()
    working, ending = loop.create_task(work), loop.create_task(child.wait())
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise EngineStartError(f"the {what} ended before it was ready, with status {ending.result()}")
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def _answering(address: str, timeout_s: float) -> bool:
    """Whether something at HOST:PORT answers a GET within the time."""
    host, port = split_address(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    request = f"GET / HTTP/1.1\r\nhost: localhost:{port}\r\nconnection: close\r\n\r\n".encode()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection(host, port)
                    try:
                        writer.write(request)
                        if (await reader.readline()).startswith(b"HTTP/1."):
                            return True
                    finally:
                        writer.close()
                await asyncio.sleep(POLL_S)
    return False


def _answers(launcher: Launcher, name: str, url: str) -> None:
    record = launcher.records.get(name)
    if record is not None:
        launcher.answers(record, url)


async def _stop(launcher: Launcher, name: str, child: Child | None, grace_s: float) -> None:
    if child is not None:
        await child.stop(grace_s)
        if child.id is not None:
            launcher.ended(name, child.id)


async def retire(child: LocalChild, grace_s: float) -> None:
    """Ask a gateway to stop accepting and to finish what it has; after `grace_s` it is ended."""
    child.signal(signal.SIGUSR1)
    try:
        await asyncio.wait_for(child.wait(), grace_s)
    except TimeoutError:
        await child.stop(RETIRED_GRACE_S)
