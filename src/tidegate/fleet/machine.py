"""What this machine has: memory, and NVIDIA GPUs if there are any."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

ASK_S = 10.0
"""A driver that wakes its GPUs up takes seconds."""


@dataclass(frozen=True)
class Memory:
    """Main memory. `used` is what programs hold; caches count as free."""

    used_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it."""

    name: str
    memory_bytes: int
    driver: str


def memory(meminfo: Path = Path("/proc/meminfo")) -> Memory:
    """The memory of this machine at this moment."""
    kib = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in meminfo.read_text(encoding="ascii").splitlines())
    }
    return Memory(used_bytes=(kib["MemTotal"] - kib["MemAvailable"]) * 1024, total_bytes=kib["MemTotal"] * 1024)


def gpus(command: str = "nvidia-smi") -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that the driver shows; none where there is no driver, or where it does not answer."""
    query = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            query, check=True, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    found = (tuple(part.strip() for part in line.split(",")) for line in told.stdout.splitlines())
    return tuple(
        Gpu(name, int(mib) * 1024 * 1024, driver)
        for name, mib, driver in (fields for fields in found if len(fields) == 3)
        if mib.isdigit()
    )
