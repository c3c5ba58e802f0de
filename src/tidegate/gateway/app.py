"""The gateway: what each path of the data port does, and what every request goes through first."""

import itertools
import random
import re
import secrets
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import generate_latest

from tidegate import logs, openai
from tidegate.errors import Forbidden, MethodNotAllowed, NotFound, RequestError, Unavailable
from tidegate.gateway import admission
from tidegate.gateway.accounting import Accounting
from tidegate.gateway.addresses import FORWARDED, Proxies, in_networks, is_loopback
from tidegate.gateway.auth import Admitted, Gatekeeper
from tidegate.gateway.classes import Classifier
from tidegate.gateway.cors import Cors
from tidegate.gateway.dispatch import NO_REPLICA_RETRY_S
from tidegate.gateway.field_limits import asked_tokens, bound_answer
from tidegate.gateway.fleet import Fleet, ModelEntry, Replica
from tidegate.gateway.flights import Flights
from tidegate.gateway.health import Failure
from tidegate.gateway.intake import Intake, read_intake
from tidegate.gateway.lines import Lines
from tidegate.gateway.metrics import Metrics, ModelCounters
from tidegate.gateway.observer import Observer
from tidegate.gateway.proxy import Flight
from tidegate.gateway.quotas import BYTES_PER_TOKEN, Quotas
from tidegate.gateway.redis_leases import Leasing
from tidegate.gateway.request_files import RequestFiles
from tidegate.gateway.respond import answer_error, answer_json
from tidegate.gateway.shared_metrics import Shares, process_metrics
from tidegate.gateway.spreads import Spreads
from tidegate.gateway.tokens import answer_tokens, read_tokens_request
from tidegate.http import Exchange, HttpServer, Limits, Outbox, as_lines
from tidegate.types import ClassView, DataReport, FleetSnapshot, ProcessId

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
MODELS: Final = "/v1/models"


class Gateway:
    """One data process. `apply` gives it its fleet; `server` is what clients connect to."""

    def __init__(
        self,
        snapshot: FleetSnapshot,
        *,
        listen_host: str,
        process: ProcessId,
        files: RequestFiles | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`files` are where lines go once a snapshot asks for them; their end is the caller's.

        With `shares`, /metrics answers for all data processes.
        """
        clock: Callable[[], float] = lambda: self.now()  # noqa: E731, PLW0108 - `now` may be replaced
        outbox = Outbox()
        self.fleet = Fleet(clock, outbox)
        self.observer = Observer(now=clock, stuck_s=lambda: self.fleet.snapshot.options.stuck_s)
        self.fleet.on_change = self._changed
        self.metrics = Metrics()
        self._counters: dict[str, ModelCounters] = {}
        self.accounting = Accounting(self.metrics, files)
        self.quotas = Quotas()
        self.random: Callable[[], float] = random.Random().random  # noqa: S311 - balances load, guards nothing
        self.now: Callable[[], float] = time.monotonic
        self._listen_host = listen_host
        self._process = process
        self._created = int(time.time())
        self._id_prefix = f"req-{secrets.token_hex(5)}-".encode()
        self._ids = itertools.count(1)
        self._routes: dict[str, tuple[bytes, Callable[[Exchange], None]]] = {
            MODELS: (b"GET", self._models),
            "/health": (b"GET", self._health),
            "/ready": (b"GET", self._ready),
            "/metrics": (b"GET", self._metrics),
            "/tokenize": (b"POST", self._tokens),
            "/detokenize": (b"POST", self._tokens),
        }
        self.server = HttpServer(self.handle, refusal=_refusal, outbox=outbox)
        self.lines = Lines(self.fleet, self.observer, clock)
        self.flights = Flights(
            random=self.random,
            now=self.now,
            options=lambda: self.fleet.snapshot.options,
            ended=self.accounting.ended,
            settle=self.accounting.settle,
            searched=self.lines.searched,
        )
        self.leasing = Leasing(self.quotas, self.flights.run)
        self.apply(snapshot)
        self.metrics.connections = lambda: len(self.server.connections)
        self.metrics.classes = self.lines.waiting
        self._spreads = Spreads(self.metrics)
        self.metrics.replicas = lambda: [replica.report() for replica in self.fleet.replicas.values()]
        self._registry = process_metrics()
        self._registry.register(self.metrics)
        self._shares = shares

    def _changed(self, replica: Replica) -> None:
        """A replica's health is another one."""
        self.observer.changed(replica)
        self.lines.changed(replica)
        if replica.health.out is Failure.STUCK:
            self.flights.leave(replica)

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Swap in a snapshot; requests in flight go on as they began."""
        self.fleet.apply(snapshot)
        self._classifier = Classifier(snapshot.classes, snapshot.rules)
        self._class_lines = {one.name: b"x-tidegate-class: %b\r\n" % one.name.encode() for one in snapshot.classes}
        self._tenants = {tenant.name: tenant for tenant in snapshot.tenants}
        self.lines.apply(snapshot)
        self.observer.follow(self.fleet.replicas.values())
        self.accounting.apply(snapshot)
        options = snapshot.options
        self.server.limits = Limits(**{name: getattr(options, name) for name in Limits.__struct_fields__})
        self.leasing.apply(snapshot.redis)
        self.quotas.apply(snapshot.keys, processes=options.processes)
        self._gatekeeper = Gatekeeper(snapshot, self._listen_host, self.quotas)
        self._proxies = Proxies(options.trusted_proxies)
        self._cors = Cors(options.cors_origins) if options.cors_origins else None
        self._engine_paths = self.fleet.paths()

    # every request

    def handle(self, exchange: Exchange) -> None:
        """Answer a request now, or begin to. No request ends the process."""
        try:
            self._route(exchange)
        except RequestError as error:
            identifier = self._request_id(exchange)
            self._refuse(exchange, error, identifier)
            answer_error(exchange, error, [(b"x-request-id", identifier)])
        except Exception:  # noqa: BLE001 - the border of the data path: one request's bug is that request's 500, and logged
            logs.get().exception("request failed", path=exchange.request.path[:100])
            answer_error(exchange, RequestError("the gateway failed; its log says why", code="internal_error"))

    def _route(self, exchange: Exchange) -> None:
        request = exchange.request
        path = request.path
        if self._cors is not None and self._cors.answer(exchange):
            return
        if path in self._engine_paths:
            if request.method != b"POST":
                self._check_method(exchange, b"POST")
            self._forward(exchange, path, self._gatekeeper.admit(request))
            return
        route = self._routes.get(path)
        if route is not None:
            method, answer = route
            self._check_method(exchange, method)
            answer(exchange)
        elif path.startswith(f"{MODELS}/"):
            self._check_method(exchange, b"GET")
            self._model(exchange, unquote(path.removeprefix(f"{MODELS}/")))
        else:
            raise NotFound(f"there is no {path[:100]} here", code="unknown_path")

    @staticmethod
    def _check_method(exchange: Exchange, wanted: bytes) -> None:
        got = exchange.request.method
        if got != wanted and not (got == b"HEAD" and wanted == b"GET"):
            allowed = b"GET, HEAD" if wanted == b"GET" else wanted
            exchange.extra_headers = as_lines(exchange.extra_headers) + b"allow: %b\r\n" % allowed
            raise MethodNotAllowed(
                f"{got.decode('latin-1')} is not allowed here, {wanted.decode()} is", code="method_not_allowed"
            )

    def _refuse(self, exchange: Exchange, error: RequestError, identifier: bytes) -> None:
        self.accounting.refused(
            at_s=time.time(),
            request_id=identifier.decode("latin-1"),
            caller=self._gatekeeper.caller(exchange.request),
            path=exchange.request.path,
            status=error.status,
            code=error.code or "error",
            client=self.client_address(exchange),
        )

    def _request_id(self, exchange: Exchange) -> bytes:
        given = exchange.request.headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return b"%b%x" % (self._id_prefix, next(self._ids))

    def client_address(self, exchange: Exchange) -> str:
        """Where a request comes from: its peer, or the client that a trusted proxy names."""
        return self._proxies.client(exchange.peer, exchange.request.headers)

    # engines

    def _forward(self, exchange: Exchange, path: str, admitted: Admitted) -> None:
        if self.fleet.snapshot.draining:
            raise Unavailable("the gateway is shutting down", code="draining", retry_after_s=1.0)
        intake = read_intake(path, exchange.request.body, self.fleet)
        classifier = self._classifier
        if len(intake.body) < classifier.plain_bytes and not admitted.asked and not admitted.outright:
            klass = classifier.default
        else:
            klass = self._class_of(admitted, intake)
        if klass.max_tokens_most or klass.max_tokens or self._tenants:
            bound_answer(intake, klass, self._tenants.get(admitted.caller.tenant))
        lease = admission.admit(exchange, admitted, intake, self._class_lines[klass.name])
        name = intake.model.name
        counters = self._counters.get(name)
        if counters is None:
            counters = self._counters[name] = self.metrics.model(name)
        identifier = self._request_id(exchange)
        line = self.lines.of(name)
        exchange.client = self.client_address(exchange)
        flight = Flight(
            self.flights,
            exchange,
            intake,
            identifier,
            counters=counters,
            caller=admitted.caller,
            klass=klass,
            line=line,
            lease=lease,
        )
        try:
            self.flights.launch(flight)
        except RequestError:
            if lease is not None:
                lease.cancel()
            raise
        if line.queue.count:
            self.lines.tend_soon()

    def _class_of(self, admitted: Admitted, intake: Intake) -> ClassView:
        classifier = self._classifier
        if admitted.outright:
            return classifier.classes.get(admitted.outright, classifier.default)
        return classifier.pick(
            admitted.asked,
            admitted.classes,
            stream=intake.stream,
            tenant=admitted.caller.tenant,
            model=intake.model.name,
            path=intake.path,
            prompt_tokens=len(intake.body) // BYTES_PER_TOKEN,
            max_tokens=asked_tokens(intake) if classifier.asks_tokens and not intake.defaulted else 0,
        )

    def _tokens(self, exchange: Exchange) -> None:
        admitted = self._gatekeeper.admit(exchange.request)
        model, request = read_tokens_request(exchange.request.path, exchange.request.body, self.fleet)
        admitted.check_model(model)
        identifier = self._request_id(exchange)

        async def answer() -> None:
            headers = [(b"x-request-id", identifier)]
            try:
                answer_json(
                    exchange, await answer_tokens(exchange.request.path, model, request, self.random()), headers
                )
            except RequestError as error:
                self._refuse(exchange, error, identifier)
                answer_error(exchange, error, headers)

        task = self.flights.run(answer())
        exchange.on_disconnect = lambda: (task.cancel(), None)[1]

    # the gateway's own

    def _models(self, exchange: Exchange) -> None:
        admitted = self._gatekeeper.admit(exchange.request)
        models = [self._entry(model) for model in self.fleet.models.values() if admitted.may_use(model)]
        answer_json(exchange, {"object": "list", "data": models})

    def _model(self, exchange: Exchange, name: str) -> None:
        admitted = self._gatekeeper.admit(exchange.request)
        model = self.fleet.model(name)
        admitted.check_model(model)
        answer_json(exchange, self._entry(model))

    def _entry(self, model: ModelEntry) -> dict[str, object]:
        return openai.model_object(model.view, model.context_tokens, self._created)

    def _health(self, exchange: Exchange) -> None:
        answer_json(exchange, {"status": "ok"})

    def _ready(self, exchange: Exchange) -> None:
        waiting = [entry.name for entry in self.fleet.models.values() if not entry.ready]
        if self.fleet.snapshot.draining or self.server.draining:
            raise Unavailable("the gateway is shutting down", code="draining", retry_after_s=NO_REPLICA_RETRY_S)
        if waiting or not self.fleet.models:
            names = ", ".join(waiting) or "any model"
            raise Unavailable(
                f"no replica is ready for {names}", code="no_replica_ready", retry_after_s=NO_REPLICA_RETRY_S
            )
        answer_json(exchange, {"status": "ready"})

    def _metrics(self, exchange: Exchange) -> None:
        client = self.client_address(exchange)
        if not is_loopback(client) and not in_networks(client, self.fleet.snapshot.options.metrics_allow):
            raise Forbidden("metrics are for loopback and the networks in gateway.metrics_allow", code="forbidden")
        if is_loopback(client):
            self._gatekeeper.check_host(exchange.request)
        if not (FORWARDED.isdisjoint(exchange.request.headers) or self._proxies.trusts(exchange.peer)):
            raise Forbidden("metrics are not for forwarded requests", code="forbidden")
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        if self._shares is None:
            exchange.respond(200, headers, generate_latest(self._registry))
            return
        task = self.flights.run(self._shared_metrics(exchange, self._shares, headers))
        exchange.on_disconnect = lambda: (task.cancel(), None)[1]

    async def _shared_metrics(self, exchange: Exchange, shares: Shares, headers: list[tuple[bytes, bytes]]) -> None:
        try:
            exchange.respond(200, headers, await shares.answer(self.metrics.collect))
        except OSError as error:
            reason = f"the metrics of all processes cannot be put together: {error.strerror}"
            answer_error(exchange, Unavailable(reason, code="metrics_unavailable"))

    # control

    def report(self) -> DataReport:
        """What control is told every second."""
        return DataReport(
            process=self._process,
            snapshot=self.fleet.snapshot.number,
            connections=len(self.server.connections),
            in_flight=self.metrics.in_flight,
            requests=self.metrics.by_outcome(),
            replicas=tuple(replica.report() for replica in self.fleet.replicas.values()),
            classes=self.lines.report(),
            usage=self.accounting.take_usage(),
            spreads=self._spreads.take(),
            gpus=tuple(self.metrics.gpus()),
        )

    def unsent(self, report: DataReport) -> None:
        """A report did not reach control: the next one tells what was used."""
        self.accounting.give_back(report.usage)
        self._spreads.give_back(report.spreads)

    async def close(self, drain_timeout_s: float) -> bool:
        """Drain and end; true if every answer was finished."""
        whole = await self.server.drain(drain_timeout_s)
        self.lines.close()
        await self.flights.close()
        await self.observer.close()
        self.fleet.close()
        return whole


def _refusal(status: int, reason: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """What a client is told whose request could not be parsed, in the shape it can read."""
    error = RequestError(reason, code="bad_request" if status < 500 else "not_supported")
    body = {**openai.error_object(error), "type": "invalid_request_error" if status < 500 else "api_error"}
    return [openai.JSON], openai.write_fields({"error": body})
