"""Processes on this machine: started in sessions of their own, found again by pid and start time, ended to the last one.

A child is waited for by a pidfd, which works alike for our own children and for adopted ones. Whatever its session
still holds when its first process is gone is killed, so that a child's own children are never left behind.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.types import ProcessId

KILL_WAIT_S = 5.0
"""Longest wait for a process that was sent SIGKILL; past it, it hangs in the kernel and cannot be helped."""
KILL_ROUNDS = 250
"""Rounds of 2 ms in which a session's last processes are killed."""


@dataclass(frozen=True)
class ProcessStat:
    """What /proc/PID/stat says, as far as it is needed here."""

    state: str
    parent: int
    session: int
    started: int
    cpu_ticks: int
    """Of user and system time, without its children's."""

    @property
    def alive(self) -> bool:
        """Zombies and the dead have ended; only their parents have not heard of it yet."""
        return self.state not in "ZXx"


def read_stat(pid: int) -> ProcessStat | None:
    """The state of a process; None if there is none of that pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and parentheses
    return ProcessStat(
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def process_id(pid: int) -> ProcessId:
    """The identity of a live process. Raises ProcessLookupError."""
    stat = read_stat(pid)
    if stat is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return ProcessId(pid=pid, started=stat.started)


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs (a later one of the same pid is another)."""
    stat = read_stat(process.pid)
    return stat is not None and stat.started == process.started and stat.alive


def memory_bytes(process: ProcessId) -> int | None:
    """Resident memory of a process and of everything in its session; None if it is gone."""
    if not is_alive(process):
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    total = 0
    for pid in {process.pid, *_session(process.pid)}:
        with contextlib.suppress(OSError, IndexError, ValueError):
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page
    return total


def cpu_s(process: ProcessId) -> float | None:
    """CPU time that a process and everything in its session have used; None if it is gone."""
    if not is_alive(process):
        return None
    ticks = sum(stat.cpu_ticks for _, stat in _processes() if stat.session == process.pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def read_bytes(process: ProcessId) -> int | None:
    """Bytes that a process and everything in its session have read from disks; None where that is not told."""
    if not is_alive(process):
        return None
    told = []
    for pid in {process.pid, *_session(process.pid)}:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
            told.append(int(next(line for line in lines if line.startswith("read_bytes:")).partition(":")[2]))
    return sum(told) if told else None


class LocalChild:
    """A process of this machine (see `tidegate.engines.base.Child`)."""

    why = ""

    def __init__(self, process: ProcessId, pidfd: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.id = process
        self._pidfd = pidfd
        self._popen = popen
        self._status: int | None = None
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"LocalChild({self.id.pid})"

    def alive(self) -> bool:
        return not self._ended and is_alive(self.id)

    async def wait(self) -> int | None:
        while not self._ended:
            if not self.alive():
                self._reap()
                break
            if self._waiting is None:
                loop = asyncio.get_running_loop()
                self._waiting = loop.create_future()
                loop.add_reader(self._pidfd, self._exited)
            await asyncio.shield(self._waiting)
        return self._status

    def _exited(self) -> None:
        self._forget_waiting()
        self._reap()

    def _forget_waiting(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.get_loop().remove_reader(self._pidfd)
            if not waiting.done():
                waiting.set_result(None)

    def _reap(self) -> None:
        if self._ended:
            return
        kill_session(self.id.pid)  # before its pid is free for others
        self._ended = True
        if self._popen is not None:
            self._status = self._popen.wait()
        self._forget_waiting()
        os.close(self._pidfd)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone; nothing happens if it has ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL to the process and to everything in its session."""
        self.signal(signal.SIGKILL)
        if not self._ended:
            kill_session(self.id.pid)

    async def stop(self, grace_s: float) -> None:
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), KILL_WAIT_S)
        except asyncio.CancelledError:
            self.kill()
            raise


async def spawn(
    argv: Sequence[str], *, env: Mapping[str, str], log: Path, pass_fds: tuple[int, ...] = ()
) -> LocalChild:
    """Start a process in a session of its own: no input, output appended to `log`, `env` its whole environment.

    It lives on when this process dies. Raises OSError if it cannot be started.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        popen = subprocess.Popen(  # noqa: ASYNC220 - a vfork and an exec, a millisecond; this loop carries no requests
            list(argv),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    finally:
        os.close(output)
    return LocalChild(process_id(popen.pid), os.pidfd_open(popen.pid), popen)


def kill(process: ProcessId) -> None:
    """SIGKILL to a process and its session; its parent is left to reap it."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            kill_session(process.pid)
    finally:
        os.close(pidfd)


def adopt(process: ProcessId) -> LocalChild | None:
    """A process started by an earlier control; None if it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if not is_alive(process):  # asked after the open, so that the descriptor is surely of this process
        os.close(pidfd)
        return None
    return LocalChild(process, pidfd)


def kill_session(leader: int) -> None:
    """SIGKILL to every process of a session but its leader, until none is left (they may fork meanwhile)."""
    for _ in range(KILL_ROUNDS):
        members = [pid for pid in _session(leader) if pid != leader]
        if not members:
            return
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _session(leader: int) -> list[int]:
    return [pid for pid, stat in _processes() if stat.session == leader and stat.alive]


def _processes() -> Iterator[tuple[int, ProcessStat]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (stat := read_stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def find_sessions(variable: str, value: str) -> dict[ProcessId, Mapping[str, str]]:
    """Session leaders of this user whose environment has `variable` = `value`, with their environments."""
    found: dict[ProcessId, Mapping[str, str]] = {}
    for pid, stat in _processes():
        if stat.session != pid or not stat.alive:
            continue
        with contextlib.suppress(OSError):
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            environment = dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
            if environment.get(variable) == value:
                found[ProcessId(pid=pid, started=stat.started)] = environment
    return found
