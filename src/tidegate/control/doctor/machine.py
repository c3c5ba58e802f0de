"""Python, processor, memory, clock, and the limit of open files."""

import platform
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidegate import machine
from tidegate.control.doctor.findings import Finding, note, ok, problem, size

LEAST_PYTHON = (3, 11)
NEEDED_CPU_FLAGS = frozenset({"avx2", "fma", "f16c"})
"""What the llama.cpp wheel for x86-64 is compiled for."""
LEAST_MEMORY_BYTES = 1 << 30
"""About what the reference model takes with its processes around it."""
EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""This program is younger; a clock that says otherwise is wrong."""
FILES_BESIDE_CONNECTIONS = 200
"""Open files of a gateway besides two for every client: log, sockets to engines kept open, libraries."""


@dataclass(frozen=True)
class MachineFacts:
    """What is known of this machine."""

    python: tuple[int, int, int]
    system: str
    architecture: str
    cpu_flags: frozenset[str]
    """Lower case; empty where the system does not tell."""
    cores: int
    memory_bytes: int
    """Of the machine, or what its container may use."""
    available_bytes: int
    open_files: int
    open_files_hard: int
    now_s: float


def gather() -> MachineFacts:
    memory = machine.memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineFacts(
        python=sys.version_info[:3],
        system=platform.system(),
        architecture=platform.machine(),
        cpu_flags=machine.cpu_flags(),
        cores=machine.cores(),
        memory_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
        open_files=_limit(soft),
        open_files_hard=_limit(hard),
        now_s=time.time(),
    )


def check(facts: MachineFacts, connections: int) -> Iterable[Finding]:
    """Findings, for a gateway that may hold `connections` of clients."""
    yield _python(facts)
    yield _processor(facts)
    yield _memory(facts)
    yield _files(facts, connections)
    yield _clock(facts)


def _python(facts: MachineFacts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python < LEAST_PYTHON:
        return problem("python", f"Python {version} is too old", "install Python 3.11 or newer")
    return ok("python", f"Python {version} on {facts.system}")


def _processor(facts: MachineFacts) -> Finding:
    text = f"{facts.cores} core{'' if facts.cores == 1 else 's'}, {facts.architecture}"
    if facts.architecture not in {"x86_64", "amd64"} or not facts.cpu_flags:
        return ok("processor", text)
    missing = sorted(NEEDED_CPU_FLAGS - facts.cpu_flags)
    if missing:
        return problem(
            "processor",
            f"{text}, without {', '.join(missing).upper()}: the llama.cpp that is installed will not run on it",
            "use a newer machine (or, in a virtual one, let it see the host's processor), or an engine elsewhere: "
            "`tidegate up --engine URL`",
        )
    return ok("processor", f"{text}, with {', '.join(sorted(NEEDED_CPU_FLAGS)).upper()}")


def _memory(facts: MachineFacts) -> Finding:
    text = f"{size(facts.available_bytes)} of {size(facts.memory_bytes)} are available"
    if facts.available_bytes < LEAST_MEMORY_BYTES:
        return note("memory", text, "end other programs; ERNIE-4.5-0.3B with all around it takes about 1 GiB")
    return ok("memory", text)


def _files(facts: MachineFacts, connections: int) -> Finding:
    needed = 2 * connections + FILES_BESIDE_CONNECTIONS
    text = f"{facts.open_files:,} open files are allowed"
    if facts.open_files >= needed:
        return ok("open files", text)
    enough = max(0, (facts.open_files - FILES_BESIDE_CONNECTIONS) // 2)
    raised = (
        f"`ulimit -n {needed}` before the start" if facts.open_files_hard >= needed else "LimitNOFILE= of its service"
    )
    return note(
        "open files",
        f"{text}: enough for about {enough:,} connections; gateway.max_connections is {connections:,}",
        f"raise it ({raised}) where that many are expected",
    )


def _clock(facts: MachineFacts) -> Finding:
    now = datetime.fromtimestamp(facts.now_s, UTC)
    if now < EARLIEST:
        return problem(
            "clock", f"it says {now:%Y-%m-%d %H:%M} UTC, which is long past", "set it, or run a time service"
        )
    return ok("clock", f"{now:%Y-%m-%d %H:%M} UTC")


def _limit(value: int) -> int:
    return sys.maxsize if value == resource.RLIM_INFINITY else value
