"""The answer of `/admin/v1/status`: what runs, and how it is."""

import msgspec

from tidegate.engines.start_times import StartTimes
from tidegate.types import GpuReport, ReplicaState


class ProcessStatus(msgspec.Struct, frozen=True):
    """A gateway or the chat page."""

    name: str
    state: ReplicaState
    pid: int | None
    url: str
    restarts: int
    memory_bytes: int | None
    ready_s: float | None
    """Seconds since it was ready; None if it is not."""
    cause: str = ""
    """Why it ended last, if it is not ready."""


class ReplicaStatusView(msgspec.Struct, frozen=True):
    """A replica and its engine's process."""

    id: str
    pool: str
    model: str
    engine: str
    state: ReplicaState
    url: str
    pid: int | None
    restarts: int
    memory_bytes: int | None
    ready_s: float | None
    slots: int | None
    context_tokens: int | None
    version: str
    in_flight: int
    requests: int
    failures: int
    health: str = ""
    """Why gateways do not ask it; empty while they do."""
    continues: bool = False
    """Whether it may go on with the answers of another that died."""
    cause: str = ""
    log_tail: tuple[str, ...] = ()
    """Its last words, if it was given up."""
    start_again: str = ""
    """The command that starts it again, if it was given up."""
    started_s: float | None = None
    """How long its start took."""
    start: StartTimes = StartTimes()
    """Where that time went."""
    slow: str = ""
    """What made the start slow, where that is known."""


class GatewayStatus(msgspec.Struct, frozen=True):
    """What a data process reported last."""

    pid: int
    snapshot: int
    connections: int
    in_flight: int
    requests: dict[str, int]
    report_age_s: float | None
    host: str = ""
    """What its host calls itself; empty for a process of this host."""
    listen: str = ""
    """`HOST:PORT` that it serves."""


class ModelStatus(msgspec.Struct, frozen=True):
    """A model as clients know it."""

    name: str
    aliases: tuple[str, ...]
    replicas: int
    ready: int


class Status(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    version: str
    pid: int
    home: str
    up_s: float
    ready: bool
    """Whether a request for every model would be served."""
    snapshot: int
    keys_required: bool
    memory_used_bytes: int
    memory_total_bytes: int
    urls: dict[str, str]
    processes: tuple[ProcessStatus, ...]
    models: tuple[ModelStatus, ...]
    replicas: tuple[ReplicaStatusView, ...]
    gateways: tuple[GatewayStatus, ...]
    gpus: tuple[GpuReport, ...] = ()
    """Of this machine."""
    notices: tuple[str, ...] = ()
    """What an operator may want to do some time."""
