"""Classes, rules and keys: what is odd about them, and whether a first token can be had as soon as it is wanted."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidegate.config import Settings
from tidegate.control.concerns import concerns
from tidegate.control.doctor.findings import Finding, note, ok
from tidegate.control.sums import ClassSum
from tidegate.types import KeyView

TAIL_BYTES = 1 << 20
"""The last few thousand requests; older ones tell of engines that may be gone."""
LEAST_REQUESTS = 20
"""A median of fewer says nothing."""


def gather(access_log: Path, *, tail_bytes: int = TAIL_BYTES) -> float | None:
    """The shortest time to a first token measured lately: the smallest median of a class, what was waited left out.

    Seconds; None where too few streams are in the log.
    """
    try:
        with access_log.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - tail_bytes))
            lines = opened.read().splitlines()[1 if size > tail_bytes else 0 :]
    except OSError:
        return None
    return floor_of(lines)


def floor_of(lines: Iterable[bytes]) -> float | None:
    """As `gather`, from lines of the access log; what is no whole line is left out."""
    times: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        try:
            told = json.loads(line)
            if told["stream"] and told["outcome"] == "done" and not told["moves"]:
                times[told["class"]].append((told["first_ms"] - told["queue_ms"]) / 1000)
        except (ValueError, LookupError, TypeError):
            continue
    medians = [statistics.median(those) for those in times.values() if len(those) >= LEAST_REQUESTS]
    return min(medians, default=None)


def floor_reported(sums: Sequence[ClassSum]) -> float | None:
    """The smallest median of a class in what gateways report at this moment, seconds."""
    known = (one.first_token for one in sums)
    return min((one.p50_s for one in known if one.p50_s is not None and one.samples >= LEAST_REQUESTS), default=None)


def check(settings: Settings, keys: Sequence[KeyView], floor_s: float | None) -> Iterable[Finding]:
    """One finding for each concern."""
    found = concerns(settings, keys=keys, floor_s=floor_s)
    for sentence in found:
        key = sentence.startswith("key ")
        yield note("classes", sentence, "`tidegate keys list` shows the keys" if key else "change it in the settings")
    if not found:
        count = len(settings.policy().classes)
        yield ok("classes", f"{count} classes, {len(settings.rule)} rules of the settings")
