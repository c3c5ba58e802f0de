"""Whether a replica gets on with its work, told from what costs the data path nothing.

Any one sign will do, the cheapest are looked for first: answers that ended, its own counters, the CPU time of its
process, bytes on any of its streams. llama.cpp's counters all stand still through a prompt of many seconds, a stream
may be read by nobody, /metrics may be unreadable: one of them alone proves nothing.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tidegate.dialects.metrics import advanced, restarted
from tidegate.gateway.fleet import Replica
from tidegate.gateway.health import Watched
from tidegate.http import Connection
from tidegate.http.tcp import silent_s
from tidegate.types import Load

HOLD_S: Final = 10.0
"""How long a load that was read is taken for true when it cannot be read again."""
PATIENCE: Final = 3.0
"""A prompt may take so many times as long as the prefill rate that was measured says."""
ASSUMED_PREFILL_RATE: Final = 50.0
"""Tokens a second, until it was measured: what a small model does on one slow core."""
BYTES_PER_TOKEN: Final = 3.0
"""Few bytes, so that a prompt is rather thought too long than too short."""
SMOOTHING: Final = 0.3
BUSY_SHARE: Final = 0.05
"""The least share of one core that is work; answering /metrics every second takes less."""


def cpu_s(pid: int) -> float | None:
    """CPU seconds of a process of this machine so far; None if it is gone or cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        fields = stat[stat.rindex(b")") + 2 :].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


class Progress:
    """The signs of life of one replica, compared from look to look."""

    def __init__(self, replica: Replica, *, cpu_s: Callable[[int], float | None] = cpu_s) -> None:
        self.load: Load | None = None
        """What it said last, for as long as that may be true."""
        self.prefill_rate: float | None = None
        """Tokens a second, measured."""
        self._replica, self._cpu_s = replica, cpu_s
        self.looked_s = float("-inf")
        """When it was looked at last."""
        self._load_at_s = float("-inf")
        self._moved = False
        """Whether its counters moved in what was read between two looks."""
        self._seen = replica.progress
        self._cpu: float | None = None

    def look(self, load: Load | None, now: float, stuck_s: float) -> Watched:
        """What the health is told. `load` is what /metrics said just now, None if it could not be read."""
        replica = self._replica
        waiting = [connection for connection in replica.endpoint.connections if connection.awaited]
        since_s, self.looked_s = now - self.looked_s, now
        moved = self._moved | self._counted() | self._read(load, now) | self._computed(since_s)
        self._moved = False
        if waiting and not moved:
            moved = _heard(waiting, since_s)
        patience_s = stuck_s
        if waiting and not moved:
            patience_s = max(stuck_s, PATIENCE * self._longest_prefill_s(waiting))
        return Watched(busy=bool(waiting), moved=moved, patience_s=patience_s)

    def read(self, load: Load, now: float) -> None:
        """Something was read between two looks: the next look is one look all the same, at all that has moved."""
        self._moved |= self._read(load, now)

    def _counted(self) -> bool:
        before, self._seen = self._seen, self._replica.progress
        return before != self._seen

    def _read(self, load: Load | None, now: float) -> bool:
        if load is None:
            if now - self._load_at_s > HOLD_S:
                self.load = None
            return False
        before, self.load, self._load_at_s = self.load, load, now
        if before is None:
            return False
        if restarted(before, load):
            self._replica.began_anew()
            return True
        self._measure(before, load)
        return advanced(before, load)

    def _measure(self, before: Load, load: Load) -> None:
        tokens = (load.prompt_tokens_total or 0) - (before.prompt_tokens_total or 0)
        seconds = (load.prefill_s_total or 0.0) - (before.prefill_s_total or 0.0)
        if tokens > 0 and seconds > 0:
            rate = tokens / seconds
            old = self.prefill_rate
            self.prefill_rate = rate if old is None else old + SMOOTHING * (rate - old)

    def _computed(self, since_s: float) -> bool:
        pid = self._replica.view.pid
        before, self._cpu = self._cpu, None if pid is None else self._cpu_s(pid)
        return before is not None and self._cpu is not None and self._cpu - before >= BUSY_SHARE * since_s

    def _longest_prefill_s(self, waiting: Iterable[Connection]) -> float:
        largest = max(connection.asked_bytes for connection in waiting)
        return largest / BYTES_PER_TOKEN / (self.prefill_rate or ASSUMED_PREFILL_RATE)


def _heard(waiting: Iterable[Connection], since_s: float) -> bool:
    """Whether a byte came on any of these connections since the last look."""
    return any((silent := silent_s(connection.transport)) is not None and silent < since_s for connection in waiting)
