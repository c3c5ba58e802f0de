"""The events of one stream on their way to a client: whole ones leave at once, and all are kept until the stream ends.

Kept events are not looked into while the stream lives; only if its replica dies are they read, to go on elsewhere.
What follows a `finish_reason` is parsed before it leaves: there the engine tells what the answer cost, in an event that
most clients did not ask for.
"""

from collections.abc import Callable
from typing import Final

from tidegate import openai
from tidegate.http import Connection, Exchange
from tidegate.http.framing import ChunkedBody

TAIL_BYTES: Final = 64 * 1024
"""The most of an incomplete event that waits for its end; past it the bytes flow as they come."""
FINISH: Final = b'finish_reason":'
"""Cannot stand inside a JSON string, where its quote would be escaped."""
_AFTER_FINISH: Final = len(FINISH)
_NOT_FINISHED: Final = FINISH + b"null"
COMMENT_WITHIN: Final = len(b"fff\r\n:")
"""Where the colon of a chunk that begins with a comment is at the latest."""
NULL_EVENT: Final = b"data: null\n\n"
"""How llama.cpp begins the stream of several prompts; no client knows what to do with it."""
DONE_CHUNK: Final = openai.DONE + b"\r\n"


class EventRelay:
    """Passes the events of an answer on. `kept` is None once the stream has lost the privilege to be continued."""

    __slots__ = (
        "_attached", "_counted", "_done", "_exchange", "_hide_usage", "_pipe", "_piped", "_tail", "events", "finished", "kept",
        "kept_bytes", "torn", "usage",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, *, hide_usage: bool, piped: bool = True) -> None:
        """`hide_usage`: the client did not ask for it. `piped`: an event holds one choice at most."""
        self._exchange = exchange
        self._piped = piped
        self._hide_usage = hide_usage
        self._tail = b""
        self._counted = 0
        self._attached: Connection | None = None
        self._pipe: Callable[[bytes], bool] | None = None
        self.kept: list[bytes] | None = []
        """What was sent, chunk by chunk, with its framing."""
        self.kept_bytes = 0
        self.events = 0
        """Times that something with data was sent outside the pipe; see `progress`."""
        self.torn = False
        """Whether part of an event has left whose end has not."""
        self.finished = self._done = False
        """Whether a `finish_reason`, and `[DONE]`, have left."""
        self.usage: openai.Usage | None = None

    @property
    def progress(self) -> int:
        """Grows with every piece of the answer; comments do not count."""
        return self.events + (len(self.kept) if self.kept is not None else 0)

    @property
    def done(self) -> bool:
        """Whether the client has been told that the stream is whole."""
        return self._done or bool(self.kept and self.kept[-1].endswith(DONE_CHUNK))

    def attach(self, connection: Connection) -> None:
        """Let whole events flow from socket to socket, for as long as nothing has to be looked at."""
        over = self.finished or self._done
        if self._piped and self._exchange.chunked and not (self._tail or self.torn or over):
            self._attached = connection
            self._pass_on(connection)

    def _pass_on(self, connection: Connection) -> None:
        """The way of nearly every event: a chunk that ends one leaves as it came. What it needs, it holds."""
        keep = self.kept.append if self.kept is not None else self._count
        write = self._exchange.direct()
        last = self.kept[-1] if self.kept else b""
        at = last.rfind(_NOT_FINISHED)

        def pipe(framed: bytes) -> bool:
            at = framed.rfind(FINISH)
            if at >= 0:
                if not framed.startswith(b"null", at + _AFTER_FINISH):
                    return False
                connection.ending = framed[at:]  # the next ones will most likely end so too
            elif framed.find(b"\n:", 1, COMMENT_WITHIN) >= 0:
                return False  # a sign of life, but no progress
            keep(framed)
            write(framed)
            return True

        self._pipe = pipe
        connection.pass_on(last[at:] if at >= 0 and at == last.rfind(FINISH) else b"", keep, write, pipe)

    def _count(self, _framed: bytes) -> None:
        self.events += 1

    def feed(self, payload: bytes) -> None:
        """Some of the answer's bytes, unframed. Raises UpstreamClosedError for an event that cannot be read."""
        data = self._tail + payload if self._tail else payload
        if data == openai.DONE and not self.torn:
            self._tail, self._done = b"", True
            self._pass(data)
            return
        end = openai.whole_events(data)
        if len(data) - end > TAIL_BYTES:
            self._flow(data)
            return
        self._tail = data[end:]
        if not end:
            return
        whole = data[:end]
        whole = whole.removeprefix(NULL_EVENT)
        self.torn = False
        if self.finished or b"[DONE]" in whole or _has_finish(whole):
            for event in openai.split_raw(whole):
                self._look_at(event)
        else:
            self._send(whole)

    def end(self) -> None:
        """The engine closed the stream: what waits for an end that never comes leaves as it is."""
        if self._tail:
            self._exchange.write(self._tail)
            self.torn, self._tail = True, b""

    def forget_tail(self) -> None:
        """The replica is gone: half an event of it is worth nothing."""
        self._tail = b""

    def measure(self) -> int:
        """Bytes kept; counts what came since the last call."""
        kept = self.kept
        if kept is None:
            return 0
        self.kept_bytes += sum(map(len, kept[self._counted :]))
        self._counted = len(kept)
        return self.kept_bytes

    def lose(self) -> None:
        """Keep nothing more: if its replica dies now, the stream ends."""
        if self.kept is not None:
            self.events += len(self.kept)
        self.kept = None
        self.kept_bytes = 0
        attached = self._attached
        if attached is not None and attached.pipe is not None and attached.pipe is self._pipe:
            self._pass_on(attached)  # else it is at rest, or serves somebody else by now

    def kept_payload(self) -> bytes:
        """What was sent so far, unframed."""
        return ChunkedBody().feed(b"".join(self.kept or ()))[0]

    def _flow(self, data: bytes) -> None:
        self._exchange.write(data)
        self._tail = b""
        self.torn = True
        self.events += 1
        self.lose()

    def _send(self, whole: bytes) -> None:
        if whole.startswith(b"data: {") or openai.split_events(whole):
            self._pass(whole)
        else:
            self._exchange.write(whole)  # comments alone: no progress, and nothing to go on from

    def _pass(self, whole: bytes) -> None:
        if self.kept is not None:
            self.kept.append(b"%x\r\n%b\r\n" % (len(whole), whole))
        else:
            self.events += 1
        self._exchange.write(whole)

    def _look_at(self, event: bytes) -> None:
        """One whole event near the end of the stream."""
        data = openai.event_data(event)
        if data == b"[DONE]":
            self._done = True
            self._pass(event)
            return
        fields = openai.decode_event(data) if data else {}
        usage = openai.usage_of(fields)
        if usage is not None:
            self.usage = usage
            if self._hide_usage and not fields.get("choices"):
                return
        choices = fields.get("choices")
        if isinstance(choices, list) and any(isinstance(c, dict) and c.get("finish_reason") for c in choices):
            self.finished = True
        self._send(event)


def _has_finish(data: bytes) -> bool:
    """Whether an event says that a choice is finished."""
    at = data.find(FINISH)
    while at >= 0:
        if not data[at + _AFTER_FINISH : at + _AFTER_FINISH + 8].lstrip().startswith(b"null"):
            return True
        at = data.find(FINISH, at + _AFTER_FINISH)
    return False
