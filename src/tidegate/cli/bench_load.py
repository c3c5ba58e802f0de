"""One server under load: what it was, how it goes, and what is written of it in the end."""

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.bench import probe, workload
from tidegate.bench.prompts import Sizes
from tidegate.bench.running import Job, Runs
from tidegate.cli.bench_asked import Asked
from tidegate.http import Endpoint

PROGRESS_S: Final = 0.5


@dataclass(frozen=True)
class Learnt:
    """What two short requests tell of a server."""

    model: str
    sizes: Sizes
    notes: tuple[str, ...] = ()


async def learn(endpoint: Endpoint, asked: Asked, timeout_s: float) -> Learnt:
    """The name of its model, and how many characters make a token. Raises OperatorError."""
    try:
        model = asked.model or await probe.model_name(endpoint, asked.api_key, timeout_s)
        sizes = await probe.sizes(endpoint, _wire(endpoint, asked, model), timeout_s)
    finally:
        for connection in list(endpoint.connections):
            connection.abort()
        await asyncio.sleep(0)  # sockets close in the turn after
    if sizes is not None:
        return Learnt(model, sizes)
    sizes = Sizes()
    unknown = (
        f"The server's counts of tokens tell nothing of prompts: these are made of {sizes.per_character:g} a character."
    )
    return Learnt(model, sizes, (unknown,))


async def measure(
    endpoint: Endpoint, asked: Asked, learnt: Learnt, job: "partial[Job]", seed: int, *, begun: Callable[[Runs], None]
) -> Runs:
    """The runs. `begun` is handed them before the first."""
    wire = _wire(endpoint, asked, learnt.model)

    def drawn(number: int) -> workload.Workload:
        return workload.Workload(
            wire,
            prompt=asked.prompt,
            output=asked.output,
            sizes=learnt.sizes,
            classes=asked.classes,
            prefix=asked.prefix,
            seed=seed + number,
        )

    runs = Runs(job(workload=drawn))
    begun(runs)
    telling = asyncio.get_running_loop().create_task(_progress(runs)) if sys.stderr.isatty() else None
    try:
        await runs.run()
    finally:
        if telling is not None:
            telling.cancel()
            sys.stderr.write("\r\x1b[K")
    return runs


def _wire(endpoint: Endpoint, asked: Asked, model: str) -> workload.Wire:
    return workload.Wire(
        endpoint.host_header, model, asked.path, stream=asked.stream, api_key=asked.api_key, extra=asked.extra
    )


def stopped_by_signals(runs: Runs) -> None:
    """Ctrl-C ends the runs, and tells what there is."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, runs.stop)
    loop.add_signal_handler(signal.SIGTERM, runs.stop)


async def _progress(runs: Runs) -> None:
    """One line, for as long as it runs."""
    before, at = 0, 0.0
    while True:
        await asyncio.sleep(PROGRESS_S)
        driver = runs.driver
        if driver is None:
            before, at = 0, 0.0
            continue
        loop_s = driver.elapsed_s
        answered = driver.kinds[""]
        pace = (answered - before) / max(loop_s - at, 1e-9)
        before, at = answered, loop_s
        failed = sum(driver.kinds.values()) - answered
        sys.stderr.write(
            f"\r\x1b[K{runs.name}: {loop_s:.0f} s, {driver.sent:,} sent, {driver.in_flight:,} on their way, "
            f"{answered:,} answered ({pace:,.0f}/s), {failed:,} failed"
        )
        sys.stderr.flush()


def write(file: Path | None, content: bytes) -> None:
    """Write a file that was asked for; one that cannot be written is told."""
    if file is None:
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        print(f"tidegate: {file} cannot be written: {error.strerror}", file=sys.stderr)
