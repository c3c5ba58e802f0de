"""Sends requests when they are due, whatever the answers do (open loop), or when the one before has ended (closed loop).

Times count from when a request was to be sent: a server that holds up its clients is not thereby asked less.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Iterator, MutableSequence
from typing import Final

from tidegate.alarm import Alarm
from tidegate.bench.call import Call
from tidegate.bench.samples import Sample
from tidegate.bench.workload import Planned
from tidegate.errors import ConnectError
from tidegate.http import Endpoint

MOST_AT_ONCE: Final = 32
"""Requests that are sent in one turn of the loop; answers are read between turns."""
LOOK_S: Final = 0.05
"""How often answers that take too long are looked for."""
UNFINISHED: Final = "unfinished"
"""The kind of what was on its way when the run was interrupted: neither answered nor failed."""


class Driver:
    """One run against one server. Everything happens in the running event loop."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, most_in_flight: int, count_events: bool) -> None:
        self.start = time.monotonic()
        self.count_events = count_events
        self.gaps: MutableSequence[float] = array("d")
        """Times between two events with text, of all streams."""
        self.samples: list[Sample] = []
        """Of what is over."""
        self.kinds: Counter[str] = Counter()
        self.explained: dict[str, str] = {}
        """By kind, what the first one said."""
        self.sent = self.most_in_flight = 0
        self.sending_s: float | None = None
        """How long requests were sent, once that is over."""
        self._endpoint, self._timeout_s, self._room = endpoint, timeout_s, most_in_flight
        self._in_flight: dict[Call, asyncio.Task[None] | None] = {}
        """In order of their sending; the task that connects, while there is one."""
        self._ended = asyncio.Event()
        self._all_sent = self._stopped = False
        self._next: Planned | None = None
        self._plan: Iterator[Planned] = iter(())
        self._users = 0
        self._until = 0.0
        self._alarm: Alarm | None = None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.start

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted."""
        return self._stopped

    def stop(self) -> None:
        """Interrupt: send no more, and give up what is on its way."""
        self._stopped = True
        self._finish_sending()
        for call in list(self._in_flight):
            self._give_up(call, UNFINISHED)
        self._ended.set()

    async def open_loop(self, plan: Iterator[Planned]) -> None:
        """Every request at its time. Ends when all are over."""
        self.start = time.monotonic()
        self._plan, self._next = plan, next(plan, None)
        self._alarm = Alarm(self._send_due)
        self.start = time.monotonic()
        self._send_due()
        await self._until_over()

    async def closed_loop(self, plan: Iterator[Planned], users: int, seconds: float | None) -> None:
        """`users` requests at once, until the plan ends or so many seconds have passed. Ends when all are over."""
        self._plan, self._users = plan, users
        self.start = time.monotonic()
        self._until = self.start + seconds if seconds is not None else float("inf")
        for _ in range(users):
            self._send_another()
        await self._until_over()

    # Load

    def over(self, call: Call, kind: str, explained: str = "") -> None:
        if self._in_flight.pop(call, call) is call:
            return  # it was given up already
        sample = call.sample
        sample.end = time.monotonic() - self.start
        sample.kind = kind
        self.samples.append(sample)
        self.kinds[kind] += 1
        if kind and explained:
            self.explained.setdefault(kind, explained)
        if self._users and not self._all_sent:
            asyncio.get_running_loop().call_soon(self._send_another)
        elif self._all_sent and not self._in_flight:
            self._ended.set()

    def again(self, call: Call) -> None:
        if call in self._in_flight:
            self._in_flight[call] = asyncio.get_running_loop().create_task(self._connect(call))

    # within

    def _send_due(self) -> None:
        alarm = self._alarm
        if self._all_sent or alarm is None:
            return
        for _ in range(MOST_AT_ONCE):
            planned = self._next
            if planned is None:
                self._finish_sending()
                return
            due = self.start + planned.at_s
            if due > time.monotonic():
                break
            self._begin(planned, planned.at_s)
            self._next = next(self._plan, None)
        alarm.set(due)

    def _send_another(self) -> None:
        if self._all_sent:
            return
        now = time.monotonic()
        planned = next(self._plan, None) if now < self._until else None
        if planned is None:
            self._finish_sending()
            return
        self._begin(planned, now - self.start)

    def _finish_sending(self) -> None:
        if not self._all_sent:
            self._all_sent = True
            self.sending_s = time.monotonic() - self.start
        if not self._in_flight:
            self._ended.set()

    def _begin(self, planned: Planned, at: float) -> None:
        self.sent += 1
        call = Call(self, planned, Sample(at, planned.klass))
        call.sent_at = now = time.monotonic()
        if len(self._in_flight) >= self._room:
            self._in_flight[call] = None
            self.over(call, "not sent", f"{self._room} requests were on their way: --max-in-flight allows no more")
            return
        self._in_flight[call] = None
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        connection = self._endpoint.take(now)
        if connection is not None:
            call.send(connection)
        else:
            self._in_flight[call] = asyncio.get_running_loop().create_task(self._connect(call))

    async def _connect(self, call: Call) -> None:
        try:
            connection = await self._endpoint.connect()
        except ConnectError as error:
            self.over(call, "no connection", str(error))
            return
        if call in self._in_flight:
            self._in_flight[call] = None
            call.send(connection)
        else:
            connection.abort()

    async def _until_over(self) -> None:
        looking = asyncio.get_running_loop().create_task(self._look())
        try:
            await self._ended.wait()
        finally:
            looking.cancel()
            if self._alarm is not None:
                self._alarm.close()
            for call in list(self._in_flight):
                self._give_up(call, UNFINISHED)
            for connection in list(self._endpoint.connections):
                connection.abort()
            await asyncio.sleep(0)  # sockets close in the turn after

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            latest = time.monotonic() - self._timeout_s
            while self._in_flight:
                call = next(iter(self._in_flight))
                if call.sent_at > latest:
                    break
                self._give_up(call, "timeout")

    def _give_up(self, call: Call, kind: str) -> None:
        task = self._in_flight.get(call)
        if task is not None:
            task.cancel()
        call.give_up()
        self.over(call, kind, f"no whole answer within {self._timeout_s:g} s" if kind == "timeout" else "")
