"""An open-loop load: requests that come at their times, whatever becomes of those before them, and what became of them.

Every latency counts from the time at which the request should have been sent: a client that is late, or a connection that
takes long, is part of what a person waits.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httptools

from load.clients import CHAT, quantile

COMPLETIONS = "/v1/completions"
PATIENCE_S = 120.0
RETURN_S = 60.0
"""Who is told to come again later than this does not, within a load."""
REFUSALS = (429, 503)


@dataclass(frozen=True)
class Kind:
    """What a kind of client asks."""

    name: str
    """Its class, as `X-Request-Type` says it."""
    tokens: int
    stream: bool = False
    path: str = CHAT

    def request(self, prompt: str, *, model: str = "fake") -> bytes:
        """Its bytes on the wire."""
        asked = {"prompt": prompt} if self.path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
        fields = {"model": model, **asked, "stream": self.stream, "max_tokens": self.tokens}
        body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        lines = (
            f"POST {self.path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"X-Request-Type: {self.name}",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Outcome:
    """What became of one request. Seconds; `at_s` since the load began, the others since `at_s`."""

    kind: str
    at_s: float
    status: int = 0
    """0: no answer."""
    first_s: float | None = None
    """The first token; of a JSON answer, all of it."""
    whole_s: float | None = None
    """The end of an answer that is sound to its end."""
    retry_after_s: float | None = None

    @property
    def refused(self) -> bool:
        return self.status in REFUSALS

    @property
    def fault(self) -> bool:
        """Neither answered nor honestly refused."""
        return self.whole_s is None and not self.refused


class Client(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, outcome: Outcome, request: bytes, due_s: float) -> None:
        self._outcome, self._request, self._due_s = outcome, request, due_s
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._stream = self._failed = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # it is TCP
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self._stream = value.startswith(b"text/event-stream")
        elif lower == b"retry-after-ms":
            self._outcome.retry_after_s = int(value) / 1000

    def on_headers_complete(self) -> None:
        self._outcome.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        data = self._tail + body
        if self._stream:
            self._failed = self._failed or b'"error":' in data
            if self._outcome.first_s is None and says_something(data):
                self._outcome.first_s = time.monotonic() - self._due_s
        self._tail = data[-200:]

    def on_message_complete(self) -> None:
        outcome = self._outcome
        sound = (b"data: [DONE]" in self._tail) if self._stream else self._tail.rstrip().endswith(b"}")
        if outcome.status == 200 and sound and not self._failed:
            outcome.whole_s = time.monotonic() - self._due_s
            if not self._stream:
                outcome.first_s = outcome.whole_s
        self.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def stop(self) -> None:
        """Whatever has not come by now does not come."""
        self._transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)


def says_something(events: bytes) -> bool:
    """Whether there is text in them: the event that only names the role is no token."""
    for name in (b'"content":"', b'"text":"'):
        at = events.find(name)
        while at >= 0:
            after = events[at + len(name) : at + len(name) + 1]
            if after and after != b'"':
                return True
            at = events.find(name, at + 1)
    return False


@dataclass(frozen=True)
class Phase:
    """So many requests a second of a mix, by shares, for so long."""

    rate: float
    seconds: float
    shares: Mapping[str, float]


def plan(phases: Sequence[Phase], seed: int) -> list[tuple[float, str]]:
    """Poisson arrivals: when, and of which kind. The same for the same seed, so that two fronts get the same ones."""
    rng, arrivals, begin = random.Random(seed), [], 0.0
    for phase in phases:
        at = begin + rng.expovariate(phase.rate)
        while at < begin + phase.seconds:
            arrivals.append((at, rng.choices(list(phase.shares), list(phase.shares.values()))[0]))
            at += rng.expovariate(phase.rate)
        begin += phase.seconds
    return arrivals


async def one(port: int, outcome: Outcome, request: bytes, due_s: float) -> None:
    """One request, to its end."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, client = await asyncio.get_running_loop().create_connection(
                lambda: Client(outcome, request, due_s), "127.0.0.1", port
            )
            try:
                await client.ended
            finally:
                client.stop()
    except (OSError, TimeoutError):
        outcome.whole_s = None


class Load:
    """Arrivals before one port. `outcomes` come in the order in which they were sent."""

    def __init__(self, port: int, requests: Mapping[str, Sequence[bytes]], *, come_again: bool = False) -> None:
        """`requests`: of each kind one or more, which are sent in turns.

        With `come_again` a client that is refused comes once more when it was told to, as one of "KIND again".
        """
        self._port, self._requests, self._come_again = port, requests, come_again
        self.outcomes: list[Outcome] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.begun_s = 0.0

    async def arrive(self, arrivals: Sequence[tuple[float, str]], seconds: float) -> None:
        """Send each at its time; returns when so many seconds are over, whatever is still unanswered."""
        self.begun_s = time.monotonic()
        counts = dict.fromkeys(self._requests, 0)
        for at, kind in arrivals:
            due_s = self.begun_s + at
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            request = self._requests[kind][counts[kind] % len(self._requests[kind])]
            counts[kind] += 1
            self.outcomes.append(Outcome(kind, at))
            self._tasks.append(asyncio.create_task(self._ask(self.outcomes[-1], request, due_s)))
        await asyncio.sleep(max(0.0, self.begun_s + seconds - time.monotonic()))

    async def _ask(self, outcome: Outcome, request: bytes, due_s: float) -> None:
        await one(self._port, outcome, request, due_s)
        if self._come_again and outcome.refused and (outcome.retry_after_s or RETURN_S) < RETURN_S:
            await asyncio.sleep(outcome.retry_after_s or 0.0)
            now = time.monotonic()
            self.outcomes.append(Outcome(f"{outcome.kind} again", now - self.begun_s))
            await one(self._port, self.outcomes[-1], request, now)

    async def finish(self) -> list[Outcome]:
        """Until all of them have ended."""
        await asyncio.gather(*self._tasks)
        return self.outcomes


def row(outcomes: Sequence[Outcome], seconds: float, *, target_s: float, bounds_s: Sequence[float]) -> dict[str, float]:
    """What a load came to. Shares are of all interactive requests, those that were refused among them."""
    chats = [outcome for outcome in outcomes if outcome.kind == "interactive"]
    whole = [outcome for outcome in chats if outcome.whole_s is not None]
    firsts = [outcome.first_s for outcome in whole if outcome.first_s is not None]
    in_time = sum(first <= target_s for first in firsts)
    return {
        "requests": len(outcomes),
        "interactive": len(chats),
        "in_time": in_time / max(1, len(chats)),
        "first_p50_s": quantile(firsts, 0.5),
        "first_p99_s": quantile(firsts, 0.99),
        "batch_per_s": sum(o.kind == "batch" and o.whole_s is not None for o in outcomes) / seconds,
        "refused": sum(o.refused for o in outcomes),
        "refused_interactive": sum(o.refused for o in chats),
        "faults": sum(o.fault for o in outcomes),
        "whole_p50_s": quantile([o.whole_s for o in whole if o.whole_s is not None], 0.5),
    } | {f"over_{bound:g}_s": share_over(whole, bound) for bound in bounds_s}


def share_over(answered: Sequence[Outcome], bound_s: float) -> float:
    """The share of answers that took longer."""
    return sum((outcome.whole_s or 0.0) > bound_s for outcome in answered) / max(1, len(answered))
