"""What a gateway costs beside a bare proxy: CPU for a JSON request and for a streamed event, in pairs of one run.

Times of a shared machine mean little, ratios of pairs that ran one after the other mean more; so nothing here is a
verdict by itself: a row is the cost of both in one round.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from load.clients import Log, askers, chat_request, quantile
from load.programs import Program, bare_proxy, canned_engine, create_key, gateway

KEY = "sk-tg-" + "k" * 43
CONNECTIONS, STREAMS = 32, 100


@dataclass(frozen=True)
class Cost:
    """CPU of one program in one round, in microseconds."""

    request_us: float
    event_us: float


@dataclass(frozen=True)
class Pair:
    """One round."""

    bare: Cost
    gateway: Cost

    @property
    def request_ratio(self) -> float:
        return self.gateway.request_us / self.bare.request_us

    @property
    def event_ratio(self) -> float:
        return self.gateway.event_us / self.bare.event_us


@contextmanager
def bare_and_gateway(folder: Path) -> Iterator[tuple[Program, Program]]:
    """Both in front of one engine; the gateway with all it does for a key: checked, usage recorded, access log written."""
    with ExitStack() as stack:
        engine = stack.enter_context(canned_engine(folder, tokens=64, gap_ms=10))
        bare = stack.enter_context(bare_proxy(folder, engine))
        create_key(folder, KEY)
        yield bare, stack.enter_context(gateway(folder, engine))


async def cost(program: Program, seconds: float) -> Cost:
    """One program, first with JSON requests, then with streams, so long each."""
    request = await _spent(program, seconds, CONNECTIONS, chat_request(stream=False, key=KEY))
    event = await _spent(program, seconds, STREAMS, chat_request(stream=True, key=KEY))
    return Cost(request, event)


async def _spent(program: Program, seconds: float, connections: int, request: bytes) -> float:
    """CPU for each answer, or for each event where there are any."""
    log = Log()
    made = await askers(program.port, connections, request, log, over_s=0.2)
    await asyncio.sleep(0.2)
    cpu_s, answers, events = program.cpu_s, log.answers, log.events
    await asyncio.sleep(seconds)
    cpu_s, answers, events = program.cpu_s - cpu_s, log.answers - answers, log.events - events
    for asker in made:
        asker.stop()
    if log.bad or not answers:
        raise RuntimeError(f"{log.bad} bad answers of {log.answers}\n{program.log.read_text()[-1000:]}")
    return cpu_s / (events or answers) * 1e6


async def pairs(folder: Path, *, rounds: int, seconds: float) -> list[Pair]:
    """So many rounds, each with the other one first."""
    found = []
    with bare_and_gateway(folder) as (bare, front):
        await cost(front, 0.3)
        await cost(bare, 0.3)
        for number in range(rounds):
            if number % 2:
                theirs, ours = await cost(front, seconds), await cost(bare, seconds)
                found.append(Pair(bare=ours, gateway=theirs))
            else:
                ours, theirs = await cost(bare, seconds), await cost(front, seconds)
                found.append(Pair(bare=ours, gateway=theirs))
    return found


def spread(values: list[float]) -> str:
    """Median and extremes."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


async def stream_times(port: int, streams: int, request: bytes, *, times: int) -> tuple[Log, float, float]:
    """A load of streams, and the 99th percentiles of their first event and of the gaps between events, in seconds."""
    log = Log()
    made = await askers(port, streams, request, log, over_s=0.5, times=times)
    await asyncio.gather(*(asker.ended for asker in made))
    for asker in made:
        asker.stop()
    return log, quantile(log.first_s, 0.99), quantile(log.gaps_s, 0.99)
