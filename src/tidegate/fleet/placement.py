"""What is said about a replica between control and the node it is placed on: JSON, one message a line.

Control tells its bridge to the cluster what to place; the bridge asks an actor on a node; the actor starts
`python -m tidegate.cli.on_node` there, gives it a `Job`, and passes on what it says.
"""

from pathlib import Path
from typing import Any

import msgspec

from tidegate.engines.base import EngineFacts, ModelFiles
from tidegate.types import DialectName


class Files(msgspec.Struct, frozen=True):
    """A model, at the same path on every node."""

    name: str
    path: str
    quantisation: str
    digest: str
    context_tokens: int | None = None
    aliases: tuple[str, ...] = ()

    def here(self) -> ModelFiles:
        """As engines take it."""
        return ModelFiles(self.name, Path(self.path), self.quantisation, self.digest, self.context_tokens, self.aliases)


def files_of(files: ModelFiles | None) -> Files | None:
    """As it travels."""
    if files is None:
        return None
    return Files(files.name, str(files.path), files.quantisation, files.digest, files.context_tokens, files.aliases)


class Job(msgspec.Struct, frozen=True):
    """What a node is asked to run."""

    version: str
    """Of the code; a node with another one refuses."""
    replica: str
    life: str
    """Of this one placement: no two have the same."""
    model: str
    engine: str
    options: dict[str, Any]
    files: Files | None
    cores: int
    """What it may take of the node's."""
    host: str = ""
    """The address that it listens on; the actor knows it."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The engine's process runs."""

    pid: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It answered. It can be asked over plain HTTP, from wherever a gateway is."""

    url: str
    api_key: str
    dialect: DialectName
    facts: EngineFacts


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """It is no more, or never was."""

    cause: str
    log_tail: tuple[str, ...] = ()
    hint: str = ""
    mend: bool = False
    """Whether an operator has to mend something before it can start."""
    status: int | None = None


Said = Started | Ready | Ended


class Place(msgspec.Struct, frozen=True, tag="place"):
    """To the bridge: place a replica, or go on with the one that is there with the same digest."""

    job: Job
    digest: str
    cpus: float
    gpus: float
    memory_bytes: int
    resources: dict[str, float]


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """To the bridge: a replica from before is in use; tell when it ends."""

    replica: str
    life: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To the bridge: end a life, and say so."""

    life: str
    grace_s: float


class KeepOnly(msgspec.Struct, frozen=True, tag="keep-only"):
    """To the bridge: end whatever else an earlier control has placed."""

    digests: dict[str, str]


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """To the bridge: end everything, at once."""


Told = Place | Watch | Stop | KeepOnly | Kill


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    """From the bridge: the cluster answers."""

    address: str
    version: str
    nodes: int
    cpus: float
    gpus: float


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """From the bridge, at its end: why there is no cluster."""

    why: str
    hint: str = ""


class Word(msgspec.Struct, frozen=True, tag="word"):
    """From the bridge: something about one life."""

    life: str
    said: Said
    node: str = ""


class Waits(msgspec.Struct, frozen=True, tag="waits"):
    """From the bridge: a life finds no room in the cluster yet."""

    life: str
    wants: str
    free: str


Heard = Connected | Refused | Word | Waits
