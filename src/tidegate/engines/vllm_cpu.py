"""The processor as vLLM's CPU build sees it: what it can compute, its cores, and the memory of the node that it computes on."""

import contextlib
from pathlib import Path
from typing import Final

from tidegate import machine
from tidegate.engines.plan_types import Cpu

NODE: Final = Path("/sys/devices/system/node/node0/meminfo")


def this_cpu(node: Path = NODE, cpuinfo: Path = machine.CPUINFO) -> Cpu:
    """Of memory the first node alone counts, as with vLLM itself; on some machines that is a part of all."""
    memory = machine.memory()
    total, available = memory.total_bytes, memory.available_bytes
    with contextlib.suppress(OSError, ValueError, LookupError):
        lines = (line.split() for line in node.read_text(encoding="ascii").splitlines())
        kib = {words[2].rstrip(":"): int(words[3]) for words in lines if len(words) > 3}
        total = min(total, kib["MemTotal"] * 1024)
        available = min(available, (kib["MemFree"] + kib["Active(file)"] + kib["Inactive(file)"]) * 1024)
    return Cpu(machine.cpu_flags(cpuinfo), machine.cores(), total, available)
