"""The metrics of all data processes as one: whichever of them is scraped answers for all.

Each process keeps its numbers in a file of its own, written every second and before it answers, and adds up the files
of all. What a process counted stays in the sums once it is gone: control folds its file into that of the past. So
no counter ever goes down, whoever answers. Nobody locks anything, and a process that hangs holds up no other one:
an answer reads the processes' files first and the past last, and the past names the files that are in it.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tidegate import logs
from tidegate.gateway.gpu_metrics import GAUGES
from tidegate.home import write_private
from tidegate.types import ProcessId

WRITE_S: Final = 1.0
FRESH_S: Final = 5.0
"""A process that has not written for so long is gone, or hangs: what it had open counts no more."""
PAST: Final = "past.json"
REMEMBERED: Final = 256
"""Names of folded files that the past keeps: an answer that read such a file has to find its name there, moments later."""
COUNTERS: Final = frozenset(("counter", "histogram", "summary"))
LEAST: Final = frozenset(("process_start_time_seconds", "tidegate_replica_reachable", "tidegate_replica_healthy"))
"""Gauges whose least value of all processes stands for all; of other ones it is the sum."""
MOST: Final = frozenset(
    (
        "process_max_fds",
        "python_info",
        "tidegate_queue_wait_seconds",
        "tidegate_engine_running",
        "tidegate_engine_waiting",
        "tidegate_engine_kv_usage",
        *GAUGES,
    )
)
"""Gauges of which the greatest stands for all: every process reads the same of an engine, and two controls of a GPU."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


class Family(msgspec.Struct, frozen=True, array_like=True):
    """One metric with all its labels."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]
    """Name, labels, value."""


class Page(msgspec.Struct, frozen=True):
    """What one process counted."""

    written_s: float
    """CLOCK_MONOTONIC, which all processes of a machine share."""
    families: tuple[Family, ...]


class Past(msgspec.Struct, frozen=True):
    """What those counted that are gone."""

    files: tuple[str, ...] = ()
    families: tuple[Family, ...] = ()


Kind = TypeVar("Kind", Page, Past)


Collect = Callable[[], Iterable[Metric]]


def process_metrics() -> CollectorRegistry:
    """What the system and Python tell of this process."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class Shares:
    """One process's part. `aside` is collected in a thread: counting ten thousand open files takes its time.

    `clock` is monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        process: ProcessId,
        *,
        aside: Collect = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._aside, self._clock = folder, aside, clock
        self._file = folder / file_name(process)
        self._steady = _Steady()
        self._numbers = 0
        self._written = 0
        self._writing = threading.Lock()

    async def run(self, collect: Collect) -> None:
        """Write what `collect` tells every second, and a last time when cancelled."""
        trouble = ""
        try:
            while True:
                try:
                    await asyncio.to_thread(self.write, *await self._page(collect))
                    trouble = ""
                except OSError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        logs.get().warning("metrics cannot be shared with the other processes", cause=trouble)
                await asyncio.sleep(WRITE_S)
        finally:
            with contextlib.suppress(OSError):
                self.write(*self.page((*collect(), *self._aside())))

    async def answer(self, collect: Collect) -> bytes:
        """What all processes counted, in Prometheus' format. Raises OSError where the own part cannot be written."""
        return await asyncio.to_thread(self._answer, *await self._page(collect))

    async def _page(self, collect: Collect) -> tuple[int, Page]:
        aside = await asyncio.to_thread(lambda: tuple(self._aside()))
        return self.page((*collect(), *aside))

    def page(self, metrics: Iterable[Metric]) -> tuple[int, Page]:
        """The numbers of this moment, and how many pages there were before."""
        self._numbers += 1
        return self._numbers, Page(self._clock(), self._steady.kept(metrics))

    def write(self, number: int, page: Page) -> None:
        """Blocks. A page is never replaced by an older one."""
        with self._writing:
            if number > self._written:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_private(self._file, msgspec.json.encode(page))
                self._written = number

    def gather(self) -> tuple[Metric, ...]:
        """The sum of all files. Blocks."""
        pages = {path.name: page for path in self._folder.glob("*-*.json") if (page := _read(path, Page))}
        past = _read(self._folder / PAST, Past) or Past()
        sums = _Sums()
        sums.add(past.families, gauges=False)
        for name, page in pages.items():
            if name not in past.files:
                sums.add(page.families, gauges=abs(self._clock() - page.written_s) < FRESH_S)
        return sums.metrics()

    def _answer(self, number: int, page: Page) -> bytes:
        self.write(number, page)
        registry = CollectorRegistry()
        registry.register(_Gathered(self.gather()))
        return generate_latest(registry)


def file_name(process: ProcessId) -> str:
    """Of a process's file."""
    return f"{process.pid}-{process.started}.json"


def fold(folder: Path, alive: Callable[[ProcessId], bool]) -> None:
    """Move what processes counted that are gone into the past. For one process at a time: control.

    Killed at any point, it is made whole by the next call. Raises OSError.
    """
    gone = [path for path in folder.glob("*-*.json") if not alive(_process_of(path))]
    if not gone:
        return
    past = _read(folder / PAST, Past) or Past()
    sums = _Sums()
    sums.add(past.families, gauges=False)
    new = [path for path in gone if path.name not in past.files]
    for path in new:
        page = _read(path, Page)
        sums.add(page.families if page else (), gauges=False)
    names = (*past.files, *(path.name for path in new))[-REMEMBERED:]
    if new:
        write_private(folder / PAST, msgspec.json.encode(Past(names, sums.families())))
    for path in gone:
        path.unlink(missing_ok=True)


class _Gathered(Collector):
    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class _Steady:
    """Counters of this process that never go back: one that starts anew, as a replaced replica's does, goes on."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str]] = {}
        self._last: dict[str, dict[Key, tuple[float, float]]] = {}
        """Of each counter: what was added to it, and what it told last."""

    def kept(self, metrics: Iterable[Metric]) -> tuple[Family, ...]:
        gauges: list[Family] = []
        for metric in metrics:
            samples = [(sample.name, tuple(sorted(sample.labels.items())), sample.value) for sample in metric.samples]
            if metric.type not in COUNTERS:
                gauges.append(Family(metric.name, metric.type, metric.documentation, tuple(samples)))
                continue
            self._families[metric.name] = metric.type, metric.documentation
            last = self._last.setdefault(metric.name, {})
            for name, labels, value in samples:
                base, told = last.get((name, labels), (0.0, 0.0))
                last[name, labels] = (base + told, value) if value < told else (base, value)
        counters = [
            Family(name, kind, text, tuple((*key, base + told) for key, (base, told) in self._last[name].items()))
            for name, (kind, text) in self._families.items()
        ]
        return (*counters, *gauges)


class _Sums:
    """Families added up, sample by sample."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, dict[Key, float]] = {}

    def add(self, families: Iterable[Family], *, gauges: bool) -> None:
        for family in families:
            if family.kind not in COUNTERS and not gauges:
                continue
            self._heads.setdefault(family.name, (family.kind, family.help))
            samples = self._samples.setdefault(family.name, {})
            for name, labels, value in family.samples:
                key = name, labels
                held = samples.get(key)
                if held is None:
                    samples[key] = value
                elif family.name in LEAST:
                    samples[key] = min(held, value)
                elif family.name in MOST:
                    samples[key] = max(held, value)
                else:
                    samples[key] = held + value

    def families(self) -> tuple[Family, ...]:
        return tuple(
            Family(name, *head, tuple((*key, value) for key, value in self._samples[name].items()))
            for name, head in self._heads.items()
        )

    def metrics(self) -> tuple[Metric, ...]:
        made: list[Metric] = []
        for family in self.families():
            metric = Metric(family.name, family.help, family.kind)
            metric.samples = [Sample(name, dict(labels), value) for name, labels, value in family.samples]
            made.append(metric)
        return tuple(made)


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    """None where the file is gone, or was written by another version of this code."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _process_of(path: Path) -> ProcessId:
    pid, _, started = path.stem.partition("-")
    return ProcessId(int(pid) if pid.isdigit() else 0, int(started) if started.isdigit() else 0)
