"""The contract of an engine: a life cycle and a URL.

`start` begins, `ready` returns once a real one-token answer came, `stop` ends it. `url`, `api_key` and `dialect` say how
it is asked, `child` which process it is. How a child process is made is handed in (`Spawn`), so that this package starts
processes only through the fleet that owns them, and tests can watch it do so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.engines.start_times import StartTimes
from tidegate.types import DialectName, ProcessId


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine, checked and whole."""

    name: str
    """Serving name."""
    path: Path
    """The GGUF file, or the safetensors folder."""
    quantisation: str
    digest: str
    """SHA-256 over weights, quantisation and template: the version."""
    context_tokens: int | None = None
    """Positions the model was trained on."""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineFacts:
    """What is known of an engine once it is ready."""

    slots: int | None
    context_tokens: int | None
    """Tokens of one request (prompt plus answer)."""
    started_s: float
    """Seconds from start to the first answer; 0 for one that was running already."""
    embeddings: bool = False
    tools: bool | None = None
    """Whether its chat template knows tools; None where it does not tell."""
    served_name: str = ""
    version: str = ""
    continues: bool = False
    """Whether it was seen to go on with a half-written answer as it would have gone on with its own."""
    priorities: bool = False
    """Whether it may be told how urgent a request is, by vLLM's header."""
    start: StartTimes = field(default_factory=StartTimes)
    """Where the time of its start went."""


class ReadyFile(msgspec.Struct, frozen=True):
    """What an engine's process writes, as JSON, to the file it was told, once it listens."""

    pid: int
    url: str


class Child(Protocol):
    """A running child process. It outlives the process that started it, and can be found again by its `id`."""

    @property
    def id(self) -> ProcessId | None:
        """Which process of this machine it is; None for one of another machine."""

    @property
    def why(self) -> str:
        """Of one elsewhere: what it waits for, or why it ended; else empty, and its log may say."""

    def alive(self) -> bool: ...

    async def wait(self) -> int | None:
        """Wait for its end; its exit status (negative: the signal), or None where that cannot be known (adopted)."""

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after `grace_s`; returns when it is gone and reaped."""


class Spawn(Protocol):
    """Starts a child in a session of its own, its output appended to `log`."""

    async def __call__(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> Child: ...


class Engine(Protocol):
    """One engine. A replica is one of these, or a URL."""

    dialect: DialectName

    @property
    def url(self) -> str:
        """`http://HOST:PORT`; known once started."""

    @property
    def api_key(self) -> str:
        """The key that must be sent with every request; empty for none."""

    @property
    def child(self) -> Child | None:
        """The process, for engines that have one."""

    async def start(self) -> None:
        """Begin. Raises EngineStartError where that is known to be impossible (ModelError with the arithmetic)."""

    async def ready(self) -> EngineFacts:
        """Wait for a real one-token answer. Raises EngineStartError with the log's tail when the engine dies first."""

    async def stop(self, grace_s: float) -> None:
        """End it; returns when nothing of it is left."""
