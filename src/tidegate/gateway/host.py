"""What a request in flight needs of those around it."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from tidegate.gateway.fleet import Replica
from tidegate.gateway.record import Ended
from tidegate.types import GatewayOptions

if TYPE_CHECKING:
    from tidegate.gateway.proxy import Flight


class Lease(Protocol):
    """What a key was granted for one request."""

    def end(self, tokens: int | None) -> None:
        """The request has ended, and cost so many tokens; None where nobody told, and the estimate has to do."""

    def cancel(self) -> None:
        """The request was never asked of an engine: it costs nothing."""


class Host(Protocol):
    """What a flight needs of the gateway."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def now(self) -> float:
        """Monotonic seconds."""

    def options(self) -> GatewayOptions:
        """The settings of this moment."""

    def spawn(self, connecting: "Flight", replica: Replica) -> asyncio.Task[None]:
        """Run `connecting.connect(replica)`."""

    def later(self, seconds: float, flight: "Flight") -> asyncio.TimerHandle:
        """Call `flight.ask_again()` in so many seconds."""

    def may_retry(self) -> bool:
        """Whether one more request may be retried after an engine's error; the flight tells `ended` of it."""

    def searched(self, replica: Replica) -> None:
        """It matters now how many requests a replica can have."""

    def ended(self, flight: "Flight", record: Ended, *, retried: bool) -> None:
        """A flight has ended. Called once for each that was launched."""
