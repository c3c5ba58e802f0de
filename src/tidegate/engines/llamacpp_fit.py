"""How llama.cpp is set up for a machine: what is not said follows from its cores and its memory.

Pure but for `this_machine`. The numbers behind the defaults are in docs/decisions/0020-llamacpp-defaults.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate import machine
from tidegate.config import LlamaCppOptions
from tidegate.engines.llamacpp_memory import MemoryNeed, Weighed, memory_needed
from tidegate.errors import ModelError

SLOTS_PER_CORE: Final = 2
MIN_SLOTS, MAX_SLOTS = 4, 16
CONTEXT_TOKENS: Final = 4096
SMALL_CONTEXT_TOKENS: Final = 1024
"""Slots are given up before contexts become smaller than this."""
SMALLEST_CONTEXT_TOKENS: Final = 512


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


def fit(header: Weighed, options: LlamaCppOptions, room: Machine, *, model: str) -> Fit:
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
    most_bytes = int(room.available_bytes * options.memory_fraction)
    need = None
    for slots, context in _set_ups(options, room.cores, trained):
        need = memory_needed(header, context_tokens=context, slots=slots, micro_batch_tokens=_micro_batch(options))
        if need.total_bytes <= most_bytes:
            return Fit(
                slots=slots,
                context_tokens=context,
                threads=options.threads or room.cores,
                batch_tokens=options.batch_tokens,
                micro_batch_tokens=_micro_batch(options),
                need=need,
            )
    assert need is not None  # noqa: S101 - there is always a set-up
    raise need.refusal(model, most_bytes)


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


def this_machine() -> Machine:
    """What there is now."""
    return Machine(cores=machine.cores(), available_bytes=machine.memory().available_bytes)
