"""The fleet as this process sees it: the last snapshot, and what is in flight on each replica."""

from collections.abc import Iterable
from typing import Final

import msgspec

from tidegate.dialects import DIALECTS, Dialect
from tidegate.errors import BadRequest, NotFound, Unavailable
from tidegate.http import Endpoint
from tidegate.types import FleetSnapshot, GatewayOptions, ModelView, ReplicaReport, ReplicaState, ReplicaView, Sampling

EMBEDDINGS: Final = "/v1/embeddings"


class Replica:
    """One replica, alive across snapshots for as long as its address and version stay."""

    __slots__ = (
        "_head_lines",
        "_heads",
        "answer_line",
        "dialect",
        "endpoint",
        "extra_paths",
        "failures",
        "in_flight",
        "requests",
        "served_name",
        "unreachable_since",
        "view",
    )

    def __init__(self, view: ReplicaView, options: GatewayOptions) -> None:
        self.endpoint = Endpoint(view.url, connect_timeout_s=options.connect_timeout_s)
        self.in_flight = self.requests = self.failures = 0
        self.unreachable_since: float | None = None
        """Loop time of the first of the connection failures that nothing good has followed."""
        self.see(view, options)

    def see(self, view: ReplicaView, options: GatewayOptions) -> None:
        """Take what a new snapshot says of it."""
        self.view = view
        self.endpoint.connect_timeout_s = options.connect_timeout_s
        if view.state is not ReplicaState.READY:
            self.endpoint.close_idle()
        self.extra_paths = frozenset(options.extra_paths)
        self.dialect: Dialect = DIALECTS[view.dialect]
        self.served_name = msgspec.json.encode(view.served_name) if view.served_name else b""
        """The model's name at the engine, as JSON; empty where any does."""
        key = b"authorization: Bearer %b\r\n" % view.api_key.encode("latin-1") if view.api_key else b""
        self._head_lines = b"host: %b\r\n%bcontent-type: application/json\r\n" % (self.endpoint.host_header, key)
        self._heads: dict[str, bytes] = {}
        self.answer_line = b"x-tidegate-replica: %b\r\n" % view.id.encode("latin-1")
        """The header by which a client sees who answered."""

    def head(self, path: str) -> bytes:
        """What every JSON request to `path` begins with; its own headers follow."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = b"POST %b HTTP/1.1\r\n%b" % (path.encode("latin-1"), self._head_lines)
        return head

    def answers(self, path: str) -> bool:
        """Whether this kind of engine may be asked for a path."""
        if path == EMBEDDINGS and not self.view.embeddings:
            return False
        return path in self.dialect.paths or path in self.extra_paths

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            id=self.view.id,
            in_flight=self.in_flight,
            requests=self.requests,
            failures=self.failures,
            reachable=self.unreachable_since is None,
        )


class ModelEntry:
    """A model, and the replicas that serve it."""

    __slots__ = ("_askable", "defaults", "name", "replicas", "view")

    def __init__(self, view: ModelView, replicas: tuple[Replica, ...]) -> None:
        self.view = view
        self.name = view.name
        self.defaults = view.defaults if view.defaults != Sampling() else None
        self.replicas = replicas
        self._askable: dict[str, list[Replica]] = {}

    @property
    def ready(self) -> bool:
        """Whether a request would be served."""
        return any(replica.view.state is ReplicaState.READY for replica in self.replicas)

    @property
    def context_tokens(self) -> int | None:
        """The most tokens that a request may have wherever it is sent; the model's own limit until engines tell."""
        told = [r.view.context_tokens for r in self.replicas if r.view.context_tokens]
        return min(told) if told else self.view.context_tokens

    def askable(self, path: str) -> list[Replica]:
        """The replicas that may be given new work on this path.

        Raises NotFound or BadRequest where this model's engines do not have it at all.
        """
        found = self._askable.get(path)
        if found:
            return found
        found = self._askable[path] = [
            r for r in self.replicas if r.view.state is ReplicaState.READY and r.answers(path)
        ]
        if not found and self.replicas and not any(r.answers(path) for r in self.replicas):
            if path == EMBEDDINGS:
                raise BadRequest(
                    f"the model {self.name!r} does not make embeddings; it answers chat and text completions",
                    code="embeddings_not_supported",
                    param="model",
                )
            raise NotFound(f"the engines of {self.name!r} do not have {path}", code="unknown_path")
        return found


class Fleet:
    """Models by every name they have, and replicas by id."""

    def __init__(self) -> None:
        self.snapshot = FleetSnapshot(number=0)
        self.replicas: dict[str, Replica] = {}
        self.models: dict[str, ModelEntry] = {}
        self._by_name: dict[str, ModelEntry] = {}
        self.by_json: dict[bytes, ModelEntry] = {}
        """Models by their names as JSON has them, so that most requests need not decode theirs."""

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Swap in a snapshot. A replica that moved, or became another version, starts with nothing of its past."""
        replicas: dict[str, Replica] = {}
        for view in snapshot.replicas:
            replica = self.replicas.get(view.id)
            if replica is None or (replica.view.url, replica.view.version) != (view.url, view.version):
                replica = Replica(view, snapshot.options)
            else:
                replica.see(view, snapshot.options)
            replicas[view.id] = replica
        for key, old in self.replicas.items():
            if replicas.get(key) is not old:
                old.endpoint.close()
        self.snapshot, self.replicas = snapshot, replicas
        self.models = {
            model.name: ModelEntry(model, tuple(r for r in replicas.values() if r.view.model == model.name))
            for model in snapshot.models
        }
        self._by_name = {}
        self.by_json = {}
        for entry in self.models.values():
            for name in (entry.name, *entry.view.aliases):
                self._by_name.setdefault(name, entry)
                self.by_json.setdefault(msgspec.json.encode(name), entry)
                self._by_name.setdefault(name.lower(), entry)

    def model(self, name: str) -> ModelEntry:
        """The model of this name or alias. Raises NotFound, naming those there are; Unavailable before there is any."""
        if not self.models:
            raise Unavailable(
                "no model is here yet; it is being fetched or loaded", code="no_replica_ready", retry_after_s=2.0
            )
        entry = self._by_name.get(name) or self._by_name.get(name.lower())
        if entry is None:
            shown = name if len(name) <= 100 else f"{name[:100]}…"
            valid = ", ".join(self.names()) or "none yet"
            raise NotFound(
                f"the model {shown!r} does not exist here; the models are: {valid}",
                code="model_not_found",
                param="model",
            )
        return entry

    def names(self) -> Iterable[str]:
        """Every name a client may ask for, models before their aliases."""
        yield from self.models
        for entry in self.models.values():
            yield from (alias for alias in entry.view.aliases if self._by_name.get(alias) is entry)

    def paths(self) -> frozenset[str]:
        """Every path that any engine here may be asked for."""
        allowed: set[str] = set(self.snapshot.options.extra_paths)
        for dialect in {r.dialect.name: r.dialect for r in self.replicas.values()}.values() or DIALECTS.values():
            allowed |= dialect.paths
        return frozenset(allowed)

    def close(self) -> None:
        """Close every idle connection."""
        for replica in self.replicas.values():
            replica.endpoint.close()
