"""What engines had of it: limits, GPUs, how many are needed, what tenants cost. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tidegate.control.report.chapters import NOTHING_TO_DO, Asked, Chapter, Figures, ended, numbers, percent
from tidegate.control.report.samples import Sample, TenantSample

HOUR_S: Final = 3600.0
MANY_MOVES: Final = 6.0
"""Moves of a limit in an hour: it hunts for something that is not steady."""
BUSY: Final = 0.5
"""Of the GPU: less while requests wait means that the limit keeps them from it."""
SOME_WAITING: Final = 0.01
"""Share of the minutes in which requests waited that is worth a word."""
FULL: Final = 0.8
"""In flight against the limit: from here on an engine is taken to be at its knee."""
HEADROOM: Final = 0.8
"""Most of what an engine can do at its knee that is planned for, so that a burst does not find it there."""
LEAST_S: Final = 10.0
"""A shorter sample says nothing of a rate."""


def limits(asked: Asked) -> Chapter:
    """How the limits of replicas moved, from one minute to the next."""
    figures: Figures = {}
    rows, worst = [], ("", 0.0)
    hours = sum(sample.seconds for sample in asked.samples) / HOUR_S
    for name in _replicas(asked.samples):
        held = [sample.replicas[name].limit for sample in asked.samples if name in sample.replicas]
        known = [limit for limit in held if limit is not None]
        if not known:
            continue
        ups = sum(after > before for before, after in pairwise(known))
        downs = sum(after < before for before, after in pairwise(known))
        rows.append((name, *map(str, (known[0], known[-1], min(known), max(known), ups, downs))))
        figures |= {f"{name}.up": ups, f"{name}.down": downs, f"{name}.limit": known[-1]}
        if hours and (ups + downs) / hours > worst[1]:
            worst = (name, (ups + downs) / hours)
    many = worst[1] > MANY_MOVES
    return Chapter(
        "limits",
        f"The limit of {worst[0]} moved most: {worst[1]:.1f} times an hour." if worst[0] else "No limit moved.",
        'the limit hunts: hold it at what was found (limits.kind = "fixed", limits.sequences)'
        if many
        else NOTHING_TO_DO,
        "limits.kind" if many else "",
        ("replica", "first", "last", "least", "most", "up", "down"),
        tuple(rows),
        numbers(figures),
    )


def gpus(asked: Asked) -> Chapter:
    """How busy GPUs were, and how busy while requests waited."""
    total_s = sum(sample.seconds for sample in asked.samples)
    waiting = [sample for sample in asked.samples if sample.queued > 0]
    waiting_s = sum(sample.seconds for sample in waiting)
    share = waiting_s / total_s if total_s else 0.0
    figures: Figures = {"waiting_share": share}
    rows, worst = [], ("", 1.0)
    for name in sorted({name for sample in asked.samples for name in sample.gpus}):
        use = _use(asked.samples, name)
        meanwhile = _use(waiting, name)
        rows.append((name, percent(use), percent(meanwhile)))
        figures |= {f"{name}.use": use, f"{name}.use_while_waiting": meanwhile}
        if meanwhile is not None and meanwhile < worst[1]:
            worst = (name, meanwhile)
    if not rows:
        text = f"No GPU told how busy it was. Requests waited in minutes that make up {percent(share)} of the time."
        return Chapter("GPU use", text, NOTHING_TO_DO, figures=numbers(figures))
    idle = share > SOME_WAITING and worst[1] < BUSY
    return Chapter(
        "GPU use",
        f"Requests waited in minutes that make up {percent(share)} of the time"
        + (f"; {worst[0]} was {percent(worst[1])} busy meanwhile." if worst[0] else "."),
        "the limit keeps requests from a GPU that has room: raise limits.sequences" if idle else NOTHING_TO_DO,
        "limits.sequences" if idle else "",
        ("GPU", "busy", "busy while requests waited"),
        tuple(rows),
        numbers(figures),
    )


def engines(asked: Asked) -> Chapter:
    """How many engines the busiest minute needs, and how that is known."""
    subject = "engines for the peak"
    peak = max((_demand(one) for one in asked.samples if one.seconds >= LEAST_S), default=0.0)
    if not peak:
        return Chapter(subject, "No answer had tokens that an engine counted.", NOTHING_TO_DO)
    pressed, seen = _per_engine(asked.samples)
    profile = asked.profile
    told = profile.tokens_per_s if profile is not None else None
    rate = told or pressed or seen
    if not rate:
        return Chapter(subject, "What one engine can do is not known.", NOTHING_TO_DO)
    each = profile.gpus if profile is not None else 1
    needed = math.ceil(peak / (rate * HEADROOM))
    have = max(len(one.replicas) for one in asked.samples)
    how = (
        "as the profile says"
        if told
        else "as measured with its limit in use"
        if pressed
        else "the most seen, never full"
    )
    sum_ = f"{peak:.4g} / ({rate:.4g} × {HEADROOM:g}) = {peak / (rate * HEADROOM):.3g}"
    rows = [("now" if profile is None else profile.name, f"{rate:.4g}", sum_, str(needed), str(needed * each))]
    figures: Figures = {
        "peak_tokens_per_s": peak,
        "engine_tokens_per_s": rate,
        "engines": needed,
        "gpus": needed * each,
        "engines_now": have,
    }
    plain = profile.default_tokens_per_s if profile is not None else None
    if plain:
        many = math.ceil(peak / (plain * HEADROOM))
        rows.append(
            ("defaults", f"{plain:.4g}", f"{peak:.4g} / ({plain:.4g} × {HEADROOM:g})", str(many), str(many * each))
        )
        figures |= {"engines_with_defaults": many, "gpus_with_defaults": many * each}
    certain = bool(told or pressed)
    change = certain and needed != have
    return Chapter(
        subject,
        f"The busiest minute asked for {peak:.4g} answer tokens a second, refused requests counted in; one engine gives "
        f"{rate:.4g} ({how}). {needed} needed, {have} here."
        + ("" if plain else " What the engine's defaults would need is known once a profile has been tuned."),
        f"set pool.replicas = {needed}" if change else NOTHING_TO_DO,
        "pool.replicas" if change else "",
        ("settings", "tokens/s of an engine", f"peak / (that × {HEADROOM:g})", "engines", "GPUs"),
        tuple(rows),
        numbers(figures),
    )


def costs(asked: Asked) -> Chapter:
    """Engine-seconds by tenant: those in which an engine was busy, shared out by how long it had whose requests."""
    busy_s = sum(one.busy_s for sample in asked.samples for one in sample.replicas.values())
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for sample in asked.samples:
        for name, one in sample.tenants.items():
            mine = sums[name]
            mine[0] += one.requests
            mine[1] += _tokens(one)
            mine[2] += one.engine_s
    all_s = sum(one[2] for one in sums.values())
    subject = "engine-seconds by tenant"
    if not all_s or not busy_s:
        return Chapter(subject, "No engine was seen at work.", NOTHING_TO_DO)
    each = asked.profile.gpus if asked.profile is not None else 1
    figures: Figures = {}
    rows = []
    ordered = sorted(sums.items(), key=lambda item: -item[1][2])
    for name, (requests, tokens, engine_s) in ordered:
        mine_s = busy_s * each * engine_s / all_s
        per_1000 = 1000 * mine_s / requests if requests else None
        rows.append(
            (
                name,
                f"{requests:,.0f}",
                f"{tokens:,.0f}",
                f"{mine_s:,.1f}",
                percent(engine_s / all_s),
                "–" if per_1000 is None else f"{per_1000:,.1f}",
            )
        )
        figures |= {f"{name}.gpu_s": mine_s, f"{name}.gpu_s_per_1000_requests": per_1000}
    first, share = ordered[0][0], ordered[0][1][2] / all_s
    alone = len(ordered) > 1 and share > BUSY
    return Chapter(
        subject,
        f"Engines were busy for {busy_s:,.0f} s; {first} had {percent(share)} of it. An engine counts as "
        f"{each} GPU{'' if each == 1 else 's'}.",
        f"where that is more than {first} is to have, give it a smaller tenant.weight" if alone else NOTHING_TO_DO,
        "tenant.weight" if alone else "",
        ("tenant", "requests", "tokens", "GPU-seconds", "share", "GPU-seconds per 1,000 requests"),
        tuple(rows),
        numbers(figures),
    )


def _replicas(samples: Sequence[Sample]) -> list[str]:
    return sorted({name for sample in samples for name in sample.replicas})


def _use(samples: Sequence[Sample], gpu: str) -> float | None:
    told = [(sample.seconds, sample.gpus[gpu]) for sample in samples if gpu in sample.gpus]
    total = sum(weight for weight, _ in told)
    return sum(weight * use for weight, use in told) / total if total else None


def _tokens(tenant: TenantSample) -> int:
    return tenant.prompt_tokens + tenant.answer_tokens


def _answered(sample: Sample) -> float:
    return sum(one.answer_tokens for one in sample.tenants.values()) / sample.seconds


def _demand(sample: Sample) -> float:
    """Answer tokens a second, had those been served, too, that were refused."""
    served = sum(ended(one.requests) for one in sample.classes.values())
    refused = sum(one.refused for one in sample.classes.values())
    return _answered(sample) * (served + refused) / served if served else 0.0


def _per_engine(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Answer tokens a second of one engine: the median of the minutes with the limits in use, and the most of any."""
    pressed, seen = [], []
    for sample in samples:
        busy_s = sum(one.busy_s for one in sample.replicas.values())
        if sample.seconds < LEAST_S or busy_s <= 0:
            continue
        rate = _answered(sample) * sample.seconds / busy_s
        seen.append(rate)
        room = sum(one.limit or 0 for one in sample.replicas.values())
        if room and sum(one.in_flight for one in sample.replicas.values()) >= FULL * room:
            pressed.append(rate)
    return (sorted(pressed)[len(pressed) // 2] if pressed else None), max(seen, default=None)
