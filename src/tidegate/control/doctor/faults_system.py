"""What keeps vLLM from a machine that is otherwise well: its C library, shared memory, threads, memory nodes, compiler."""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate import machine
from tidegate.control.doctor.findings import Finding, note, problem, size

LEAST_GLIBC: Final = (2, 28)
"""The wheels of vLLM and PyTorch are manylinux_2_28."""
LEAST_SHARED_BYTES: Final = 1 << 30
CONTAINER_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
NODES: Final = Path("/sys/devices/system/node")
SHARED: Final = Path("/dev/shm")  # noqa: S108 - looked at, nothing is put there


@dataclass(frozen=True)
class SystemFacts:
    """What is known of the system."""

    glibc: tuple[int, ...]
    """Empty for another C library (musl)."""
    shared_bytes: int | None
    """Of /dev/shm; None where there is none."""
    container: bool
    threads: int | None
    """OMP_NUM_THREADS; None where it is not set."""
    cores: int
    memory_nodes: int
    compiler: bool


def gather(environ: Mapping[str, str] = os.environ) -> SystemFacts:
    """Look."""
    name, version = platform.libc_ver()
    threads = environ.get("OMP_NUM_THREADS", "")
    try:
        shared: int | None = shutil.disk_usage(SHARED).total
    except OSError:
        shared = None
    return SystemFacts(
        glibc=tuple(map(int, re.findall(r"\d+", version)[:2])) if name == "glibc" else (),
        shared_bytes=shared,
        container=any(mark.exists() for mark in CONTAINER_MARKS),
        threads=int(threads) if threads.isdigit() else None,
        cores=machine.cores(),
        memory_nodes=sum(1 for path in NODES.glob("node[0-9]*") if path.is_dir()),
        compiler=any(shutil.which(one) for one in (environ.get("CC") or "cc", "gcc", "clang")),
    )


def check(facts: SystemFacts, *, vllm: bool, gpu: bool) -> Iterator[Finding]:
    """Findings; nothing where all is well. With `vllm` installed what keeps it from starting is a problem."""
    if facts.glibc < LEAST_GLIBC:
        told = f"glibc {'.'.join(map(str, facts.glibc))}" if facts.glibc else "this C library, which is not glibc,"
        text = f"{told} is too old for vLLM's wheels, which need glibc 2.28"
        advice = "a newer system (RHEL 8, Debian 10, Ubuntu 20.04), or a container"
        yield problem("system", text, advice) if vllm else note("system", text, advice)
    if facts.container and facts.shared_bytes is not None and facts.shared_bytes < LEAST_SHARED_BYTES:
        yield note(
            "system",
            f"shared memory of this container is {size(facts.shared_bytes)}: an engine on several GPUs needs more",
            "start the container with --ipc=host, or --shm-size 8g",
        )
    if facts.threads is not None and facts.threads > facts.cores:
        yield note(
            "system",
            f"OMP_NUM_THREADS is {facts.threads} on {facts.cores} cores: threads of an engine wait for each other",
            f"unset it, or set it to {facts.cores} or less",
        )
    if vllm and not gpu and facts.memory_nodes > 1:
        yield note(
            "system",
            f"memory lies at {facts.memory_nodes} nodes (NUMA): an engine across them is slower than one at each",
            "one replica for each node, bound by VLLM_CPU_OMP_THREADS_BIND in env (`lscpu` shows the cores of a node)",
        )
    if vllm and gpu and not facts.compiler:
        yield problem(
            "system",
            "there is no C compiler, and vLLM compiles kernels at its start",
            "install gcc and Python's headers",
        )
