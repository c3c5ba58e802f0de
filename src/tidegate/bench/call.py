"""One request on its way: what comes of it, and when, becomes its sample."""

import time
from collections.abc import MutableSequence
from typing import Final, Protocol

import msgspec

from tidegate.bench.samples import Sample
from tidegate.bench.wire import decode, explanation
from tidegate.bench.workload import Planned
from tidegate.errors import EngineError
from tidegate.http import Connection, ResponseHead
from tidegate.openai import split_events, whole_events

MOST_BODY_BYTES: Final = 32 * 1024 * 1024
monotonic = time.monotonic


class Load(Protocol):
    """Who a call belongs to."""

    start: float
    count_events: bool
    gaps: MutableSequence[float]

    def over(self, call: "Call", kind: str, explained: str = "") -> None:
        """It has ended; `kind` is empty for a whole answer."""

    def again(self, call: "Call") -> None:
        """Its connection had ended before it was asked anything: it needs another."""


class Call:
    """A `Reply` (tidegate.http)."""

    __slots__ = (
        "_body_bytes",
        "_done",
        "_finished",
        "_load",
        "_parts",
        "_status",
        "_streams",
        "_tail",
        "connection",
        "planned",
        "sample",
        "sent_at",
    )

    def __init__(self, load: Load, planned: Planned, sample: Sample) -> None:
        self._load, self.planned, self.sample = load, planned, sample
        self.connection: Connection | None = None
        self.sent_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self._status = self._body_bytes = 0
        self._parts: list[bytes] = []
        self._tail = b""
        self._streams = self._done = self._finished = False

    def send(self, connection: Connection) -> None:
        self._clear()
        self.connection = connection
        self.sample.sent = monotonic() - self._load.start
        connection.send(self.planned.request, self)

    def give_up(self) -> None:
        """Close the connection; nothing more is heard of it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()

    # Reply

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status
        self._streams = head.status == 200 and head.headers.get(b"content-type", b"").startswith(b"text/event-stream")

    def on_body(self, payload: bytes) -> None:
        if not self._streams:
            self._body_bytes += len(payload)
            if self._body_bytes <= MOST_BODY_BYTES:
                self._parts.append(payload)
            return
        now = monotonic()
        size = len(payload)
        if self._tail or size < 2 or payload.find(b"\n\n") != size - 2:
            payload = self._tail + payload
            end = whole_events(payload)
            self._tail, payload = payload[end:], payload[:end]
            if len(self._tail) > MOST_BODY_BYTES:
                self._fail("bad event", "an event without end")
                return
            for data in split_events(payload):
                self._event(data, now)
                if self.connection is None:
                    return
        elif payload.startswith(b"data: "):
            self._event(payload[6:-2], now)
        else:
            for data in split_events(payload):
                self._event(data, now)
        connection = self.connection
        if connection is not None and not self._tail:
            connection.pipe = self._whole_chunk

    def on_end(self) -> None:
        self.connection = None
        if self._streams:
            self._end_stream()
        else:
            self._end_answer()

    def on_error(self, error: EngineError) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and connection.reused and not self._status:
            self._load.again(self)  # it had ended while it was idle: that is no answer
        else:
            self._load.over(self, "cut off", str(error))

    # within

    def _whole_chunk(self, data: bytes) -> bool:
        """A chunk as it came, framing and all, that ends an event: nearly all of a stream."""
        now = monotonic()
        begin = data.find(b"\n") + 1
        if data.find(b"\n\n", begin) != len(data) - 4 or not data.startswith(b"data: ", begin):
            return False
        self._event(data[begin + 6 : -4], now)
        return True

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            message = decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fail("bad event", f"{error}: {data[:80].decode('utf-8', 'replace')}")
            return
        if message.error is not None:
            self._fail("error event", explanation(data))
            return
        sample = self.sample
        usage = message.usage
        if usage is not None:
            sample.prompt_tokens, sample.output_tokens = usage.prompt_tokens, usage.completion_tokens
        for choice in message.choices:
            if choice.finish_reason is not None:
                self._finished = True
            if choice.said:
                at = now - self._load.start
                if sample.events:
                    self._load.gaps.append(at - sample.last)
                else:
                    sample.first = at
                sample.events += 1
                sample.last = at

    def _end_stream(self) -> None:
        sample = self.sample
        if not (self._done or self._finished):
            self._load.over(self, "cut short", "a stream ended without a finish_reason and without [DONE]")
        elif not sample.events:
            self._load.over(self, "empty", "a stream without any text")
        else:
            self._end_counted()

    def _end_answer(self) -> None:
        body = b"".join(self._parts)
        if self._status != 200:
            self._load.over(self, f"http {self._status}", explanation(body))
            return
        if self.planned.stream:
            self._load.over(self, "no stream", "an answer in one piece, where a stream was asked for")
            return
        try:
            message = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._load.over(self, "bad answer", str(error))
            return
        if message.error is not None:
            self._load.over(self, "error answer", explanation(body))
        elif not any(choice.said for choice in message.choices):
            self._load.over(self, "empty", "an answer without any text")
        else:
            if message.usage is not None:
                self.sample.prompt_tokens = message.usage.prompt_tokens
                self.sample.output_tokens = message.usage.completion_tokens
            self._end_counted()

    def _end_counted(self) -> None:
        sample = self.sample
        if not sample.output_tokens:
            if not self._load.count_events or not sample.events:
                self._load.over(self, "no usage", "the server does not say how many tokens an answer had")
                return
            sample.output_tokens = sample.events
        self._load.over(self, "")

    def _fail(self, kind: str, explained: str) -> None:
        self.give_up()
        self._load.over(self, kind, explained)
