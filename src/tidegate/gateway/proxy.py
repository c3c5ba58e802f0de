"""One request on its way: asked of a replica, its answer passed on, its end recorded once.

A `Flight` is driven by callbacks: from the pool (`Reply`) and from the client's connection. What it passes on comes
in three kinds: the events of a stream (whole ones leave at once), a JSON body (as it comes), and a JSON body put
together from a stream.
"""

import asyncio
from typing import Final, Protocol

from tidegate import openai
from tidegate.errors import BadGateway, BadRequest, ConnectError, EngineError, RequestError, Unavailable
from tidegate.gateway.assemble import Assembly
from tidegate.gateway.fleet import Replica
from tidegate.gateway.intake import CHAT, Intake
from tidegate.gateway.metrics import ModelCounters
from tidegate.gateway.respond import answer_error
from tidegate.gateway.router import least_work_of_two
from tidegate.http import Connection, Exchange, ResponseHead
from tidegate.types import Outcome

TAIL_BYTES: Final = 64 * 1024
"""The most of an incomplete event that waits for its end; past it the bytes flow as they come."""
BUFFERED_BODY_BYTES: Final = 256 * 1024
"""A JSON body up to this size leaves in one write with its length; a larger one flows."""
UNREACHABLE_S: Final = 1.0
"""How long a replica that refused a connection is only asked when there is no other."""
NO_REPLICA_RETRY_S: Final = 2.0


class Host(Protocol):
    """What a flight needs of the gateway."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def now(self) -> float:
        """Monotonic seconds."""

    def spawn(self, connecting: "Flight", replica: Replica) -> asyncio.Task[None]:
        """Run `connecting.connect(replica)`."""


class Flight:
    """One request, from the choice of a replica to the record of its end."""

    _replica: Replica | None = None
    _connection: Connection | None = None
    _connecting: asyncio.Task[None] | None = None
    _head: ResponseHead | None = None
    _assembly: Assembly | None = None
    """Where the answer is put together from a stream that the client did not ask for."""
    _events = False
    """Whether events are being passed on."""
    _tail = b""
    _torn = False
    """Whether an event has left in pieces, so that what follows may be in the middle of it."""
    _status = 0
    _attempts = 0
    _first_s = 0.0
    _refused: frozenset[str] = frozenset()
    """Replicas that have failed this request."""

    def __init__(
        self, host: Host, exchange: Exchange, intake: Intake, request_id: bytes, counters: ModelCounters
    ) -> None:
        self._host = host
        self._exchange = exchange
        self._intake = intake
        self._id = request_id
        self._counters = counters
        self._started_s = host.now()

    # asking

    def launch(self) -> None:
        """Choose a replica and ask it. Raises RequestError where none can be asked; nothing has been counted then."""
        replica = self._choose()
        self._counters.in_flight += 1
        self._exchange.on_disconnect = self._client_gone
        self._ask(replica)

    def _choose(self) -> Replica:
        askable = self._intake.model.askable(self._intake.path)
        replica = least_work_of_two(askable, self._host.random)
        if replica is not None and replica.unreachable_since is None and not self._refused:
            return replica
        return self._choose_among([r for r in askable if r.view.id not in self._refused])

    def _choose_among(self, candidates: list[Replica]) -> Replica:
        long_ago = self._host.now() - UNREACHABLE_S
        good = [r for r in candidates if r.unreachable_since is None or r.unreachable_since < long_ago]
        replica = least_work_of_two(good or candidates, self._host.random)
        if replica is None:
            raise Unavailable(
                f"no replica of {self._intake.model.name!r} is ready; it is starting or being restarted",
                code="no_replica_ready",
                retry_after_s=NO_REPLICA_RETRY_S,
            )
        return replica

    def _ask(self, replica: Replica) -> None:
        self._replica = replica
        self._attempts += 1
        replica.in_flight += 1
        replica.requests += 1
        connection = replica.endpoint.take(self._host.now())
        if connection is not None:
            self._send(connection)
        else:
            if replica.unreachable_since is not None:
                replica.unreachable_since = self._host.now()  # this request finds out; others wait for what it finds
            self._connecting = self._host.spawn(self, replica)

    async def connect(self, replica: Replica) -> None:
        """Open a connection to the chosen replica and ask it."""
        try:
            connection = await replica.endpoint.connect()
        except EngineError as error:
            replica.unreachable_since = self._host.now()
            self._connecting = None
            self.on_error(error)
            return
        self._connecting = replica.unreachable_since = None
        if self._exchange.finished:
            replica.endpoint.put_back(connection)
            return
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        replica, intake, exchange = self._replica, self._intake, self._exchange
        if replica is None:
            return
        self._connection = connection
        as_stream = not intake.stream and intake.path in replica.dialect.json_as_stream
        if as_stream:
            self._assembly = Assembly(chat=intake.path == CHAT)
        body = intake.body_for(replica, as_stream=as_stream)
        exchange.on_pause = connection.pause
        exchange.on_resume = connection.resume
        connection.send(
            b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (replica.head(intake.path), self._id, len(body), body),
            self,
        )

    # Reply

    def on_head(self, head: ResponseHead) -> None:
        """Decide what is done with the body."""
        self._head = head
        self._status = head.status
        if self._replica is not None:
            self._replica.unreachable_since = None
        if not head.headers.get(b"content-type", b"").startswith(b"text/event-stream") or head.status != 200:
            self._assembly = None
        elif self._assembly is None:
            self._events = True
            self._exchange.start(200, STREAM_HEADERS + self._own_headers())

    def on_body(self, payload: bytes) -> None:
        """Pass on what can leave now."""
        if self._first_s == 0.0:
            self._first_s = self._host.now()
        if self._events:
            data = self._tail + payload
            end = openai.whole_events(data)
            if len(data) - end > TAIL_BYTES:
                end = len(data)
                self._torn = True
            self._tail = data[end:]
            exchange = self._exchange
            exchange.write(data[:end])
            if exchange.chunked and not (self._tail or self._torn) and self._connection is not None:
                self._connection.pipe = exchange.transport.write
        elif self._assembly is not None:
            try:
                self._assembly.feed(payload)
            except EngineError as error:
                self._drop_connection()
                self.on_error(error)
        elif self._exchange.started:
            self._exchange.write(payload)
        elif self._tail or len(payload) > BUFFERED_BODY_BYTES:
            self._buffer(payload)
        else:
            self._tail = payload

    def _buffer(self, payload: bytes) -> None:
        self._tail += payload
        if len(self._tail) > BUFFERED_BODY_BYTES:
            self._exchange.start(self._status, self._body_headers())
            self._exchange.write(self._tail)
            self._tail = b""

    def on_end(self) -> None:
        """The engine's answer is whole."""
        self._connection = None
        exchange = self._exchange
        if self._assembly is not None:
            self._end_assembly(self._assembly)
            return
        if exchange.started:
            exchange.write(self._tail)
            exchange.finish()
        else:
            exchange.respond(self._status, self._body_headers(), self._tail)
        self._record(Outcome.DONE if self._status < 500 else Outcome.FAILED)

    def _end_assembly(self, assembly: Assembly) -> None:
        if assembly.error is not None:
            self._fail(_engine_error(assembly.error))
        elif assembly.whole:
            self._exchange.respond(200, JSON_LINE + self._own_headers(), assembly.answer())
            self._record(Outcome.DONE)
        else:
            self.on_error(EngineError("the stream ended before the answer was whole"))

    def on_error(self, error: EngineError) -> None:
        """The engine will not finish this answer: ask another while the client has seen nothing, else say so."""
        connection, self._connection = self._connection, None
        replica = self._replica
        if self._exchange.finished or replica is None:
            return
        if not self._exchange.started:
            stale = connection is not None and connection.reused and self._head is None
            if not stale:
                replica.failures += 1
                self._refused |= {replica.view.id}
            replica.in_flight -= 1
            self._replica = None
            self._forget_answer()
            try:
                self._ask(self._choose())
            except RequestError as refusal:
                unreached = isinstance(error, ConnectError)
                self._fail(refusal if unreached else BadGateway(str(error), code="engine_failed"))
            return
        replica.failures += 1
        self._fail(BadGateway("the engine broke off this answer", code="engine_failed"))

    def _forget_answer(self) -> None:
        self._head = None
        self._assembly = None
        self._tail = b""
        self._first_s = 0.0

    # ends

    def _client_gone(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_connection()
        self._record(Outcome.CANCELLED)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _fail(self, error: RequestError) -> None:
        exchange = self._exchange
        if not exchange.started:
            answer_error(exchange, error, self._own_headers())
        elif self._events:
            exchange.write(b"\n\n" * self._torn + openai.error_event(error))
            exchange.finish()
        else:
            exchange.abort()
        self._status = error.status
        self._record(Outcome.FAILED)

    def _record(self, outcome: Outcome) -> None:
        """The one place where a request's end is counted and its replica's work given back."""
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.in_flight -= 1
        self._counters.ended(
            outcome,
            self._status,
            total_s=self._host.now() - self._started_s,
            first_s=self._first_s - self._started_s if self._first_s else None,
        )

    def _own_headers(self) -> bytes:
        """The headers by which a client knows its request again, as lines."""
        who = self._replica.answer_line if self._replica is not None else b""
        return b"x-request-id: %b\r\n%b" % (self._id, who)

    def _body_headers(self) -> bytes:
        """The headers of a JSON answer: few of the engine's, and the gateway's own."""
        headers = self._head.headers if self._head is not None else {}
        kind = headers.get(b"content-type", b"application/json")
        who = self._replica.answer_line if self._replica is not None else b""
        lines = b"content-type: %b\r\nx-request-id: %b\r\n%b" % (kind, self._id, who)
        if b"retry-after" in headers:
            lines += b"retry-after: %b\r\n" % headers[b"retry-after"]
        return lines


JSON_LINE: Final = b"content-type: application/json\r\n"
STREAM_HEADERS: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


def _engine_error(error: dict[str, object]) -> RequestError:
    """An error an engine sent inside a stream that the client never saw begin."""
    message = str(error.get("message") or "the engine failed")
    code = error.get("code")
    kind = BadRequest if isinstance(code, int) and 400 <= code < 500 else BadGateway
    return kind(message, code=str(error.get("type") or "engine_failed"))
