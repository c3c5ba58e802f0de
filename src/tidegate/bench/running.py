"""One command's runs, one after the other: each rate of a ramp, each repeat, with what the server used meanwhile."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from random import Random
from typing import Final

from tidegate.bench import summary
from tidegate.bench.arrivals import Arrivals, Ramp
from tidegate.bench.driver import Driver
from tidegate.bench.knee import keeps_up
from tidegate.bench.results import Run
from tidegate.bench.slo import Slo
from tidegate.bench.trace import Arrival
from tidegate.bench.use import Watcher
from tidegate.bench.workload import Planned, Workload
from tidegate.http import Endpoint
from tidegate.types import GpuReport

BEYOND: Final = 2
"""Steps of a ramp in a row that the server does not keep up with; then it ends."""


@dataclass(frozen=True)
class Coming:
    """How requests come: by exactly one of `rate`, `ramp`, `trace` and `users`. Of `seconds` and `requests` one may be None."""

    arrivals: Arrivals
    rate: float | None = None
    ramp: Ramp | None = None
    trace: tuple[Arrival, ...] = ()
    users: int | None = None
    seconds: float | None = None
    requests: int | None = None
    repeats: int = 1
    warmup_s: float = 0.0

    def names(self) -> list[tuple[str, float | None]]:
        """The runs of one repeat, each with the requests a second that it offers."""
        if self.ramp is not None:
            return [(f"{rate:g}/s", rate) for rate in self.ramp.rates()]
        if self.rate is not None:
            return [(f"{self.rate:g}/s", self.rate)]
        if self.trace:
            last = self.trace[-1].at_s
            return [("trace", len(self.trace) / last if last else None)]
        return [(f"{self.users} at once", None)]


@dataclass(frozen=True)
class Job:
    """What is to be measured."""

    endpoint: Callable[[], Endpoint]
    workload: Callable[[int], Workload]
    """By the number of the run, from which its seed follows."""
    coming: Coming
    seed: int
    slo: Slo | None
    bound_s: float
    timeout_s: float
    most_in_flight: int
    count_events: bool
    pid: int | None
    gpus: Callable[[], tuple[GpuReport, ...]] | None


class Runs:
    """Runs a job. `stop` interrupts it: the run that goes on then is partial, and the last."""

    def __init__(self, job: Job) -> None:
        self.done: list[Run] = []
        self.driver: Driver | None = None
        self.name = ""
        self.stopped = False
        self._job = job

    def stop(self) -> None:
        self.stopped = True
        if self.driver is not None:
            self.driver.stop()

    async def run(self) -> None:
        coming = self._job.coming
        for repeat in range(coming.repeats):
            beyond = 0
            for name, rate in coming.names():
                if self.stopped or beyond >= BEYOND:
                    break
                self.name = name if coming.repeats == 1 else f"{name}, {repeat + 1} of {coming.repeats}"
                self.done.append(await self._one(name, rate))
                if coming.ramp is not None:
                    kept = keeps_up(summary.step(self.done[-1]), summary.step(self.done[0]))
                    beyond = 0 if kept else beyond + 1

    async def _one(self, name: str, rate: float | None) -> Run:
        job, coming, number = self._job, self._job.coming, len(self.done)
        driver = Driver(
            job.endpoint(),
            timeout_s=job.timeout_s,
            most_in_flight=job.most_in_flight,
            count_events=job.count_events,
        )
        plan = self._plan(job.workload(number), rate, Random(job.seed + number))  # noqa: S311 - a load is no secret
        watcher = await asyncio.to_thread(Watcher, job.pid, job.gpus)
        self.driver = driver
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection is a pause, which would be taken for the server's
        try:
            if coming.users is not None:
                await driver.closed_loop(plan, coming.users, coming.seconds)
            else:
                await driver.open_loop(plan)
        finally:
            gc.enable()
            gc.unfreeze()
            self.driver = None
            use = await asyncio.to_thread(watcher.end)
        observed = summary.Observed(
            driver.samples,
            driver.gaps,
            driver.explained,
            partial=driver.stopped,
            most_in_flight=driver.most_in_flight,
            use=use,
        )
        return summary.run(
            name, observed, offered_per_s=rate, slo=job.slo, bound_s=job.bound_s, warmup_s=coming.warmup_s
        )

    def _plan(self, workload: Workload, rate: float | None, random: Random) -> Iterator[Planned]:
        coming = self._job.coming
        if coming.trace:
            plan = workload.replayed(
                arrival for arrival in coming.trace if coming.seconds is None or arrival.at_s < coming.seconds
            )
        elif coming.users is not None:
            plan = workload.planned(_always())
        else:
            assert rate is not None  # noqa: S101 - names() gives one to every run of an open loop without a trace
            times = coming.arrivals(rate, random)
            seconds = coming.seconds
            plan = workload.planned(times if seconds is None else takewhile(lambda at: at < seconds, times))
        return plan if coming.requests is None else islice(plan, coming.requests)


def _always() -> Iterator[float]:
    while True:
        yield 0.0
