"""Whether lengths are still those that the profile was tuned on, and whether something newer is to be had. Pure."""

import math
from typing import Final

from tidegate.control.report.chapters import NOTHING_TO_DO, Asked, Chapter, Figures, Profile, numbers
from tidegate.control.report.samples import Counts, add_counts, by_class, quantile
from tidegate.gateway.metrics import BUCKETS_TOKENS

DRIFTED: Final = 0.25
"""Population stability index from which on a population counts as another one; from 0.1 on it counts as moved. Both are the
rules of thumb of credit scoring, where the index comes from."""
LEAST: Final = 200
"""Requests; of fewer, chance alone moves the index past its bounds."""
FLOOR: Final = 1e-4
"""Share that an empty bucket counts as, as its logarithm has to be taken."""


def lengths(asked: Asked) -> Chapter:
    """Prompts and answers against those of the profile."""
    prompts: Counts = ()
    answers: Counts = ()
    for one in by_class(asked.samples).values():
        prompts, answers = add_counts(prompts, one.prompt_tokens), add_counts(answers, one.answer_tokens)
    profile = asked.profile or Profile("")
    figures: Figures = {}
    rows, drifted = [], []
    for name, now, tuned in (("prompts", prompts, profile.prompt_tokens), ("answers", answers, profile.answer_tokens)):
        index = stability(tuned, now)
        before, after = (quantile(counts, BUCKETS_TOKENS, 0.5) for counts in (tuned, now))
        high = quantile(now, BUCKETS_TOKENS, 0.95)
        rows.append(
            (name, *(_tokens(value) for value in (before, after, high)), "–" if index is None else f"{index:.2f}")
        )
        figures |= {f"{name}.p50": after, f"{name}.p95": high, f"{name}.stability_index": index}
        if index is not None and index >= DRIFTED:
            drifted.append(name)
    if not asked.profile:
        text = "There is no profile to compare with."
        advice = "tune on this load (`tidegate tune`), and name its profile with --profile"
    elif drifted:
        text = (
            f"The lengths of {' and '.join(drifted)} are others than {profile.name} was tuned on ({DRIFTED:g} or more)."
        )
        advice = "tune the profile anew"
    else:
        text, advice = f"Lengths are those that {profile.name} was tuned on, as far as it can be told.", NOTHING_TO_DO
        if not (profile.prompt_tokens or profile.answer_tokens):
            text = f"{profile.name} does not say on which lengths it was tuned."
    head = ("lengths in tokens", "tuned on, P50", "now, P50", "now, P95", "stability index")
    return Chapter("drift of lengths", text, advice, "", head, tuple(rows), numbers(figures))


def stability(expected: Counts, found: Counts) -> float | None:
    """The population stability index: sum over buckets of (f - e) ln(f / e). None for too few, or other buckets."""
    if len(expected) != len(found) or sum(expected) < LEAST or sum(found) < LEAST:
        return None
    pairs = [
        (max(one / sum(expected), FLOOR), max(other / sum(found), FLOOR))
        for one, other in zip(expected, found, strict=True)
    ]
    return sum((other - one) * math.log(other / one) for one, other in pairs)


def outdated(asked: Asked) -> Chapter:
    """Models and engines that are here in another version than this Tidegate would get."""
    old = [one for one in asked.installed if one.version != one.newest]
    return Chapter(
        "versions",
        f"{len(old)} of {len(asked.installed)} models and engines are others than this Tidegate would get."
        if asked.installed
        else "No model or engine is known here.",
        old[0].renew if old else NOTHING_TO_DO,
        "",
        ("", "name", "here", "known to this Tidegate"),
        tuple((one.kind, one.name, one.version, one.newest) for one in asked.installed),
        {"outdated": len(old)},
    )


def _tokens(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"
