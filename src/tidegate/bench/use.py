"""What the server's processes and this machine's GPUs use while they are measured."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import psutil

from tidegate.bench.results import Use
from tidegate.nvml import Watch
from tidegate.types import GpuReport

EVERY_S: Final = 0.5


def listening(host: str, port: int) -> int | None:
    """The process that listens at an address of this machine; None where it is another's, or not to be seen."""
    if host not in {"127.0.0.1", "localhost", "::1"}:
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return int(connection.pid)
    return None


class Watcher:
    """Looks twice a second, in a thread of its own: at `pid` and what it has started, and at the GPUs of `gpus`."""

    def __init__(self, pid: int | None, gpus: Callable[[], tuple[GpuReport, ...]] | None) -> None:
        self._pid, self._gpus = pid, gpus
        self._family: list[psutil.Process] = []
        if pid is not None:
            with contextlib.suppress(psutil.Error):
                one = psutil.Process(pid)
                self._family = [one, *one.children(recursive=True)]
        self._began_s, self._cpu_before_s = time.monotonic(), self._cpu_s()
        self._most_bytes = 0
        self._busy: dict[str, list[float]] = {}
        self._gpu_bytes: dict[str, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="use", daemon=True)
        self._thread.start()

    def end(self) -> Use:
        """Look no more, and tell."""
        self._end.set()
        self._thread.join()
        seconds = time.monotonic() - self._began_s
        before, after = self._cpu_before_s, self._cpu_s()
        return Use(
            pid=self._pid if self._family else None,
            most_resident_bytes=self._most_bytes or None,
            mean_cores=None if before is None or after is None else max(0.0, after - before) / seconds,
            gpus={name: sum(values) / len(values) for name, values in self._busy.items()},
            gpu_memory_bytes=dict(self._gpu_bytes),
        )

    def _cpu_s(self) -> float | None:
        if not self._family:
            return None
        total = 0.0
        for one in self._family:
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system
        return total

    def _look(self) -> None:
        resident = 0
        for one in self._family:
            with contextlib.suppress(psutil.Error):
                resident += one.memory_info().rss
        self._most_bytes = max(self._most_bytes, resident)
        for gpu in self._gpus() if self._gpus is not None else ():
            name = f"{gpu.name} {gpu.id}"
            if gpu.use is not None:
                self._busy.setdefault(name, []).append(gpu.use)
            if gpu.memory_used_bytes is not None:
                self._gpu_bytes[name] = max(self._gpu_bytes.get(name, 0), gpu.memory_used_bytes)

    def _run(self) -> None:
        self._look()
        while not self._end.wait(EVERY_S):
            self._look()


def gpus() -> Watch | None:
    """A watch over this machine's GPUs that was begun; None where there are none."""
    watch = Watch(lambda _trouble: None)
    return watch if watch.begin() else None
