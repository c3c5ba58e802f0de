"""The fleet as this process sees it: the last snapshot, and what is in flight on each replica."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from tidegate import logs
from tidegate.dialects import DIALECTS, Dialect
from tidegate.errors import BadRequest, NotFound, Unavailable
from tidegate.gateway.dispatch import Job
from tidegate.gateway.health import Event, Failed, Failure, Health, Succeeded, after
from tidegate.gateway.limits import LimitState
from tidegate.gateway.router import best
from tidegate.http import Endpoint, Outbox
from tidegate.types import (
    FleetSnapshot,
    GatewayOptions,
    Load,
    ModelView,
    ReplicaReport,
    ReplicaState,
    ReplicaView,
    Sampling,
)

EMBEDDINGS: Final = "/v1/embeddings"
UNREACHABLE: Final = 3
"""The rank of replicas that nobody can connect to."""
LAST_RESORT_S: Final = 1.0
"""How often a request may try a replica that nobody can connect to, where there is no other."""
_SUCCEEDED: Final = Succeeded()


class Replica:
    """One replica, alive across snapshots for as long as its address and version stay."""

    __slots__ = (
        "_ailing",
        "_changed",
        "_head_lines",
        "_heads",
        "_now",
        "answer_line",
        "dialect",
        "endpoint",
        "extra_paths",
        "failures",
        "health",
        "in_flight",
        "jobs",
        "kv_tokens",
        "limit",
        "limits",
        "limits_by",
        "load",
        "most",
        "name",
        "outs",
        "peers",
        "progress",
        "rank",
        "requests",
        "returns",
        "room",
        "search_at",
        "served_name",
        "set_by_hand",
        "tokens",
        "tried_s",
        "view",
    )

    def __init__(
        self,
        view: ReplicaView,
        options: GatewayOptions,
        *,
        now: Callable[[], float],
        changed: Callable[["Replica", Health], None],
        outbox: Outbox | None = None,
    ) -> None:
        self.endpoint = Endpoint(view.url, connect_timeout_s=options.connect_timeout_s, outbox=outbox)
        self.in_flight = self.requests = self.failures = 0
        self.limit: float | None = None
        """Most requests at once; None bounds nothing."""
        self.room = float("inf")
        """The same as a whole number."""
        self.limits = LimitState()
        self.limits_by: object = None
        """What `limits` was begun with."""
        self.set_by_hand: int | None = None
        """The limit that an operator has set."""
        self.kv_tokens: int | None = None
        """Tokens that its cache holds for this process, if known."""
        self.load: Load | None = None
        """What it said of itself last."""
        self.jobs: dict[Job[Replica], None] = {}
        """Requests that it has."""
        self.search_at = float("inf")
        """With so many requests it matters how many it can have, and that is not known."""
        self.most = 0
        """The most requests at once since it was looked at last."""
        self.tokens = 0
        """Tokens that its requests may come to."""
        self._now, self._changed = now, changed
        self.health = Health()
        self._ailing = False
        self.rank = 0
        """`health.rank`, at hand."""
        self.peers: Sequence[Replica] = ()
        """The other replicas of its pool."""
        self.progress = 0
        """Grows whenever something of it is known to have moved."""
        self.outs: dict[str, int] = {}
        """How often it was taken out, by reason."""
        self.returns = 0
        """How often it came back, or began anew: what was found out about it before may no longer be so."""
        self.tried_s = float("-inf")
        """When it was last tried although nobody can connect to it."""
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
        self._heads: dict[str | tuple[str, int], bytes] = {}
        self.name = view.id.encode("latin-1")
        self.answer_line = b"x-tidegate-replica: %b\r\n" % self.name
        """The header by which a client sees who answered."""

    @property
    def pool(self) -> str:
        return self.view.pool

    def head(self, path: str, priority: int = 0) -> bytes:
        """What every JSON request to `path` begins with; its own headers follow.

        `priority` is told to engines that take one: 0 is what they assume.
        """
        key = (path, priority) if priority and self.view.priorities else path
        head = self._heads.get(key)
        if head is None:
            head = b"POST %b HTTP/1.1\r\n%b" % (path.encode("latin-1"), self._head_lines)
            if key is not path:
                head += b"x-vllm-priority: %d\r\n" % priority
            self._heads[key] = head
        return head

    def answers(self, path: str) -> bool:
        """Whether this kind of engine may be asked for a path."""
        if path == EMBEDDINGS and not self.view.embeddings:
            return False
        return path in self.dialect.paths or path in self.extra_paths

    # health

    def succeeded(self) -> None:
        """It gave a whole answer that is no 5xx."""
        self.progress += 1
        if self._ailing:
            self.take(_SUCCEEDED)

    def failed(self, kind: str) -> None:
        """It did not: one of `health.Failure`. A refusal of the request itself (4xx, 501) is no failure."""
        self.take(Failed(Failure(kind)))

    def take(self, event: Event) -> None:
        """Bring what is known of its health up to date."""
        before = self.health
        alone = not any(peer.rank < 2 and peer.view.state is ReplicaState.READY for peer in self.peers)
        self.health = after(before, event, self._now(), alone=alone)
        self.rank, self._ailing = self.health.rank, not self.health.sound
        if self.health.out != before.out:
            if before.out is None and self.health.out is not None:
                self.outs[self.health.out] = self.outs.get(self.health.out, 0) + 1
            elif self.health.out is None:
                self.began_anew()
        if self.health.out != before.out or self.rank != before.rank:
            self._changed(self, before)

    def began_anew(self) -> None:
        """Its process is, or may be, another one: no connection of before is used again."""
        self.returns += 1
        self.endpoint.close_idle()
        self.limits_by = None

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            id=self.view.id,
            in_flight=self.in_flight,
            requests=self.requests,
            failures=self.failures,
            reachable=self.rank != UNREACHABLE and not self.health.doubt,
            health=self.health.out or "",
            outs=dict(self.outs),
            limit=None if self.limit is None else int(self.limit),
            by_class=dict(Counter(flight.klass.name for flight in self.jobs)),
            running=self.load.running if self.load is not None else None,
            waiting=self.load.waiting if self.load is not None else None,
            kv_usage=self.load.kv_usage if self.load is not None else None,
        )


class ModelEntry:
    """A model, and the replicas that serve it."""

    __slots__ = ("_askable", "_now", "defaults", "name", "replicas", "view")

    def __init__(self, view: ModelView, replicas: tuple[Replica, ...], now: Callable[[], float]) -> None:
        self._now = now
        self._askable: dict[str, list[Replica]] = {}
        self.see(view, replicas)

    def see(self, view: ModelView, replicas: tuple[Replica, ...]) -> None:
        """Take what a new snapshot says of it; requests in flight hold on to it."""
        self.view = view
        self.name = view.name
        self.defaults = view.defaults if view.defaults != Sampling() else None
        self.replicas = replicas
        self._askable.clear()

    @property
    def ready(self) -> bool:
        """Whether a request would be served."""
        return any(r.view.state is ReplicaState.READY and r.rank < UNREACHABLE for r in self.replicas)

    @property
    def context_tokens(self) -> int | None:
        """The most tokens that a request may have wherever it is sent; the model's own limit until engines tell."""
        told = [r.view.context_tokens for r in self.replicas if r.view.context_tokens]
        return min(told) if told else self.view.context_tokens

    @property
    def knows_tools(self) -> bool:
        """Whether some engine may be given tools; the model without any would answer as if there were none."""
        return any(r.view.tools is not False for r in self.replicas) or not self.replicas

    def servable(self) -> list[Replica]:
        """The replicas that may be given new work of some kind."""
        return best([r for r in self.replicas if r.view.state is ReplicaState.READY and r.rank < UNREACHABLE])

    def candidates(self, path: str, refused: frozenset[str]) -> list[Replica]:
        """The replicas that may be asked next, none of those `refused`; empty where nobody can be asked now.

        The sound are asked first, then those under suspicion. One that nobody can connect to is tried only where there
        is no other, by one request a second; the others learn at once that there is nobody.

        Raises NotFound or BadRequest where this model's engines do not have the path at all.
        """
        askable = self._askable.get(path) or self.askable(path)
        if refused:
            askable = best([r for r in self._answering(path) if r.rank < UNREACHABLE and r.view.id not in refused])
        if not askable:
            last = self._last_resort(path, refused)
            return [last] if last is not None else []
        return askable

    def askable(self, path: str) -> list[Replica]:
        """The replicas that may be given new work on this path: the best there are, none that nobody can connect to.

        Raises NotFound or BadRequest where this model's engines do not have it at all.
        """
        found = self._askable.get(path)
        if found:
            return found
        found = self._askable[path] = best([r for r in self._answering(path) if r.rank < UNREACHABLE])
        if not found and self.replicas and not any(r.answers(path) for r in self.replicas):
            if path == EMBEDDINGS:
                raise BadRequest(
                    f"the model {self.name!r} does not make embeddings; it answers chat and text completions",
                    code="embeddings_not_supported",
                    param="model",
                )
            raise NotFound(f"the engines of {self.name!r} do not have {path}", code="unknown_path")
        return found

    def refresh(self) -> None:
        """The rank of a replica has changed."""
        self._askable.clear()

    def _answering(self, path: str) -> list[Replica]:
        return [r for r in self.replicas if r.view.state is ReplicaState.READY and r.answers(path)]

    def _last_resort(self, path: str, refused: frozenset[str]) -> Replica | None:
        now = self._now()
        for replica in self._answering(path):
            if (
                replica.rank == UNREACHABLE
                and replica.view.id not in refused
                and now - replica.tried_s >= LAST_RESORT_S
            ):
                replica.tried_s = now
                return replica
        return None


class Fleet:
    """Models by every name they have, and replicas by id."""

    def __init__(self, now: Callable[[], float], outbox: Outbox | None = None) -> None:
        """`now` gives monotonic seconds; `outbox` is where what engines are asked waits for the end of the loop's turn."""
        self._now = now
        self._outbox = outbox
        self.on_change: Callable[[Replica], None] | None = None
        """Called when the rank of a replica has changed."""
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
                replica = Replica(view, snapshot.options, now=self._now, changed=self._changed, outbox=self._outbox)
            else:
                replica.see(view, snapshot.options)
            replicas[view.id] = replica
        for key, old in self.replicas.items():
            if replicas.get(key) is not old:
                old.endpoint.close()
        for replica in replicas.values():
            replica.peers = [r for r in replicas.values() if r.view.pool == replica.view.pool and r is not replica]
        self.snapshot, self.replicas = snapshot, replicas
        before, self.models = self.models, {}
        for model in snapshot.models:
            serving = tuple(r for r in replicas.values() if r.view.model == model.name)
            entry = before.pop(model.name, None)
            if entry is None:
                entry = ModelEntry(model, serving, self._now)
            else:
                entry.see(model, serving)
            self.models[model.name] = entry
        for gone in before.values():
            gone.see(gone.view, ())
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

    def _changed(self, replica: Replica, before: Health) -> None:
        entry = self.models.get(replica.view.model)
        if entry is not None:
            entry.refresh()
        if replica.health.out is not None and before.out is None:
            logs.get().warning("replica taken out", replica=replica.view.id, reason=replica.health.out.value)
        elif replica.health.out is None and before.out is not None:
            logs.get().info("replica back", replica=replica.view.id, was=before.out.value)
        if self.on_change is not None:
            self.on_change(replica)

    def close(self) -> None:
        """Close every idle connection."""
        for replica in self.replicas.values():
            replica.endpoint.close()
