"""A load that rises and falls again: what people wait in each second of it, and where the limits stand."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from load.clients import quantile
from load.fronts import by_label, read_metrics, sum_of
from load.overload import Outcome
from load.programs import Program

SAMPLE_S = 0.25
LOADS, SECONDS = (0.5, 3.0, 0.5), (10.0, 10.0, 25.0)
"""Multiples of what the engines can serve, and for how long each."""


@dataclass
class Samples:
    """What a gateway said of itself meanwhile; `at_s` since the load began."""

    at_s: list[float] = field(default_factory=list)
    limits: dict[str, list[float]] = field(default_factory=dict)
    running: dict[str, list[float]] = field(default_factory=dict)
    queued: list[float] = field(default_factory=list)


async def sample(front: Program, samples: Samples) -> None:
    """Read a gateway's metrics until cancelled."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(10**9):
        await asyncio.sleep(max(0.0, begun + number * SAMPLE_S - loop.time()))
        text = await asyncio.to_thread(read_metrics, front.port)
        samples.at_s.append(loop.time() - begun)
        samples.queued.append(sum_of(text, "tidegate_queue_requests"))
        for name, kept in (("tidegate_replica_limit", samples.limits), ("tidegate_replica_in_flight", samples.running)):
            for replica, value in by_label(text, name, "replica").items():
                kept.setdefault(replica, []).append(value)


def per_second(outcomes: Sequence[Outcome], seconds: float) -> list[dict[str, float | None]]:
    """For each second in which interactive requests came: how many, how many in vain, and the 99th percentile of the
    first token of the others (with so few, the longest)."""
    rows: list[dict[str, float | None]] = []
    chats = [one for one in outcomes if one.kind == "interactive"]
    for second in range(math.ceil(seconds)):
        came = [one for one in chats if second <= one.at_s < second + 1]
        firsts = [one.first_s for one in came if one.whole_s is not None and one.first_s is not None]
        rows.append(
            {
                "second": second,
                "came": len(came),
                "refused": sum(one.refused for one in came),
                "first_p99_s": quantile(firsts, 0.99) if firsts else None,
            }
        )
    return rows


def recovery_s(rows: Sequence[dict[str, float | None]], down_s: float, target_s: float) -> float | None:
    """Seconds after the load has fallen from which on every second is in time; None: never."""
    after = [row["first_p99_s"] or 0.0 for row in rows[int(down_s) :]]
    late = [number for number, first_s in enumerate(after) if first_s > target_s]
    recovered = late[-1] + 1 if late else 0
    return float(recovered) if recovered < len(after) else None


def returns(outcomes: Sequence[Outcome], kind: str, down_s: float) -> str:
    """What became of those of a kind that were refused and came again when told to."""
    told = [o.retry_after_s for o in outcomes if o.kind == kind and o.retry_after_s is not None]
    again = [o for o in outcomes if o.kind == f"{kind} again"]
    if not told:
        return f"  {kind}: nobody was refused"
    ends = [o.at_s + o.whole_s - down_s for o in again if o.whole_s is not None]
    return (
        f"  {kind}: {len(told)} refused and told to wait {median(told):.1f} s (median; {min(told):.1f} to {max(told):.1f}); "
        f"{len(again)} came again, {sum(not o.refused for o in again)} of them let in; "
        f"the last answer to them {max(ends, default=0.0):.1f} s after the load had fallen"
    )
