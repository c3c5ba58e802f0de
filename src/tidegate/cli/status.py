"""`tidegate status`: what runs, and how it is. Exit code 1 when nothing runs."""

import sys
from typing import Annotated

import msgspec
import typer

from tidegate.cli.admin import ask, running
from tidegate.control.status import ReplicaStatusView, Status
from tidegate.types import GpuReport

app = typer.Typer(add_completion=False)
MIB = 1024 * 1024
SILENT_S = 3.0
"""Of a gateway that reports every second."""
LONG_START_S = 5.0
"""A shorter start is told in --json only."""
MIN_WIDTH = 120
"""Columns; a narrower terminal wraps lines, which is better than cut names."""


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs: what /admin/v1/status answers.")] = False,
) -> None:
    """Show what runs in this data folder."""
    address = running()
    if address is None:
        print('{"running": false}' if as_json else "Tidegate is not running here; `tidegate up` starts it.")
        raise typer.Exit(1)
    body = ask(address, "GET", "/admin/v1/status")
    if as_json:
        sys.stdout.write(body.decode() + "\n")
        return
    show(msgspec.json.decode(body, type=Status))


def show(status: Status) -> None:
    """The status as tables."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    state = "ready" if status.ready else "not ready"
    console.print(
        f"Tidegate {status.version}, {state}, up {duration(status.up_s)}, process {status.pid}, "
        f"memory {gib(status.memory_used_bytes)} of {gib(status.memory_total_bytes)}, "
        f"{'a key is needed' if status.keys_required else 'no key is needed'}"
    )
    for name, url in status.urls.items():
        console.print(f"  {name:<6} {url}", soft_wrap=True)
    for number, gpu in enumerate(status.gpus):
        values = gpu_values(gpu)
        console.print(
            f"  GPU {number:<2} {gpu.name}{', ' if values else ', it does not answer'}{values}", soft_wrap=True
        )
    table = Table("replica", "model", "state", "pid", "since", "restarts", "memory", "slots", "in flight", box=None)
    for replica in status.replicas:
        table.add_row(
            replica.id,
            replica.model,
            f"{replica.state}, out ({replica.health})" if replica.health else replica.state,
            str(replica.pid or ""),
            duration(replica.ready_s),
            str(replica.restarts),
            mib(replica.memory_bytes),
            str(replica.slots or ""),
            str(replica.in_flight),
        )
    for process in status.processes:
        since, memory = duration(process.ready_s), mib(process.memory_bytes)
        table.add_row(process.name, "", process.state, str(process.pid or ""), since, str(process.restarts), memory)
    for gateway in status.gateways:
        if gateway.host:
            silent = gateway.report_age_s is None or gateway.report_age_s > SILENT_S
            where = escape(f"gateway on {gateway.host}, {gateway.listen}")
            in_flight = str(gateway.in_flight)
            table.add_row(where, "", "silent" if silent else "here", str(gateway.pid), "", "", "", "", in_flight)
    console.print(table)
    for notice in status.notices:
        console.print(f"note: {notice}", soft_wrap=True, markup=False)
    causes = {replica.id: replica.cause for replica in status.replicas}
    causes |= {process.name: process.cause for process in status.processes}
    for name, cause in causes.items():
        if cause:
            console.print(f"{name}: {cause}", soft_wrap=True, markup=False)
    for replica in status.replicas:
        for line in told_of(replica):
            console.print(line, soft_wrap=True, markup=False)


def told_of(replica: ReplicaStatusView) -> list[str]:
    """What a replica's last words were if it was given up, and where the time of a long start went."""
    lines: list[str] = []
    if replica.start_again:
        lines += [f"  | {line}" for line in replica.log_tail]
        lines.append(f"  `{replica.start_again}` starts {replica.id} again")
    if replica.started_s is not None and replica.started_s >= LONG_START_S:
        words = replica.start.words(replica.started_s)
        lines.append(f"{replica.id}: its start took {replica.started_s:.0f} s{f': {words}' if words else ''}")
    if replica.slow:
        lines.append(f"{replica.id}: {replica.slow}; `tidegate models stage {replica.model}` copies them to a fast one")
    return lines


def gpu_values(gpu: GpuReport) -> str:
    """`45%, 12/24 GiB, 150 W, 62 °C`, as far as it tells."""
    parts = [] if gpu.use is None else [f"{gpu.use:.0%}"]
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes is not None:
        parts += [f"{gpu.memory_used_bytes / 1024**3:.0f}/{gpu.memory_total_bytes / 1024**3:.0f} GiB"]
    parts += [] if gpu.power_w is None else [f"{gpu.power_w:.0f} W"]
    parts += [] if gpu.temperature_c is None else [f"{gpu.temperature_c:.0f} °C"]
    return ", ".join(parts)


def duration(seconds: float | None) -> str:
    """`3 s`, `12 min`, `5 h`, `2 d`."""
    if seconds is None:
        return ""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB"


def mib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MIB:.0f} MiB"
