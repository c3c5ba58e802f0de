"""The contract of a fleet: where replicas run that are no processes of this machine.

What a fleet places is an `Engine` like any other. Its `child` has no process id here; `child.wait()` returns when the
replica, or the machine it was on, is lost; a new one is then made like one that died here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate.config import RaySettings
from tidegate.engines.base import Child, Engine, EngineFacts, ModelFiles
from tidegate.types import DialectName


@dataclass(frozen=True)
class Order:
    """A replica that is to be placed."""

    replica: str
    digest: str
    """Of everything it is started with."""
    model: str
    engine: str
    options: Mapping[str, object]
    files: ModelFiles | None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_bytes: int = 0
    resources: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Adopted:
    """A replica that an earlier control had placed and found ready."""

    url: str
    api_key: str
    dialect: DialectName
    facts: EngineFacts
    child: Child


class Fleet(Protocol):
    """Places replicas elsewhere."""

    async def open(self, settings: RaySettings) -> None:
        """Reach it. Raises OperatorError, before anything is started."""

    def engine(self, order: Order) -> Engine:
        """A replica that `start` places; `stop` ends it."""

    def adopt(self, replica: str, digest: str) -> Adopted | None:
        """A replica of an earlier control's, as far as is known here; one that is gone ends at once."""

    def keep_only(self, digests: Mapping[str, str]) -> None:
        """End the replicas of earlier controls that are not among these (digest by name)."""

    def kill(self) -> None:
        """End every replica at once; nobody waits for it."""

    async def close(self) -> None:
        """Let go of it; replicas live on."""
