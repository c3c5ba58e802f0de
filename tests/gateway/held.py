"""An engine that holds every answer until it is told to finish it, and a gateway whose time stands still."""

import asyncio
import json

from gateway.byte_engine import DONE, LAST_CHUNK, STREAM_HEAD, chunk, event, json_head
from tidegate.types import LimitOptions

ANSWER = json.dumps({"id": "c", "choices": [{"index": 0, "message": {"content": "ab"}}]}).encode()


class Held:
    """A script for a byte engine: a stream's first event leaves at once, all the rest once its gate is open."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        """One for each request, in the order in which they came."""
        self.always = False
        """Whether every gate is open from now on."""

    async def __call__(self, wire, asked) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        if self.always:
            gate.set()
        stream = asked.json.get("stream")
        if stream:
            await wire.send(STREAM_HEAD, chunk(event("a")))
        opened, gone = asyncio.ensure_future(gate.wait()), asyncio.ensure_future(wire.until_gone())
        await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        for one in (opened, gone):
            one.cancel()
        await asyncio.gather(opened, gone, return_exceptions=True)
        if not gate.is_set():
            wire.close()
        elif stream:
            await wire.send(chunk(event("b", finish_reason="stop")), chunk(DONE), LAST_CHUNK)
        else:
            await wire.send(json_head(len(ANSWER)) + ANSWER)

    def open(self) -> None:
        """Finish everything that has come."""
        for gate in self.gates:
            gate.set()


def fixed(sequences: int, **options) -> LimitOptions:
    """So many requests at once on every replica."""
    return LimitOptions(kind="fixed", sequences=sequences, **options)


class Clock:
    """The time of a gateway, which passes when the test says so."""

    def __init__(self, running) -> None:
        self.now_s = running.gateway.now()
        running.gateway.now = running.gateway.flights.now = lambda: self.now_s


def chat(**fields) -> bytes:
    """The body of a chat request."""
    fields.setdefault("messages", [{"role": "user", "content": "hi"}])
    return json.dumps({"model": "m", **fields}).encode()


def at_rest(running) -> bool:
    """Whether nothing is in flight, nothing waits, and every permit is back."""
    replicas = running.gateway.fleet.replicas.values()
    nothing_held = all(not (one.in_flight or one.tokens or one.jobs) for one in replicas)
    line = running.gateway.lines.of("m")
    return nothing_held and not len(line.queue) and not any(state.in_flight for state in line.states.values())
