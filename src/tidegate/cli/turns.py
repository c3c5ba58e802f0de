"""Loads that are measured one after the other, what Ctrl-C does to them, and what comes of those that fail."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from tidegate.bench.comparing import Arm, turns
from tidegate.bench.results import Run
from tidegate.bench.running import Job, Runs
from tidegate.cli.bench_asked import Asked
from tidegate.cli.bench_load import Learnt, measure
from tidegate.cli.trial_engines import TrialError
from tidegate.errors import EngineError, OperatorError
from tidegate.http import Endpoint


class Stoppable:
    """Ctrl-C ends the load that goes on, whose answers are kept, or else whatever is about to begin one."""

    def __init__(self) -> None:
        self.stopped = False
        self._runs: Runs | None = None
        self._task: asyncio.Task[object] | None = None

    def stop(self) -> None:
        self.stopped = True
        if self._runs is not None:
            self._runs.stop()
        elif self._task is not None:
            self._task.cancel()  # an engine is about to start, or to end

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Do it to its end, or until it is stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        self._task = loop.create_task(work)
        try:
            await self._task
        except asyncio.CancelledError:
            if not self.stopped:
                raise

    async def load(self, endpoint: Endpoint, asked: Asked, learnt: Learnt, job: "partial[Job]", seed: int) -> Run:
        """One run; partial where it was stopped."""
        try:
            runs = await measure(endpoint, asked, learnt, job, seed, begun=self._begun)
        finally:
            self._runs = None
        return runs.done[0]

    def _begun(self, runs: Runs) -> None:
        self._runs = runs


class Rounds:
    """Turns of several, and who failed: such a one is not asked again."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        self.names, self.count = names, count
        self.runs: list[list[Run | None]] = [[None] * count for _ in names]
        self.faults: dict[int, TrialError] = {}

    async def take(self, turn: Callable[[int, int], Awaitable[Run]], stopped: Callable[[], bool]) -> None:
        """`turn` is handed the place of whose turn it is, and the number of the round."""
        for number, place in turns(len(self.names), self.count):
            if stopped():
                return
            if place in self.faults:
                continue
            print(f"round {number + 1} of {self.count}: {self.names[place]}", file=sys.stderr, flush=True)
            try:
                self.runs[place][number] = await turn(place, number)
            except TrialError as error:
                self.faults[place] = error
            except (EngineError, OperatorError) as error:  # it does not answer, or not what it is asked
                self.faults[place] = TrialError(str(error), no_memory=False)

    def arms(self, words: Sequence[str]) -> list[Arm]:
        """What became of each; `words` say what they are."""
        found = []
        for place, (name, what) in enumerate(zip(self.names, words, strict=True)):
            fault = self.faults.get(place)
            no_memory = fault is not None and fault.no_memory
            found.append(Arm(name, what, self.runs[place], str(fault or ""), no_memory))
        return found
