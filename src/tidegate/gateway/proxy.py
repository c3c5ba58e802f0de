"""One request on its way: asked of a replica, its answer passed on, its end recorded once.

A `Flight` is driven by callbacks: from the pool (`Reply`), from the client's connection, and from a look every second.
What it passes on comes in three kinds: the events of a stream (`EventRelay`), a JSON body (as it comes), and a JSON
body put together from a stream (`Assembly`). When its replica dies it goes on elsewhere: as a whole while the client
has seen nothing, from the word where it stopped later. It is one state machine, and so one file.
"""

import asyncio
import time
from typing import Final

from tidegate import openai
from tidegate.errors import (
    BadGateway,
    BadRequest,
    ConnectError,
    EngineError,
    GatewayTimeout,
    RequestError,
    StalledError,
    Unavailable,
)
from tidegate.gateway import engine_errors, failover
from tidegate.gateway.assemble import Assembly
from tidegate.gateway.dispatch import FIRST_TOKENS, NO_REPLICA_RETRY_S, Line
from tidegate.gateway.field_limits import asked_tokens
from tidegate.gateway.fleet import Replica
from tidegate.gateway.host import Host, Lease
from tidegate.gateway.intake import CHAT, GENERATING, Intake, conversation
from tidegate.gateway.metrics import ModelCounters
from tidegate.gateway.quotas import ANSWER_TOKENS, BYTES_PER_TOKEN
from tidegate.gateway.record import Caller, Ended
from tidegate.gateway.relay import EventRelay
from tidegate.gateway.respond import JSON_LINE, STREAM_LINES, answer_error, engine_lines
from tidegate.gateway.router import at_home, least_work_of_two
from tidegate.gateway.tokens import count
from tidegate.http import Connection, Exchange, ResponseHead
from tidegate.openai import Usage
from tidegate.types import ClassView, GatewayOptions, Outcome

BUFFERED_BODY_BYTES: Final = 256 * 1024
"""A JSON body up to this size leaves in one write with its length; a larger one flows."""
AFFINITY_BYTES: Final = 1024
"""From this size on a request goes where the beginning of its conversation is known: less is computed faster than found."""
RETRY_JITTER_S: Final = 0.05
"""Retries after an engine's error are spread over this time, so that they do not come in one wave."""
RETRIED: Final = frozenset((500, 502, 503, 504))
"""An engine's answers that another engine might not give; a 501 or a 4xx would come again."""


_FAILURES: Final = {ConnectError: "connect", StalledError: "stalled"}


class Flight:
    """One request, from the choice of a replica to the record of its end."""

    _replica: Replica | None = None
    _connection: Connection | None = None
    _waiting: asyncio.Task[None] | asyncio.TimerHandle | None = None
    """For a connection, or for the moment of a retry."""
    _head: ResponseHead | None = None
    _assembly: Assembly | None = None
    """Where the answer is put together from a stream that the client did not ask for."""
    _relay: EventRelay | None = None
    """Where the events of a stream pass."""
    _events = False
    """Whether the answer that comes now is a stream of events for the client."""
    _continuation: failover.Continuation | None = None
    _rest: Intake | None = None
    """What is asked of the next replica, once the answer has begun."""
    _uncounted: failover.Sent | None = None
    """What the client has been sent, while it is not known how many tokens that was."""
    _tail = b""
    _status = 0
    _moves = 0
    granted_s = 0.0
    tokens = 0
    """Of prompt and answer at most, where that is counted."""
    _permitted = False
    """Whether a permit is held: from the grant to the end, whichever replicas are asked."""
    _retried = False
    _first_s = 0.0
    _progress = 0
    _progress_s = 0.0
    _usage: Usage | None = None
    _code = ""
    _refused: frozenset[str] = frozenset()
    """Replicas that have failed this request."""

    def __init__(
        self,
        host: Host,
        exchange: Exchange,
        intake: Intake,
        request_id: bytes,
        *,
        counters: ModelCounters,
        caller: Caller,
        klass: ClassView,
        line: Line[Replica],
        lease: Lease | None = None,
    ) -> None:
        self._host = host
        self.klass = klass
        self._line = line
        if line.counts_tokens:
            self.tokens = len(intake.body) // BYTES_PER_TOKEN + (asked_tokens(intake) or ANSWER_TOKENS)
        self._exchange = exchange
        self._intake = intake
        self._id = request_id
        self._counters = counters
        self._caller = caller
        self._lease = lease
        self._started_s = host.now()

    # asking

    def launch(self) -> None:
        """Ask a replica, or wait until one has room. Raises RequestError where none will; nothing has been counted then."""
        self._line.submit(self, self._started_s)
        self._counters.in_flight += 1
        if not self._exchange.finished:
            self._exchange.on_disconnect = self._client_gone

    # waiting for a permit

    def candidates(self) -> list[Replica]:
        """The replicas that may be asked."""
        return self._intake.model.candidates(self._intake.path, self._refused)

    @property
    def tenant(self) -> str:
        """Who asks, for a fair share."""
        return self._caller.tenant

    @property
    def size(self) -> int:
        """Bytes that wait with it."""
        return len(self._intake.body)

    @property
    def reading(self) -> bool:
        """Whether the engine has said nothing yet."""
        return not self._first_s

    @property
    def begun_s(self) -> float | None:
        """When the engine said its first word; only a stream lets it be heard."""
        return self._first_s if self._intake.stream else None

    def pick(self, hosts: list[Replica]) -> Replica:
        """One of those that have room: where a long prompt's beginning is known, or the one with less work of two."""
        key = conversation(self._intake, self._exchange.request) if self.size >= AFFINITY_BYTES else b""
        chosen = at_home(hosts, key) if key else least_work_of_two(hosts, self._host.random)
        return chosen or hosts[0]

    def start(self, host: Replica) -> None:
        """The permit is there."""
        self._permitted = True
        self._ask(host)

    def refuse(self, error: RequestError) -> None:
        """It would wait for too long."""
        self._fail(error)

    @property
    def over(self) -> bool:
        """Whether the end has been told."""
        return self._exchange.finished

    def _choose(self, version: str | None = None, *, continuing: bool = False) -> Replica:
        """A replica that has not failed this request; of one `version` only, where an answer has begun.

        One of the class's pools if there is any; rather than be lost an answer may come from another.
        `continuing`: one that was seen to go on with a text as it would have gone on with its own.
        """
        model, refused = self._intake.model, self._refused
        if version is not None:
            unfit = (r for r in model.replicas if r.view.version != version or (continuing and not r.view.continues))
            refused |= {r.view.id for r in unfit}
        candidates = model.candidates(self._intake.path, refused)
        for pool in self.klass.pools:
            if own := [replica for replica in candidates if replica.pool == pool]:
                candidates = own
                break
        replica = least_work_of_two(candidates, self._host.random)
        if replica is None:
            raise Unavailable(
                f"no replica of {model.name!r} is ready; it is starting or being restarted",
                code="no_replica_ready",
                retry_after_s=NO_REPLICA_RETRY_S,
            )
        return replica

    def _ask(self, replica: Replica) -> None:
        self._replica = replica
        replica.in_flight += 1
        replica.requests += 1
        replica.tokens += self.tokens
        replica.jobs[self] = None
        if replica.in_flight > replica.most:
            replica.most = replica.in_flight
            if replica.most >= replica.search_at:
                self._host.searched(replica)
        connection = replica.endpoint.take(self._host.now()) if self._uncounted is None else None
        if connection is not None:
            self._send(connection)
        else:
            self._waiting = self._host.spawn(self, replica)

    async def connect(self, replica: Replica) -> None:
        """Open a connection to the chosen replica and ask it; what it is to go on with is counted first."""
        try:
            if self._uncounted is not None:
                sent, self._uncounted = self._uncounted, None
                sent.tokens = await count(replica, sent.text) or sent.tokens
                if not self._take_up(replica, sent):
                    return
            connection = await replica.endpoint.connect()
        except EngineError as error:
            self._waiting = None
            self.on_error(error)
            return
        self._waiting = None
        if self._exchange.finished:
            replica.endpoint.put_back(connection)
            return
        self._send(connection)

    def _send(self, connection: Connection) -> None:
        replica, exchange = self._replica, self._exchange
        if replica is None:
            return
        intake = self._rest or self._intake
        self._connection = connection
        as_stream = not intake.stream and intake.path in replica.dialect.json_as_stream
        if as_stream:
            self._assembly = Assembly(chat=intake.path == CHAT)
        body = intake.body_for(replica, as_stream=as_stream)
        exchange.on_pause = connection.pause
        exchange.on_resume = connection.resume
        connection.send(
            b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (replica.head(intake.path, self.klass.priority), self._id, len(body), body),
            self,
        )
        if exchange.paused:
            connection.pause()

    # Reply

    def on_head(self, head: ResponseHead) -> None:
        """Decide what is done with the body."""
        self._head = head
        self._status = head.status
        if not head.headers.get(b"content-type", b"").startswith(b"text/event-stream") or head.status != 200:
            self._assembly = None
            if head.status in RETRIED and self._nothing_sent and self._may_go_elsewhere():
                self._go_elsewhere()
        elif self._assembly is None:
            self._events = True  # the client's answer begins with the first of them: until then it may become an error

    @property
    def _nothing_sent(self) -> bool:
        """Whether the client has seen nothing of an answer yet, but perhaps that it is waited for."""
        return not self._exchange.started or (self._relay is not None and not self._relay.progress)

    def _begin_stream(self) -> EventRelay:
        relay = self._relay
        if relay is None:
            exchange, intake = self._exchange, self._intake
            exchange.start(200, STREAM_LINES + self._own_headers())
            relay = EventRelay(exchange, hide_usage=not intake.wants_usage, piped="n" not in intake.fields)
            self._relay = relay
        return relay

    def on_body(self, payload: bytes) -> None:
        """Pass on what can leave now."""
        if self._first_s == 0.0:
            self._first_s = self._host.now()
        try:
            if self._events:
                self._pass_events(self._begin_stream(), payload)
            elif self._assembly is not None:
                self._assembly.feed(payload)
            elif self._exchange.started and self._relay is None:
                self._exchange.write(payload)
            elif self._tail or len(payload) > BUFFERED_BODY_BYTES:
                self._buffer(payload)
            else:
                self._tail = payload
        except EngineError as error:
            self._drop_connection()
            self.on_error(error)

    def _pass_events(self, relay: EventRelay, payload: bytes) -> None:
        if self._continuation is not None:
            self._pass_continuation(relay, self._continuation, payload)
            return
        relay.feed(payload)
        if self._connection is not None:
            relay.attach(self._connection)

    def _pass_continuation(self, relay: EventRelay, continuation: failover.Continuation, payload: bytes) -> None:
        data = self._tail + payload
        end = openai.whole_events(data)
        self._tail = data[end:]
        for event in openai.split_events(data[:end]):
            said = event if event == b"[DONE]" else continuation.event(event)
            if said is not None:
                relay.feed(b"data: %b\n\n" % said)
        if continuation.stopped:
            self._drop_connection()
            self._end_stream(relay)

    def _buffer(self, payload: bytes) -> None:
        self._tail += payload
        if len(self._tail) > BUFFERED_BODY_BYTES and self._relay is None:
            self._exchange.start(self._status, engine_lines(self._head) + self._own_headers())
            self._exchange.write(self._tail)
            self._tail = b""

    def on_end(self) -> None:
        """The engine's answer is whole."""
        self._connection = None
        if self._assembly is not None:
            self._end_assembly(self._assembly)
        elif self._events or self._relay is not None:
            self._end_events(self._begin_stream())
        else:
            self._end_body()

    def _end_events(self, relay: EventRelay) -> None:
        if not self._events:
            self._fail(
                engine_errors.read(self._tail, self._replica, self._intake.path)
                or BadGateway("the engine did not answer", code="engine_failed")
            )
        elif relay.finished or relay.done or self._intake.path not in GENERATING:
            relay.end()
            self._exchange.finish()
            self._succeeded()
            self._record(Outcome.DONE)
        else:
            self._end_unfinished(relay)

    def _succeeded(self) -> None:
        if self._replica is not None:
            self._replica.succeeded()

    def _end_unfinished(self, relay: EventRelay) -> None:
        """The engine ended its stream in good order in the middle of an answer, as one that is told to stop may do."""
        replica = self._replica
        if replica is None:
            return
        self._refused |= {replica.view.id}
        try:
            self._continue(relay, replica.view.version)
        except (RequestError, EngineError):
            relay.end()
            self._exchange.finish()
            self._record(Outcome.DONE)

    def _end_body(self) -> None:
        exchange = self._exchange
        error = (
            engine_errors.read(self._tail, self._replica, self._intake.path)
            if self._status == 400 and not exchange.started
            else None
        )
        if isinstance(error, BadRequest) and error.code == engine_errors.TOO_LONG:
            self._fail(error)
            return
        if exchange.started:
            exchange.write(self._tail)
            exchange.finish()
        else:
            exchange.respond(self._status, engine_lines(self._head) + self._own_headers(), self._tail)
        if self._status == 200:
            self._usage = openai.usage_in(self._tail)
        if self._status < 500:
            self._succeeded()
        elif self._status in RETRIED and self._replica is not None:
            self._replica.failed("status")
        self._record(Outcome.DONE if self._status < 500 else Outcome.FAILED)

    def _end_assembly(self, assembly: Assembly) -> None:
        if assembly.error is not None:
            self._fail(engine_errors.told(assembly.error, self._replica, self._intake.path))
        elif assembly.whole:
            self._usage = assembly.usage
            self._exchange.respond(200, JSON_LINE + self._own_headers(), assembly.answer())
            self._succeeded()
            self._record(Outcome.DONE)
        else:
            self.on_error(EngineError("the stream ended before the answer was whole"))

    def on_error(self, error: EngineError) -> None:
        """The engine will not finish this answer: it is asked for elsewhere, whole or from where it stopped."""
        connection, self._connection = self._connection, None
        replica = self._replica
        if self._exchange.finished or replica is None:
            return
        stale = connection is not None and connection.reused and self._head is None
        if not stale:
            replica.failures += 1
            replica.failed(_FAILURES.get(type(error), "broken"))
            self._refused |= {replica.view.id}
        self._go_on(replica, error)

    def _go_on(self, replica: Replica, error: EngineError) -> None:
        """Have another replica answer, whole or from where the text stopped; else say that it broke off."""
        if self._nothing_sent:
            self._leave_replica()
            try:
                self._ask(self._choose())
            except RequestError as refusal:
                unreached = isinstance(error, ConnectError)
                self._fail(refusal if unreached else BadGateway(str(error), code="engine_failed"))
        elif self._relay is None:
            self._fail(BadGateway("the engine broke off this answer", code="engine_failed"))
        else:
            self._move(self._relay, replica.view.version)

    def _leave_replica(self) -> None:
        """Give the replica's work back and forget what it has said."""
        replica, self._replica = self._replica, None
        if replica is not None:
            self._give_back(replica)
        self._exchange.on_pause = self._exchange.on_resume = None  # they lead to the connection that is left
        self._head = self._assembly = None
        self._events = False
        self._tail = b""
        if self._relay is None:
            self._first_s = 0.0
        else:
            self._relay.forget_tail()

    def _give_back(self, replica: Replica) -> None:
        replica.in_flight -= 1
        replica.tokens -= self.tokens
        replica.jobs.pop(self, None)

    # going on elsewhere

    def _may_go_elsewhere(self) -> bool:
        if self._retried or self._replica is None:
            return False
        refused = self._refused | {self._replica.view.id}
        others = [r for r in self._intake.model.askable(self._intake.path) if r.view.id not in refused]
        return bool(others) and self._host.may_retry()

    def _go_elsewhere(self) -> None:
        """An engine's error is not passed on while another engine may answer: in a moment, never on the same one."""
        self._retried = True
        if self._replica is not None:
            self._refused |= {self._replica.view.id}
            self._replica.failures += 1
            self._replica.failed("status")
        self._drop_connection()
        self._leave_replica()
        self._waiting = self._host.later(self._host.random() * RETRY_JITTER_S, self)

    def ask_again(self) -> None:
        """The moment of a retry has come."""
        self._waiting = None
        if self._exchange.finished:
            return
        try:
            self._ask(self._choose())
        except RequestError as error:
            self._fail(error)

    def _move(self, relay: EventRelay, version: str) -> None:
        """The replica died in the middle of a stream: another one of the same version goes on with it."""
        if relay.finished:
            relay.forget_tail()
            self._end_stream(relay)
            return
        try:
            self._continue(relay, version)
        except RequestError as error:
            self._fail(BadGateway(f"the engine broke off this answer, and {error}", code="engine_failed"))
        except EngineError:
            self._fail(BadGateway("the engine broke off this answer", code="engine_failed"))

    def _continue(self, relay: EventRelay, version: str) -> None:
        if relay.kept is None or relay.torn:
            raise EngineError("the stream was not kept")
        sent = failover.read_sent(relay.kept_payload(), self._intake.path)
        if not failover.can_continue(self._intake.fields, sent):
            raise EngineError("this kind of answer cannot be continued")
        replica = self._choose(version, continuing=bool(sent.text))
        self._leave_replica()
        self._moves += 1
        if sent.text:
            self._uncounted = sent
        elif not self._take_up(replica, sent):
            return
        self._ask(replica)

    def _take_up(self, replica: Replica, sent: failover.Sent) -> bool:
        """Make the request for the rest; false where nothing is left to say, and the answer is ended."""
        intake, relay = self._intake, self._relay
        flags = dict(replica.dialect.continue_flags)
        fields = failover.continuation(intake.fields, sent, intake.path, flags=flags)
        if fields is None and relay is not None:  # it died after its last token
            self._waiting = None
            relay.feed(b"data: %b\n\n" % failover.last_event(sent, intake.path))
            self._end_stream(relay)
        if fields is None or self._exchange.finished:
            return False
        self._continuation = failover.Continuation(intake.fields, sent, intake.path)
        self._rest = intake.with_fields(fields)
        return True

    def _end_stream(self, relay: EventRelay) -> None:
        """The answer is whole, although no engine said so."""
        if not relay.done:
            relay.feed(openai.DONE)
        self._exchange.finish()
        self._record(Outcome.DONE)

    # a look every second

    def look(self, now: float, options: GatewayOptions) -> None:
        """End what takes longer than the settings allow, and tell a client that waits that it is not forgotten."""
        waited = now - self._started_s
        relay = self._relay
        progress = relay.progress if relay is not None else 0
        if progress != self._progress or not self._progress_s:
            if self._replica is not None:
                self._replica.progress += progress != self._progress
            self._progress, self._progress_s = progress, now
        klass = self.klass
        total_s = options.total_timeout_s if klass.total_timeout_s is None else klass.total_timeout_s
        first_s = options.first_byte_timeout_s if klass.first_byte_timeout_s is None else klass.first_byte_timeout_s
        stall_s = options.stall_timeout_s if klass.stall_timeout_s is None else klass.stall_timeout_s
        if total_s and waited > total_s:
            self._give_up(f"the answer took longer than {total_s:g} s")
        elif first_s and not self._first_s and waited > first_s:
            self._give_up(f"the answer did not begin within {first_s:g} s")
        elif self._events and progress and now - self._progress_s > stall_s and self._connection:
            self._progress_s = now
            self._drop_connection()
            self.on_error(StalledError(f"no event came for {stall_s:g} s"))
        elif (
            options.keepalive_after_s
            and self._permitted
            and self._intake.stream
            and not progress
            and waited > options.keepalive_after_s
        ):
            self._begin_stream()
            self._exchange.write(b": waiting\n\n")

    def leave(self, replica: Replica) -> None:
        """A replica is stuck: an answer that was to come from it will not come."""
        if self._replica is replica and self._connection is not None:
            self._drop_connection()
            self._refused |= {replica.view.id}
            self._go_on(replica, StalledError(f"{replica.view.id} is stuck"))

    def measure(self) -> int:
        """Bytes kept of this stream."""
        return self._relay.measure() if self._relay is not None else 0

    def lose(self) -> None:
        """Keep nothing more of this stream."""
        if self._relay is not None:
            self._relay.lose()

    def _give_up(self, why: str) -> None:
        self._drop_connection()
        self._fail(GatewayTimeout(why, code="timeout"))

    # ends

    def _client_gone(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._drop_connection()
        self._record(Outcome.CANCELLED)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _fail(self, error: RequestError) -> None:
        exchange, relay = self._exchange, self._relay
        if self._waiting is not None:
            self._waiting.cancel()
        if not exchange.started:
            answer_error(exchange, error, self._own_headers())
        elif relay is not None:
            exchange.write(b"\n\n" * relay.torn + openai.error_event(error))
            exchange.finish()
        else:
            exchange.abort()
        self._status = error.status
        self._code = error.code or ""
        self._record(Outcome.FAILED if error.status >= 500 else Outcome.DONE)

    def _record(self, outcome: Outcome) -> None:
        """The one place where a request's end is told and its replica's work given back."""
        replica, self._replica = self._replica, None
        if replica is not None:
            self._give_back(replica)
        relay, now = self._relay, self._host.now()
        usage = self._usage
        if relay is not None:
            usage = relay.usage or (Usage(0, relay.progress) if relay.progress else None)
        if self._lease is not None and not self._permitted:
            self._lease.cancel()
        elif self._lease is not None:
            told = usage is not None and (relay is None or relay.usage is not None)
            self._lease.end(usage.prompt_tokens + usage.completion_tokens if usage is not None and told else None)
        intake, started, first = self._intake, self._started_s, self._first_s
        record = Ended(  # by position, which costs half of what names do
            self._id.decode("latin-1"),
            time.time(),
            self._caller,
            self.klass.name,
            intake.model.name,
            replica.view.id if replica is not None else "",
            intake.path,
            self._status,
            outcome,
            intake.stream,
            self.granted_s - started if self._permitted else now - started,
            first - started if first else None,
            now - started,
            usage.prompt_tokens if usage is not None else None,
            usage.completion_tokens if usage is not None else None,
            self._code,
            self._moves,
            self._exchange.client,
        )
        self._counters.in_flight -= 1
        self._host.ended(self, record, retried=self._retried)
        line = self._line
        if not self._permitted:
            line.leave(self)
            return
        state = line.states[self.klass.name]
        if usage is not None:
            state.tokens += usage.completion_tokens
        if first and intake.stream:
            state.began(first - self.granted_s)
            if len(state.first_tokens_s) < FIRST_TOKENS:
                state.first_tokens_s.append(first - started)
        self._permitted = False
        line.ended(self, well=outcome is Outcome.DONE and self._status < 400, now=now)

    def _own_headers(self) -> bytes:
        """The headers by which a client knows its request again, as lines."""
        who = self._replica.answer_line if self._replica is not None else b""
        if not self._permitted:
            return b"x-request-id: %b\r\n%b" % (self._id, who)
        waited_ms = (self.granted_s - self._started_s) * 1e3
        return b"x-request-id: %b\r\n%bx-tidegate-queue-ms: %d\r\n" % (self._id, who, waited_ms)
