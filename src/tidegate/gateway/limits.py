"""How much work a replica may have at once. Pure: what an engine says of itself goes in, a limit comes out.

Three kinds. `fixed`: a number of the operator's. `threshold`: the rule that operators write by hand around vLLM: while
requests wait and the cache has room the limit grows by a quarter, while the cache is full and nobody waits it shrinks.
`adaptive`, the default: an engine computes so many sequences at once, its slots; with fewer it idles, with more they
wait inside the engine, where nobody can put them in order. So the limiter learns the slots (running while others wait)
and rests there; it goes below only while the engine is short of memory, makes its tokens too slowly for anyone to read,
or has work from elsewhere: from another gateway, which knows nothing of this one. Then each takes a part, a little more while nothing waits inside, less in
proportion while something does, as TCP's senders share a line.

Whoever has not told its slots is asked in small steps: from `FIRST_LIMIT` the limit grows by half as often as a look
shows that nothing waits inside. An engine that tells nothing of itself has no limit.
"""

from typing import Final

import msgspec

from tidegate.types import LimitOptions, Load

FIRST_LIMIT: Final = 8
GROWTH: Final = 1.25
LOOKS_TO_LEARN: Final = 2
"""Looks that show that some wait while as many run as ever did, until that is believed."""
WAITING_TO_LEARN: Final = 2
"""So many have to wait for that: one alone has most likely just come."""
LOOKS_TO_SHRINK: Final = 5
"""The same, for fewer slots than were learned before: at the border of two steps one that has just ended is missing."""
PROVEN_S: Final = 60.0
"""So long after it was seen that no more slots are there, one more is tried."""
KV_HIGH: Final = 0.97
KV_LOW: Final = 0.85
BACK_OFF: Final = 0.9
RECOVER: Final = 1.03
LEAST_FACTOR: Final = 0.25
LOOKS_SLOW: Final = 5
"""Looks in a row that saw slow steps, until that is no prompt that was read between them."""
WELL: Final = 0.8
"""Share of the longest time for a token, below which steps are quick again."""
ELSEWHERE: Final = 2
"""With fewer requests from elsewhere an engine is ours: what it tells and what was sent are not of the same moment."""
WAITING_BESIDE: Final = 0.0625
"""Share of the slots that may wait inside an engine that others use too, before its part is taken to be too large."""
LEAST_CUT: Final = 0.5


class LimitState(msgspec.Struct, frozen=True):
    """What a limiter knows of one replica."""

    slots: int | None = None
    """Sequences it computes at once: told by it, or learned."""
    told: bool = False
    """Whether the engine itself says so."""
    limit: float | None = None
    """Most requests it may have; None bounds nothing."""
    factor: float = 1.0
    """Share of the slots that is used: below 1 after a shortage of memory, or while steps are slow."""
    part: float = 1.0
    """Share of these that is ours: below 1 beside others who use the engine."""
    seen: tuple[int, ...] = ()
    """Sequences that ran in the last looks that saw others wait."""
    top: int = 0
    """The most that ever ran, while the slots are being found out."""
    full: int = 0
    """Looks in a row that saw some wait while so many ran."""
    proven_s: float = float("-inf")
    """When it was last seen that there are no more slots."""
    preemptions: int | None = None
    steps: int | None = None
    """Steps that the engine had made at the last look, at `looked_s`; each gives one token to every answer."""
    looked_s: float = 0.0
    slow: int = 0
    """Looks in a row that saw slow steps."""
    changed_s: float = float("-inf")
    """When the threshold rule last moved it."""


def begin(options: LimitOptions, slots: int | None) -> LimitState:
    """Of a replica of which nothing has been seen; `slots` where it was told how many it has."""
    state = LimitState(slots=slots, told=slots is not None)
    if options.kind == "fixed":
        return msgspec.structs.replace(state, limit=options.sequences)
    if options.kind == "threshold":
        return msgspec.structs.replace(state, limit=float(options.sequences or slots or FIRST_LIMIT))
    return _adaptive_limit(state, options)


def after(
    state: LimitState,
    load: Load | None,
    options: LimitOptions,
    *,
    in_flight: int,
    wait_s: float,
    now: float,
    reading: bool = False,
    alone: bool = True,
) -> LimitState:
    """After a look. `in_flight` is the most that this replica had since the last one, `wait_s` what requests wait.

    `alone`: nobody shares the limit out, so that whatever else the engine has comes from somebody unknown.

    Where nothing could be read, what was known holds; so it does while an engine is `reading` a long prompt, which
    everything else there waits for.
    """
    if options.kind == "fixed":
        return msgspec.structs.replace(state, limit=options.sequences)
    if load is None or (reading and options.kind == "adaptive"):
        return state
    if load.slots is not None:
        state = msgspec.structs.replace(state, slots=load.slots, told=True, seen=())
    if options.kind == "threshold":
        return _threshold(state, load, options, wait_s, now)
    state = _learn(_pressed(_pace(state, load, options, now), load), load, in_flight, now)
    return _adaptive_limit(_beside(state, load, in_flight) if alone else state, options)


def _learn(state: LimitState, load: Load, in_flight: int, now: float) -> LimitState:
    running, waiting = load.running, load.waiting
    if state.told:
        return state
    if running is None or waiting is None:
        return msgspec.structs.replace(state, limit=None) if state.slots is None else state
    if state.slots is None:
        return _search(state, running, waiting, in_flight, now)
    if running > state.slots:
        return msgspec.structs.replace(state, slots=running, seen=())
    if waiting and running:
        seen = (*state.seen, running)[-LOOKS_TO_SHRINK:]
        if len(seen) == LOOKS_TO_SHRINK:
            return msgspec.structs.replace(state, slots=max(seen), seen=(), proven_s=now)
        return msgspec.structs.replace(state, seen=seen)
    if in_flight >= state.slots and now - state.proven_s > PROVEN_S:
        return msgspec.structs.replace(state, slots=state.slots + 1, seen=(), proven_s=now)
    return msgspec.structs.replace(state, seen=()) if state.seen else state


def _search(state: LimitState, running: int, waiting: int, in_flight: int, now: float) -> LimitState:
    """One step of finding out how many slots there are.

    What waits may only wait for the next step of the engine; it tells something where as many run as ever did.
    """
    limit, full = state.limit or float(FIRST_LIMIT), state.full
    if running > state.top or not waiting:
        full = 0
    elif running == state.top and waiting >= WAITING_TO_LEARN:
        full += 1
    if full >= LOOKS_TO_LEARN and running:
        return msgspec.structs.replace(state, slots=running, top=running, full=0, proven_s=now)
    if not full and max(running, in_flight) >= int(limit):
        limit *= GROWTH
    return msgspec.structs.replace(state, limit=limit, top=max(state.top, running), full=full)


def _pace(state: LimitState, load: Load, options: LimitOptions, now: float) -> LimitState:
    """How fast it makes its tokens."""
    steps, before, passed_s = load.iterations_total, state.steps, now - state.looked_s
    slow = state.slow
    if steps is None or before is None or steps < before or not load.running:
        slow = 0
    elif steps == before:
        return state  # how long it takes is known at its end
    elif passed_s > options.token_s * (steps - before):
        slow += 1
    elif passed_s < WELL * options.token_s * (steps - before):
        slow = 0
    else:
        slow = min(slow, LOOKS_SLOW)
    return msgspec.structs.replace(state, steps=steps, looked_s=now, slow=slow)


def _pressed(state: LimitState, load: Load) -> LimitState:
    """Whether it has more than it can do well."""
    preempted = (
        load.preemptions_total is not None
        and state.preemptions is not None
        and load.preemptions_total > state.preemptions
    )
    kv = load.kv_usage if load.kv_usage is not None and not _counts_slots(load) else 0.0
    factor = state.factor
    if preempted or (kv > KV_HIGH and (load.waiting or 0) > 0) or state.slow > LOOKS_SLOW:
        factor = max(factor * BACK_OFF, LEAST_FACTOR)
    elif kv < KV_LOW and not state.slow:
        factor = min(factor * RECOVER, 1.0)
    return msgspec.structs.replace(state, factor=factor, preemptions=load.preemptions_total)


def _beside(state: LimitState, load: Load, in_flight: int) -> LimitState:
    """Our part of an engine that has work from elsewhere too."""
    slots, limit = state.slots, state.limit
    if slots is None or limit is None or load.running is None or load.waiting is None:
        return state
    had = load.running + load.waiting
    part = state.part
    if had - in_flight < ELSEWHERE:
        part = min(1.0, part * GROWTH)
    elif load.waiting > max(1.0, WAITING_BESIDE * slots):
        part = max(part * max(slots / had, LEAST_CUT), 1.0 / slots)
    elif in_flight >= int(limit):
        part = min(1.0, part + 1.0 / slots)
    return state if part == state.part else msgspec.structs.replace(state, part=part)


def _counts_slots(load: Load) -> bool:
    """Whether the "cache" is nothing but the slots in use, and full when they are; preemption is then the only sign."""
    return load.kv_tokens is None


def _adaptive_limit(state: LimitState, options: LimitOptions) -> LimitState:
    limit = state.limit if state.slots is None else max(1.0, state.slots * state.factor * state.part)
    if options.sequences is not None:
        limit = min(limit, float(options.sequences)) if limit is not None else float(options.sequences)
    return state if limit == state.limit else msgspec.structs.replace(state, limit=limit)


def _threshold(state: LimitState, load: Load, options: LimitOptions, wait_s: float, now: float) -> LimitState:
    limit = state.limit or float(options.sequences or FIRST_LIMIT)
    if now - state.changed_s < options.every_s:
        return state
    kv = load.kv_usage or 0.0
    if wait_s > options.wait_high_s and kv < options.cache_low:
        limit *= options.raise_by
    elif kv > options.cache_high and wait_s < options.wait_low_s:
        limit *= options.lower_by
    else:
        return state
    ceiling = float(state.slots) if state.slots is not None else float("inf")
    return msgspec.structs.replace(state, limit=max(1.0, min(limit, ceiling)), changed_s=now)
