"""What this machine lets a program use: memory and cores, within the limits of its container (cgroup v2)."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Memory:
    """Main memory. Caches count as available."""

    total_bytes: int
    available_bytes: int

    @property
    def used_bytes(self) -> int:
        """What programs hold."""
        return self.total_bytes - self.available_bytes


def memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> Memory:
    """The memory of this moment: the machine's, or the container's where that is less."""
    kib = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    }
    total, available = kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    with contextlib.suppress(OSError, ValueError, LookupError):
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))  # "max": ValueError
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        left = max(limit - used + int(stat["inactive_file"]) + int(stat["active_file"]), 0)
        return Memory(min(total, limit), min(available, left))
    return Memory(total, available)


def cores(cgroup: Path = CGROUP) -> int:
    """Physical cores that this process may use, by its affinity and its container's quota; at least one."""
    import psutil  # two hundredths of a second to load, and most commands never ask

    count = min(psutil.cpu_count(logical=False) or psutil.cpu_count() or 1, len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return min(count, max(int(quota) // int(period), 1))  # "max": ValueError
    return count


def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """What the processor can (`avx2`, `avx512_bf16` …), lower case; empty where the system does not tell."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return frozenset(line.partition(":")[2].lower().split())
