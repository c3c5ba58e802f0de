"""The fake engine: an OpenAI API without a model, with the latency, the queue and the faults that one asks for.

In a test: `async with FakeServer(FakeServerOptions(tokens=8)) as engine: engine.url`. As a process:
`tidegate fake-engine`. A request may ask for its own pace and fault in its last user message, see `fake_faults.marks`.

    /v1/chat/completions /v1/completions /v1/embeddings /v1/models /tokenize /detokenize /health /metrics
    /version (vLLM)   /props /slots /apply-template (llama.cpp)
    GET, POST, DELETE /fake/faults   GET /fake/state
"""

import asyncio
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

import msgspec

from tidegate.engines import fake_wire
from tidegate.engines.fake_faults import BEFORE_AN_ANSWER, Fault, FaultKind, Faults, parse
from tidegate.engines.fake_replies import Replies
from tidegate.engines.fake_request import CHAT, COMPLETIONS, RefusedError, answer, read
from tidegate.engines.fake_schedule import Batching, Schedule, Scripted, StepCost
from tidegate.engines.fake_streams import Generation
from tidegate.errors import PortTakenError
from tidegate.http import Exchange, HttpServer, Limits
from tidegate.types import DialectName

KEPT_REQUESTS: Final = 10_000
SLOW_MS: Final = 60_000


class FakeServerOptions(msgspec.Struct, frozen=True):
    """What the engine is like. Times in milliseconds."""

    model: str = "fake"
    dialect: DialectName = DialectName.VLLM
    """`vllm`, or `llamacpp` for its metric names, paths and error bodies."""
    tokens: int = 64
    """Of an answer that is not limited otherwise."""
    first_ms: float = 0.0
    gap_ms: float = 0.0
    slots: int | None = None
    """Sequences at once; None: as many as come."""
    batching: StepCost | None = None
    """Steps of continuous batching instead of the script of `first_ms` and `gap_ms`."""
    context_tokens: int = 32_768
    api_key: str = ""
    idle_timeout_s: float = 75.0
    """How long it keeps a connection without a request (vLLM and llama.cpp: 5)."""
    faults: tuple[Fault, ...] = ()
    record: bool = False
    """Keep the last requests in `FakeServer.requests`."""


class SeenRequest(msgspec.Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeServer:
    """One fake engine on one port of this machine. `die` is what the fault of that name does."""

    def __init__(self, options: FakeServerOptions | None = None, *, die: Callable[[], None] | None = None) -> None:
        self.options = options or FakeServerOptions()
        self.counters = fake_wire.Counters()
        self.faults = Faults(self.options.faults)
        self.requests: deque[SeenRequest] = deque(maxlen=KEPT_REQUESTS)
        self.url = ""
        self._die = die or self.crash
        self._schedule = self._new_schedule()
        self._numbers = 0
        self._replies = Replies(
            self.options.model, self.options.dialect, self.options.context_tokens, self.options.slots
        )
        self._used: set[asyncio.Transport] = set()
        self._server = HttpServer(self._handle, Limits(idle_timeout_s=self.options.idle_timeout_s))
        self._listening: socket.socket | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 is any free one. Raises PortTakenError."""
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, port))
        except OSError as error:
            listening.close()
            raise PortTakenError(host, port, "--port", reason=error.strerror or str(error)) from None
        self._listening = listening
        await self._server.start(listening)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"

    async def close(self) -> None:
        """End at once, with whatever it is doing."""
        self._schedule.close()
        await self._server.close()
        if self._listening is not None:
            self._listening.close()

    def crash(self) -> None:
        """End as a killed process does: every connection is cut, the port refuses."""
        self._schedule.close()
        self._server.stop_accepting()
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._server.connections):
            connection.transport.abort()

    @property
    def running(self) -> int:
        """Sequences that have a slot."""
        return len(self._schedule.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._schedule.waiting)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._server.connections)

    def set_fault(self, fault: Fault | str) -> None:
        """Commit a fault from now on, given as `fake_faults.parse` reads it."""
        fault = parse(fault) if isinstance(fault, str) else fault
        if fault.kind is FaultKind.COUNTERS_RESTART:
            self.counters = fake_wire.Counters()
            self._schedule.steps = 0
            return
        self.faults.set(fault)
        if fault.kind is FaultKind.HANG:
            self._schedule.hang()

    def clear_faults(self) -> None:
        """Commit no fault any more; an engine that hung begins anew, what it had is lost."""
        if self.faults.find(FaultKind.HANG):
            self._schedule.close()
            self._schedule = self._new_schedule()
        self.faults.clear()

    def _new_schedule(self) -> Schedule:
        options = self.options
        if options.batching is not None:
            return Batching(options.slots or fake_wire.UNBOUNDED, options.batching)
        return Scripted(options.slots)

    # requests

    def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if self.options.record:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
            seen = SeenRequest(request.method.decode("latin-1"), request.path, headers, request.body)
            self.requests.append(seen)
        path = request.path
        if path in {CHAT, COMPLETIONS}:
            if self._refused_key(exchange):
                return
            self._generate(exchange, path)
        elif path.startswith("/fake/"):
            self._control(exchange, path)
        elif path == "/health":
            fault = self.faults.find(FaultKind.HEALTH_STATUS)
            exchange.respond(fault.number or 500 if fault else 200)
        elif path == "/metrics":
            self._metrics(exchange)
        elif not self._refused_key(exchange):
            self._ask(exchange, path)

    def _refused_key(self, exchange: Exchange) -> bool:
        key = self.options.api_key
        if not key or exchange.request.headers.get(b"authorization") == f"Bearer {key}".encode():
            return False
        self._error(exchange, 401, "Invalid API Key", kind="authentication_error")
        return True

    def _error(self, exchange: Exchange, status: int, message: str, *, kind: str, param: str | None = None) -> None:
        body = fake_wire.error(self.options.dialect, status, message, kind=kind, param=param)
        exchange.respond(status, fake_wire.JSON, body)

    def _generate(self, exchange: Exchange, path: str) -> None:
        options = self.options
        try:
            request = read(path, exchange.request.body)
            made = answer(request, default_tokens=options.tokens, continues=options.dialect is DialectName.LLAMACPP)
            fault = self._fault(exchange, made.asked.get("fault"))
        except RefusedError as error:
            self._error(exchange, 400, str(error), kind="invalid_request_error", param=error.param)
            return
        too_long = made.prompt_tokens >= options.context_tokens
        if too_long or (fault is not None and fault.kind is FaultKind.CONTEXT_LENGTH):
            tokens = made.prompt_tokens if too_long else options.context_tokens + made.prompt_tokens
            body = fake_wire.context_exceeded(options.dialect, tokens, options.context_tokens)
            exchange.respond(400, fake_wire.JSON, body)
            return
        if fault is not None and fault.kind in BEFORE_AN_ANSWER:
            self._instead(exchange, fault)
            return
        slow_ms = float(fault.number or SLOW_MS) if fault is not None and fault.kind is FaultKind.SLOW else 0.0
        generation = Generation(
            exchange,
            request,
            made,
            fake_wire.Writer(path, request.model or options.model, self._numbers),
            fault=fault,
            first_ms=_number(made.asked, "first_ms", options.first_ms) + slow_ms,
            gap_ms=_number(made.asked, "gap_ms", options.gap_ms),
            over=self._over,
            die=self._die,
        )
        self._numbers += 1
        generation.begin()
        if exchange.finished:  # the fault came before the first token
            return
        if slow_ms and options.batching is not None:
            asyncio.get_running_loop().call_later(slow_ms / 1000, self._submit_late, generation)
        else:
            self._schedule.submit(generation)

    def _submit_late(self, generation: Generation) -> None:
        if not generation.exchange.finished:
            self._schedule.submit(generation)

    def _fault(self, exchange: Exchange, written: str | None) -> Fault | None:
        """The fault that this request commits: its own, else the one that is set."""
        reused = exchange.transport in self._used
        if not reused:
            if len(self._used) > 2 * self.connections + 64:
                self._used = {transport for transport in self._used if not transport.is_closing()}
            self._used.add(exchange.transport)
        if written is None:
            return self.faults.take(reused=reused)
        try:
            return parse(written)
        except ValueError as error:
            raise RefusedError(str(error), "messages") from None

    def _instead(self, exchange: Exchange, fault: Fault) -> None:
        """What comes instead of an answer."""
        match fault.kind:
            case FaultKind.STATUS:
                status = fault.number or 500
                self._error(
                    exchange, status, f"the fake engine was told to answer {status}", kind="InternalServerError"
                )
            case FaultKind.BAD_REQUEST:
                self._error(
                    exchange, 400, "the fake engine was told to refuse", kind="invalid_request_error", param="messages"
                )
            case FaultKind.CLOSE_BEFORE | FaultKind.CLOSE_REUSED:
                exchange.transport.close()
            case FaultKind.GARBAGE_HEAD:
                exchange.transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
                exchange.transport.close()
            case _:
                pass  # NO_ANSWER: silence

    def _over(self, generation: Generation, finish_reason: str | None) -> None:
        counters = self.counters
        self._schedule.drop(generation)
        counters.generation_tokens += generation.sent
        counters.steps = self._schedule.steps
        if finish_reason == "stop":
            counters.stopped += 1
        elif finish_reason == "length":
            counters.length += 1
        else:
            counters.aborted += 1
        counters.queue_s += generation.queued_s
        if generation.sent:
            counters.prompt_tokens += generation.prompt_tokens
            counters.first_token_s += generation.first_token_s
            counters.first_tokens += 1
        counters.whole_s += time.monotonic() - generation.began_s

    # everything else

    def _metrics(self, exchange: Exchange) -> None:
        find = self.faults.find
        if find(FaultKind.METRICS_HANG):
            return
        if fault := find(FaultKind.METRICS_STATUS):
            exchange.respond(fault.number or 500)
            return
        if find(FaultKind.METRICS_GARBAGE):
            exchange.respond(200, fake_wire.TEXT, b"vllm:num_requests_running{ NaN\n\xff\xfe }{\nllamacpp: 1 2 3 x\n")
            return
        options, counters = self.options, msgspec.structs.replace(self.counters, steps=self._schedule.steps)
        for sequence in self._schedule.running:
            if isinstance(sequence, Generation) and sequence.sent:
                counters.generation_tokens += sequence.sent
                counters.prompt_tokens += sequence.prompt_tokens
        text = fake_wire.metrics(
            options.dialect,
            options.model,
            counters,
            running=self.running,
            waiting=self.waiting,
            slots=options.slots or fake_wire.UNBOUNDED,
        )
        exchange.respond(200, fake_wire.TEXT, text)

    def _ask(self, exchange: Exchange, path: str) -> None:
        body = exchange.request.body
        try:
            asked = msgspec.json.decode(body) if body else {}
            reply = self._replies.reply(path, asked if isinstance(asked, dict) else {}, self.running)
        except (msgspec.DecodeError, RefusedError, LookupError, TypeError, ValueError) as error:
            self._error(exchange, 400, f"{type(error).__name__}: {error}", kind="invalid_request_error")
            return
        if reply is None:
            self._error(exchange, 404, "Not Found", kind="not_found_error")
        else:
            exchange.respond(200, fake_wire.JSON, fake_wire.encode(reply))

    def _control(self, exchange: Exchange, path: str) -> None:
        """`/fake/...`: what tests and demonstrations change while it runs."""
        method = exchange.request.method
        if path == "/fake/state":
            state = {
                "running": self.running,
                "waiting": self.waiting,
                "connections": self.connections,
                "counters": self.counters,
            }
            exchange.respond(200, fake_wire.JSON, fake_wire.encode(state))
            return
        if path != "/fake/faults":
            self._error(exchange, 404, "Not Found", kind="not_found_error")
            return
        try:
            if method == b"DELETE":
                self.clear_faults()
            elif method == b"POST":
                self.set_fault(_read_fault(exchange.request.body))
        except (msgspec.MsgspecError, ValueError) as error:
            self._error(exchange, 400, str(error), kind="invalid_request_error")
            return
        exchange.respond(200, fake_wire.JSON, fake_wire.encode(self.faults.all()))


def _read_fault(body: bytes) -> Fault:
    """A fault as JSON (`{"kind": .., "number": .., "after": .., "count": ..}`) or as it is written elsewhere."""
    return msgspec.json.decode(body, type=Fault) if body.lstrip().startswith(b"{") else parse(body.decode())


def _number(asked: Any, name: str, default: float) -> float:
    try:
        return max(float(asked[name]), 0.0)
    except (KeyError, ValueError):
        return default


def kill_this_process() -> None:
    """What DIE means to an engine that is a process of its own."""
    os.kill(os.getpid(), signal.SIGKILL)
