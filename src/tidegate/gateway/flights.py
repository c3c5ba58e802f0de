"""All requests in flight: what they share, and a look at each of them every second."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidegate.gateway.fleet import Replica
from tidegate.gateway.proxy import Flight
from tidegate.gateway.record import Ended
from tidegate.types import GatewayOptions

LOOK_S: Final = 1.0
RETRY_SHARE: Final = 0.2
"""The most of the requests in flight that may be retries after an engine's error: more would be a storm of our own."""


class Flights:
    """The `Host` of every flight."""

    def __init__(
        self,
        *,
        random: Callable[[], float],
        now: Callable[[], float],
        options: Callable[[], GatewayOptions],
        ended: Callable[[Ended], None],
        settle: Callable[[], None],
        searched: Callable[[Replica], None],
    ) -> None:
        """`ended` is told of every end; `settle` is called once a second."""
        self.random, self.now, self.options = random, now, options
        self.active: set[Flight] = set()
        self.searched = searched
        self._record, self._settle = ended, settle
        self._retries = 0
        self._loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self._looking = self._loop.call_later(LOOK_S, self._look)

    def launch(self, flight: Flight) -> None:
        """Send a request on its way. Raises RequestError where nobody can be asked; it was none of ours then."""
        flight.launch()
        if not flight.over:
            self.active.add(flight)

    def spawn(self, connecting: Flight, replica: Replica) -> asyncio.Task[None]:
        """Connect in the background; the pool had nothing idle."""
        return self.run(connecting.connect(replica))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work beside the requests, ended when the gateway ends."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def later(self, seconds: float, flight: Flight) -> asyncio.TimerHandle:
        """Ask again in a moment."""
        return self._loop.call_later(seconds, flight.ask_again)

    def may_retry(self) -> bool:
        """Whether one more request may be retried; at least one always may."""
        if self._retries >= max(1, int(RETRY_SHARE * len(self.active))):
            return False
        self._retries += 1
        return True

    def ended(self, flight: Flight, record: Ended, *, retried: bool) -> None:
        """A flight has ended."""
        self.active.discard(flight)
        self._retries -= retried
        self._record(record)

    def leave(self, replica: Replica) -> None:
        """A replica is stuck: its answers are asked for elsewhere."""
        for flight in list(self.active):
            flight.leave(replica)

    def _look(self) -> None:
        self._looking = self._loop.call_later(LOOK_S, self._look)
        self.look(self.now())
        self._settle()

    def look(self, now: float) -> None:
        """End what takes too long, and bound what is kept."""
        options = self.options()
        for flight in list(self.active):
            flight.look(now, options)
        kept = [(flight.measure(), flight) for flight in self.active]
        total = sum(size for size, _ in kept)
        for size, flight in sorted(kept, key=lambda one: one[0], reverse=True):
            if size <= options.keep_stream_bytes and total <= options.keep_total_bytes:
                break
            flight.lose()
            total -= size

    async def close(self) -> None:
        """End what runs beside the requests."""
        self._looking.cancel()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
