"""What the engines that we start have in common: a child, its files, and the wait until it answers."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import msgspec

from tidegate.config import split_address
from tidegate.engines import causes, readiness
from tidegate.engines.base import Child, ReadyFile, Spawn
from tidegate.errors import EngineStartError
from tidegate.home import write_private

POLL_S: Final = 0.02
CONNECT_POLL_S: Final = 0.1
DYING_S: Final = 1.0
"""A connection that broke is most often the first news of a process that ends."""
START_TIMEOUT_S: Final = 600.0
"""A large model on a slow disk is read in minutes."""


@dataclass(frozen=True)
class Place:
    """Where an engine's process lives: how it is started, and the files between it and us."""

    name: str
    """Of the replica."""
    spawn: Spawn
    folder: Path
    """For the key and ready files; only this user can look into it."""
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Handed to `spawn`."""
    host: str = "127.0.0.1"
    """The address that it listens on."""

    @property
    def ready_file(self) -> Path:
        return self.folder / f"{self.name}.ready"

    @property
    def key_file(self) -> Path:
        return self.folder / f"{self.name}.engine-key"


Answers = Callable[[httpx.AsyncClient, str], Awaitable[object]]
"""Asks an engine for a real answer. Raises EngineStartError, httpx.TransportError."""
LastWords = Callable[[Path, int, int | None], tuple[str, tuple[str, ...]]]
"""From a log, the offset since when, and the exit status: why it ended, and the lines that say so."""


class EngineProcess:
    """One engine's child process, from its start to its end."""

    def __init__(
        self,
        place: Place,
        start_timeout_s: float = START_TIMEOUT_S,
        *,
        answers: Answers = readiness.one_token,
        last_words: LastWords = causes.last_words,
    ) -> None:
        self.place = place
        self._answers, self._last_words = answers, last_words
        self.child: Child | None = None
        self.url = ""
        self.api_key = ""
        self._start_timeout_s = start_timeout_s
        self._log_start = 0
        self._told = False
        """Whether the URL was known before the child was started."""

    def new_key(self) -> Path:
        """Make a key and the file that carries it to the child."""
        self.api_key = secrets.token_urlsafe(32)
        write_private(self.place.key_file, self.api_key.encode())
        return self.place.key_file

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, url: str = "") -> None:
        """Start the child. Raises EngineStartError.

        `url` is where it will answer; without one it writes that to the ready file.
        """
        place = self.place
        place.ready_file.unlink(missing_ok=True)
        self.url, self._told = url, bool(url)
        self._log_start = causes.size(place.log)
        try:
            self.child = await place.spawn(argv, env={**place.env, **(env or {})}, log=place.log)
        except OSError as error:
            self.forget_files()
            raise EngineStartError(f"{place.name}: its process could not be started: {error}") from error

    async def ready(self, served_name: str) -> None:
        """Wait for its URL and for one token. Raises EngineStartError, with the log's tail if it ended."""
        if self.child is None:
            raise EngineStartError(f"{self.place.name} was not started")
        answering = asyncio.ensure_future(self._answer(served_name))
        ending = asyncio.ensure_future(self.child.wait())
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise self._ended(ending.result())
            await answering
        except TimeoutError:
            raise self._late() from None
        except httpx.TransportError as error:
            await asyncio.wait({ending}, timeout=DYING_S)
            if ending.done():
                raise self._ended(ending.result()) from error
            raise EngineStartError(f"{self.place.name} at {self.url} does not answer: {error!r}") from error
        finally:
            for task in (answering, ending):
                task.cancel()
            await asyncio.gather(answering, ending, return_exceptions=True)
        self.forget_files()

    async def _answer(self, served_name: str) -> None:
        while not self.url:
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                self.url = msgspec.json.decode(self.place.ready_file.read_bytes(), type=ReadyFile).url
                break
            await asyncio.sleep(POLL_S)
        if self._told:
            await self._listening()
        async with readiness.client(self.url, self.api_key) as http:
            await self._answers(http, served_name)

    async def _listening(self) -> None:
        host, port = split_address(self.url.partition("://")[2])
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return
            await asyncio.sleep(CONNECT_POLL_S)

    def _ended(self, status: int | None) -> EngineStartError:
        cause, lines = self._last_words(self.place.log, self._log_start, status)
        how = "" if status is None else f" (exit status {status})" if status >= 0 else f" (signal {-status})"
        message = f"{self.place.name} ended before it was ready{how}"
        return EngineStartError(f"{message}: {cause}" if cause else message, log_tail=lines, cause=cause)

    def _late(self) -> EngineStartError:
        lines = causes.tail(self.place.log, self._log_start)
        return EngineStartError(f"{self.place.name} was not ready after {self._start_timeout_s:g} s", log_tail=lines)

    async def stop(self, grace_s: float) -> None:
        """End the child; returns when nothing of it is left."""
        child, self.child = self.child, None
        if child is not None:
            await child.stop(grace_s)
        self.forget_files()

    def forget_files(self) -> None:
        """Remove the key and ready files: both have been read, or never will be."""
        self.place.key_file.unlink(missing_ok=True)
        self.place.ready_file.unlink(missing_ok=True)


class OfProcess:
    """The part of an `Engine` that its process tells."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process

    @property
    def url(self) -> str:
        return self._process.url

    @property
    def api_key(self) -> str:
        return self._process.api_key

    @property
    def child(self) -> Child | None:
        return self._process.child
