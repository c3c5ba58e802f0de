"""What a report is made of: chapters, each with figures and one piece of advice. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tidegate.control.report.samples import Counts, Sample
from tidegate.types import ClassView

NOTHING_TO_DO: Final = "leave it as it is"
Figures = dict[str, float | None]
"""By name, for programs."""


class Chapter(msgspec.Struct, frozen=True):
    """One subject."""

    subject: str
    text: str
    """What was found, in a sentence or two."""
    advice: str
    """The one thing to do, or that nothing is to be done."""
    setting: str = ""
    """The setting that the advice would change; empty where it changes none."""
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    figures: Figures = {}


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a profile of settings was tuned on, as a file says. What it does not say is not compared.

    Lengths are counts by the bounds of `tidegate.gateway.metrics.BUCKETS_TOKENS`, and one of what is above all.
    """

    name: str
    prompt_tokens: Counts = ()
    answer_tokens: Counts = ()
    tokens_per_s: float | None = None
    """Of answers, of one engine, at the knee."""
    default_tokens_per_s: float | None = None
    """Likewise, with the engine's defaults."""
    gpus: int = 1
    """Of one engine."""


class Installed(msgspec.Struct, frozen=True):
    """A model or an engine that is here, and the version that this Tidegate would get."""

    kind: str
    name: str
    version: str
    newest: str
    renew: str
    """The command that gets it."""


class Asked(msgspec.Struct, frozen=True):
    """All that a report is made from."""

    since_s: float
    until_s: float
    samples: Sequence[Sample]
    classes: Sequence[ClassView] = ()
    profile: Profile | None = None
    installed: Sequence[Installed] = ()
    source: str = "samples"
    partial: tuple[str, ...] = ()
    """Why something is missing."""


class Report(msgspec.Struct, frozen=True):
    """The report, as `--json` gives it."""

    since_s: float
    until_s: float
    source: str
    covered: float
    """Share of the time that there are samples of, 0..1."""
    partial: tuple[str, ...]
    """Why it is partial; empty for a whole one."""
    requests: int
    chapters: tuple[Chapter, ...]


def percent(share: float | None) -> str:
    """`12.3 %`; a dash where there is nothing."""
    return "–" if share is None else f"{100 * share:.1f} %"


def seconds(value: float | None) -> str:
    """`0.25 s`; a dash where there is nothing."""
    return "–" if value is None else f"{value:.3g} s"


def ended(requests: Mapping[str, int]) -> int:
    """Requests of all outcomes."""
    return sum(requests.values())


def numbers(values: Mapping[str, float | None]) -> Figures:
    """Rounded to what can be read."""
    return {name: None if value is None else round(value, 4) for name, value in values.items()}
