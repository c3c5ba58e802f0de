"""How llama.cpp is set up for a machine: what is not said follows from its cores and its memory.

Pure but for `this_machine`. The numbers behind the defaults are in docs/decisions/0020-llamacpp-defaults.md.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tidegate.config import LlamaCppOptions
from tidegate.errors import ModelError
from tidegate.gguf import GgufHeader, MemoryNeed, memory_needed

SLOTS_PER_CORE: Final = 2
MIN_SLOTS, MAX_SLOTS = 4, 16
CONTEXT_TOKENS: Final = 4096
SMALL_CONTEXT_TOKENS: Final = 1024
"""Slots are given up before contexts become smaller than this."""
SMALLEST_CONTEXT_TOKENS: Final = 512

CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """What there is to share out."""

    cores: int
    """Physical cores this process may use."""
    available_bytes: int


@dataclass(frozen=True)
class Fit:
    """What an engine is started with."""

    slots: int
    context_tokens: int
    """Of one request."""
    threads: int
    batch_tokens: int
    micro_batch_tokens: int
    need: MemoryNeed


def fit(header: GgufHeader, options: LlamaCppOptions, machine: Machine, *, model: str) -> Fit:
    """The largest set-up, up to the defaults, that `options` allow and memory holds.

    What `options` name is taken as it is. Raises ModelError with the arithmetic and the nearest that fits.
    """
    trained = header.context_tokens
    if options.context_tokens is not None and trained is not None and options.context_tokens > trained:
        raise ModelError(
            f"{model} was trained on contexts of {trained:,} tokens, and pool.options.context_tokens asks for "
            f"{options.context_tokens:,}",
            hint=f"set context_tokens to {trained} or less",
        )
    room = int(machine.available_bytes * options.memory_fraction)
    need = None
    for slots, context in _set_ups(options, machine.cores, trained):
        need = memory_needed(header, context_tokens=context, slots=slots, micro_batch_tokens=_micro_batch(options))
        if need.total_bytes <= room:
            return Fit(
                slots=slots,
                context_tokens=context,
                threads=options.threads or machine.cores,
                batch_tokens=options.batch_tokens,
                micro_batch_tokens=_micro_batch(options),
                need=need,
            )
    assert need is not None  # noqa: S101 - there is always a set-up
    raise need.refusal(model, room)


def _micro_batch(options: LlamaCppOptions) -> int:
    return min(options.micro_batch_tokens, options.batch_tokens)


def _set_ups(options: LlamaCppOptions, cores: int, trained: int | None) -> Iterator[tuple[int, int]]:
    """Slots and context of one request, the best first: contexts shrink to a useful size, then slots, then contexts."""
    slots = options.slots or min(max(SLOTS_PER_CORE * cores, MIN_SLOTS), MAX_SLOTS)
    context = options.context_tokens or min(trained or CONTEXT_TOKENS, CONTEXT_TOKENS)
    yield slots, context
    if options.context_tokens is None:
        while context // 2 >= SMALL_CONTEXT_TOKENS:
            context //= 2
            yield slots, context
    if options.slots is None:
        while slots > 1:
            slots //= 2
            yield slots, context
    if options.context_tokens is None and context > SMALLEST_CONTEXT_TOKENS:
        yield slots, SMALLEST_CONTEXT_TOKENS


def this_machine(cgroup: Path = CGROUP) -> Machine:
    """What there is now, within the limits of its container."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    available = psutil.virtual_memory().available
    limit = _cgroup_available(cgroup)
    return Machine(
        cores=min(cores, _cgroup_cores(cgroup) or cores),
        available_bytes=available if limit is None else min(available, limit),
    )


def _cgroup_cores(cgroup: Path) -> int | None:
    """Cores that the container's quota (cgroup v2) is worth, at least one; None for no quota."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return max(int(quota) // int(period), 1)  # "max": ValueError
    return None


def _cgroup_available(cgroup: Path) -> int | None:
    """Memory that the container's limit (cgroup v2) leaves, its own file cache counted as free; None for no limit."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        limit = int((cgroup / "memory.max").read_text())  # "max": ValueError
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return max(limit - used + int(stat["inactive_file"]) + int(stat["active_file"]), 0)
    return None
