"""One generation of the fake engine: its tokens go out as events or as one JSON answer, with the fault it commits."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final

from tidegate.engines import fake_wire
from tidegate.engines.fake_faults import WITHIN_A_STREAM, Fault, FaultKind
from tidegate.engines.fake_request import Answer, FakeRequest
from tidegate.http import Exchange

PING_GAP_S: Final = 0.1
HUGE_BYTES: Final = 1_000_000
WRONG_LENGTH_BYTES: Final = 100


class Generation:
    """A `Sequence` of the schedule. `over` is called once: with the finish reason, or None when it was aborted."""

    def __init__(
        self,
        exchange: Exchange,
        request: FakeRequest,
        answer: Answer,
        writer: fake_wire.Writer,
        *,
        fault: Fault | None,
        first_ms: float,
        gap_ms: float,
        over: Callable[["Generation", str | None], None],
        die: Callable[[], None],
    ) -> None:
        self.exchange, self.request, self.answer, self.writer, self.fault = exchange, request, answer, writer, fault
        self.prompt_tokens = answer.prompt_tokens
        self.first_ms, self.gap_ms = first_ms, gap_ms
        self.queued_s = self.first_token_s = 0.0
        self.began_s = time.monotonic()
        self.sent = 0
        self._fault_at = -1 if fault is None or fault.kind not in WITHIN_A_STREAM else fault.after
        self._over, self._die = over, die
        self._is_over = self._silent = self._greeted = False
        self._pinging: asyncio.TimerHandle | None = None
        self._split: Splitter | None = None
        if fault is not None and fault.kind is FaultKind.SPLIT:
            self._split = Splitter(exchange, fault.number or 1)
        exchange.on_disconnect = self._gone

    @property
    def paused(self) -> bool:
        return self.exchange.paused

    def begin(self) -> None:
        """Send the head of a stream; a JSON answer's goes with its body."""
        if not self.request.stream:
            return
        self.exchange.start(200, fake_wire.STREAM)
        if self._fault_at == 0:
            self._greet()
            self._commit()

    def _greet(self) -> None:
        """Send what comes before the first token, with it: as vLLM and llama.cpp do, not while a prompt is read."""
        if not self._greeted:
            self._greeted = True
            self._write(self.writer.first())

    def token(self) -> bool:
        if self._is_over:
            return True
        if self._silent:
            return False
        answer = self.answer
        if self.sent == 0:
            self.first_token_s = time.monotonic() - self.began_s
        if self.sent < len(answer.tokens):
            if self.request.stream:
                self._greet()
                self._write(self.writer.token(answer.tokens[self.sent]))
            self.sent += 1
        if self.sent == self._fault_at and self.request.stream:
            self._commit()
            if self._is_over or self._silent or self.exchange.transport.is_closing():
                return self._is_over
        if self.sent < len(answer.tokens):
            return False
        self._end()
        return True

    def _end(self) -> None:
        answer = self.answer
        usage = fake_wire.usage(answer.prompt_tokens, len(answer.tokens))
        if self.request.stream:
            self._greet()
            self._write(self.writer.last(answer.finish_reason))
            if (self.request.stream_options or {}).get("include_usage"):
                self._write(self.writer.usage(usage))
            self._write(fake_wire.DONE)
            self._finish()
        else:
            body = self.writer.whole("".join(answer.tokens), answer.finish_reason, usage)
            self._answer_json(body)
        self._tell(answer.finish_reason)

    def _answer_json(self, body: bytes) -> None:
        fault = self.fault
        if fault is None or fault.kind not in {FaultKind.WRONG_LENGTH, FaultKind.SPLIT}:
            self.exchange.respond(200, fake_wire.JSON, body)
            return
        more = (fault.number or WRONG_LENGTH_BYTES) if fault.kind is FaultKind.WRONG_LENGTH else 0
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.exchange.started = True
        if self._split is not None:
            self._split.write(head % len(body) + body)
            self._finish()
            return
        self.exchange.transport.write(head % (len(body) + more) + body)
        self.exchange.transport.close()

    def _write(self, payload: bytes) -> None:
        if self._split is not None and payload:
            self._split.write(b"%x\r\n%b\r\n" % (len(payload), payload))
        else:
            self.exchange.write(payload)

    def _finish(self) -> None:
        if self._split is not None:
            self._split.finish()
        else:
            self.exchange.finish()

    def _commit(self) -> None:
        """Commit the fault of a stream, where it has come to it."""
        fault = self.fault
        assert fault is not None  # noqa: S101 - the caller's condition
        at = min(self.sent, len(self.answer.tokens) - 1)
        half = self.writer.token(self.answer.tokens[at])
        half = half[: len(half) // 2]
        transport = self.exchange.transport
        match fault.kind:
            case FaultKind.HALF_EVENT:
                self.exchange.write(half)
                self._silent = True
            case FaultKind.STALL:
                self._silent = True
            case FaultKind.COMMENTS:
                self._silent = True
                self._ping()
            case FaultKind.CLOSE:
                transport.close()
            case FaultKind.HALF_EVENT_CLOSE:
                self.exchange.write(half)
                transport.close()
            case FaultKind.RESET:
                reset(self.exchange)
            case FaultKind.BAD_CHUNK:
                transport.write(b"zz\r\nthis is no chunk\r\n")
                transport.close()
            case FaultKind.ERROR_EVENT:
                failed = {"message": "the engine has failed", "type": "InternalServerError", "code": 500}
                self.exchange.write(fake_wire.event({"error": failed}))
                self.exchange.write(fake_wire.DONE)
                self.exchange.finish()
                self._tell(None)
            case FaultKind.NO_DONE:
                self.exchange.finish()
                self._tell(None)
            case FaultKind.HUGE_EVENT:
                self.exchange.write(self.writer.token("大" * ((fault.number or HUGE_BYTES) // 3)))
            case FaultKind.DIE:
                self._die()
            case _:
                pass  # not one that comes within a stream

    def _ping(self) -> None:
        if not self._is_over:
            self.exchange.write(fake_wire.PING)
            self._pinging = asyncio.get_running_loop().call_later(PING_GAP_S, self._ping)

    def _gone(self) -> None:
        self._tell(None)

    def _tell(self, finish_reason: str | None) -> None:
        if not self._is_over:
            self._is_over = True
            if self._pinging is not None:
                self._pinging.cancel()
            self._over(self, finish_reason)


class Splitter:
    """Sends bytes in writes of a few, each in a turn of the loop of its own, in order."""

    def __init__(self, exchange: Exchange, size: int) -> None:
        self._exchange, self._size = exchange, max(size, 1)
        self._left = bytearray()
        self._at = 0
        self._ends = self._busy = False

    def write(self, data: bytes) -> None:
        self._left += data
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._next)

    def finish(self) -> None:
        self._ends = True
        if not self._busy:
            self._exchange.finish()

    def _next(self) -> None:
        if self._exchange.finished:
            return
        piece = bytes(self._left[self._at : self._at + self._size])
        self._at += len(piece)
        self._exchange.transport.write(piece)
        if self._at < len(self._left):
            asyncio.get_running_loop().call_soon(self._next)
            return
        self._left.clear()
        self._at = 0
        self._busy = False
        if self._ends:
            self._exchange.finish()


def reset(exchange: Exchange) -> None:
    """Cut the client's connection so that it sees RST, not FIN."""
    peer = exchange.transport.get_extra_info("socket")
    if peer is not None:
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    exchange.transport.abort()
