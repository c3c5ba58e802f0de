"""What clients had of it: load by hour, targets held, long waits, refusals. Pure."""

from collections import defaultdict
from datetime import UTC, datetime
from typing import Final

from tidegate.control.report.chapters import NOTHING_TO_DO, Asked, Chapter, Figures, ended, numbers, percent, seconds
from tidegate.control.report.samples import by_class, quantile, share_within
from tidegate.gateway.metrics import BUCKETS_S

MINUTE_S: Final = 60.0
UNEVEN: Final = 4.0
"""The busiest hour of the day has so many times the mean: engines that come and go save more than half."""
ATTAINED: Final = 0.99
"""Share of requests that is to hold the target of its class."""
MOST_SLOW: Final = 0.05
"""Share of first bytes over 1 s that is looked into."""
MOST_REFUSED: Final = 0.01
SLOW_S: Final = 1.0


def load(asked: Asked) -> Chapter:
    """Requests by hour of the day (UTC)."""
    requests: dict[int, float] = defaultdict(float)
    tokens: dict[int, float] = defaultdict(float)
    covered_s: dict[int, float] = defaultdict(float)
    for sample in asked.samples:
        hour = datetime.fromtimestamp(sample.at_s, UTC).hour
        covered_s[hour] += sample.seconds
        requests[hour] += sum(ended(one.requests) + one.refused for one in sample.classes.values())
        tokens[hour] += sum(one.answer_tokens for one in sample.tenants.values())
    rates = {hour: requests[hour] / covered_s[hour] for hour in sorted(covered_s) if covered_s[hour] > 0}
    total_s = sum(covered_s.values())
    if not total_s or not any(rates.values()):
        return Chapter("load by hour", "No request came.", NOTHING_TO_DO)
    mean = sum(requests.values()) / total_s
    busiest = max(rates, key=lambda hour: rates[hour])
    ratio = rates[busiest] / mean
    uneven = ratio >= UNEVEN
    return Chapter(
        "load by hour",
        f"{sum(requests.values()):,.0f} requests, {mean:.3g} a second; the busiest hour is {busiest:02d}:00 UTC "
        f"with {rates[busiest]:.3g} a second, {ratio:.1f} times the mean.",
        "let engines come and go with the load: set pool.replicas_min and pool.replicas_max"
        if uneven
        else NOTHING_TO_DO,
        "pool.replicas_max" if uneven else "",
        ("hour (UTC)", "requests/s", "answer tokens/s", "covered"),
        tuple(
            (
                f"{hour:02d}:00",
                f"{rate:.3g}",
                f"{tokens[hour] / covered_s[hour]:.3g}",
                f"{covered_s[hour] / MINUTE_S:,.0f} min",
            )
            for hour, rate in rates.items()
        ),
        numbers(
            {
                "requests": sum(requests.values()),
                "requests_per_s": mean,
                "busiest_hour": busiest,
                "busiest_requests_per_s": rates[busiest],
                **{f"requests_per_s.{hour:02d}": rate for hour, rate in rates.items()},
            }
        ),
    )


def attainment(asked: Asked) -> Chapter:
    """Share of requests whose first byte came within the target of their class. A refused one did not hold it."""
    found = by_class(asked.samples)
    figures: Figures = {}
    rows, worst = [], None
    for view in asked.classes:
        one = found.get(view.name)
        if view.first_token_s is None or one is None:
            continue
        within = share_within(one.first_s, BUCKETS_S, view.first_token_s)
        if within is None:
            continue
        answered = sum(one.first_s)
        share = within * answered / (answered + one.refused)
        waited = quantile(one.queue_s, BUCKETS_S, 0.95)
        rows.append(
            (
                view.name,
                f"{answered:,}",
                seconds(view.first_token_s),
                percent(share),
                seconds(quantile(one.first_s, BUCKETS_S, 0.5)),
                seconds(quantile(one.first_s, BUCKETS_S, 0.99)),
                seconds(waited),
            )
        )
        figures[f"{view.name}.attained"] = share
        if share < ATTAINED and (worst is None or share < worst[1]):
            worst = (view, share, waited or 0.0)
    head = ("class", "first bytes", "target", "held", "P50", "P99", "waited, P95")
    if not rows:
        advice = "give the classes that matter a target: [[class]] first_token_s"
        return Chapter("targets by class", "No class with a target had a request.", advice, "class.first_token_s")
    if worst is None:
        text, advice, setting = "Every class with a target held it.", NOTHING_TO_DO, ""
    else:
        view, share, waited = worst
        text = f"{view.name} held its target of {seconds(view.first_token_s)} in {percent(share)} of its requests."
        if waited > (view.first_token_s or 0.0) / 2:
            advice, setting = (
                "requests wait for room: add engines (pool.replicas, or pool.replicas_max)",
                "pool.replicas",
            )
        else:
            advice, setting = (
                "the engine is slow, not the queue: give it less at once (limits.token_s)",
                "limits.token_s",
            )
    return Chapter("targets by class", text, advice, setting, head, tuple(rows), numbers(figures))


def over_1_s(asked: Asked) -> Chapter:
    """Shares of first bytes and of whole answers that took more than 1 s. Classes without a target may be slow."""
    figures: Figures = {}
    rows, worst, slow = [], ("", 0.0), ("", MOST_SLOW)
    urgent = {view.name for view in asked.classes if view.first_token_s is not None}
    for name, one in by_class(asked.samples).items():
        first, whole = (share_within(counts, BUCKETS_S, SLOW_S) for counts in (one.first_s, one.duration_s))
        if whole is None:
            continue
        late = None if first is None else 1 - first
        rows.append((name, percent(late), percent(1 - whole)))
        figures |= {f"{name}.first": late, f"{name}.whole": 1 - whole}
        if late is not None:
            worst = max(worst, (name, late), key=_share)
            slow = max(slow, (name, late), key=_share) if name in urgent else slow
    return Chapter(
        "over 1 s",
        f"{percent(worst[1])} of the first bytes of {worst[0]} took more than 1 s, the most of all classes; the first byte "
        "of an answer that is no stream comes when it is whole."
        if worst[0]
        else "No first byte took more than 1 s.",
        f"clients of {slow[0]} wait for it: let it be refused sooner than it waits (class.max_wait_s)"
        if slow[0]
        else NOTHING_TO_DO,
        "class.max_wait_s" if slow[0] else "",
        ("class", "first byte over 1 s", "whole answer over 1 s"),
        tuple(rows),
        numbers(figures),
    )


def _share(named: tuple[str, float]) -> float:
    return named[1]


def refusals(asked: Asked) -> Chapter:
    """Requests that were told to come again later."""
    figures: Figures = {}
    rows, worst, total = [], ("", 0.0), 0
    for name, one in by_class(asked.samples).items():
        came = ended(one.requests) + one.refused
        if not came:
            continue
        share = one.refused / came
        total += one.refused
        failed = one.requests.get("failed", 0)
        rows.append((name, f"{came:,}", f"{one.refused:,}", percent(share), f"{failed:,}"))
        figures |= {f"{name}.refused": one.refused, f"{name}.refused_share": share, f"{name}.failed": failed}
        if share > worst[1]:
            worst = (name, share)
    many = worst[1] > MOST_REFUSED
    return Chapter(
        "refusals",
        f"{total:,} requests were told to come again; of {worst[0]} {percent(worst[1])}."
        if total
        else "No request was refused for want of room.",
        f"{worst[0]} is refused too often: add engines (pool.replicas), or let it wait longer (class.max_wait_s)"
        if many
        else NOTHING_TO_DO,
        "pool.replicas" if many else "",
        ("class", "came", "refused", "share", "failed"),
        tuple(rows),
        numbers(figures),
    )
