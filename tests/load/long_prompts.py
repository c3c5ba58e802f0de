"""Short chats with and without prompts of 16,384 tokens beside them, one a second, in turns."""

from collections.abc import Sequence
from dataclasses import dataclass

from load.clients import quantile
from load.fronts import capacity, requests
from load.overload import Load, Outcome, Phase, plan

CHAT_LOAD = 0.3
"""Of the requests that two engines serve of the usual mix."""
LONG_EVERY_S = 1.0
SETTLE_S = 2.0
"""The first chats and the first long prompts of a span are not counted: nothing is known of them yet."""


@dataclass
class Span:
    """What came in one span."""

    outcomes: Sequence[Outcome]

    @property
    def chats_s(self) -> list[float]:
        """First tokens of the chats that are counted; one without an answer counts as never."""
        counted = [one for one in self.outcomes if one.kind == "interactive" and one.at_s >= SETTLE_S]
        return [one.first_s if one.whole_s is not None and one.first_s is not None else float("inf") for one in counted]

    @property
    def longs_whole(self) -> int:
        return sum(one.kind == "long" and one.whole_s is not None for one in self.outcomes)

    @property
    def longs(self) -> int:
        return sum(one.kind == "long" for one in self.outcomes)


async def span(port: int, seconds: float, seed: int, *, longs: bool) -> Span:
    """One span; with the same seed the chats come at the same times."""
    arrivals = plan([Phase(CHAT_LOAD * capacity(2), seconds, {"interactive": 1.0})], seed)
    if longs:
        arrivals = sorted(
            [*arrivals, *((LONG_EVERY_S * number, "long") for number in range(int(seconds / LONG_EVERY_S)))]
        )
    load = Load(port, requests())
    await load.arrive(arrivals, seconds)
    return Span(await load.finish())


def p99_s(spans: Sequence[Span]) -> float:
    """Of the chats of all these spans."""
    return quantile([first for one in spans for first in one.chats_s], 0.99)
