"""What makes classes, rules, tenants and limits unusable together. What is merely odd, `control.concerns` tells."""

from collections.abc import Sequence

from tidegate.config import complaints
from tidegate.config.classes import ClassSettings, LimitsSettings
from tidegate.config.sections import Settings
from tidegate.errors import SettingError
from tidegate.types import ClassView

ROUNDING = 1e-9


def check(settings: Settings) -> None:
    """Raises SettingError that names the setting."""
    _check_twice("class", [one.name for one in settings.klass])
    _check_twice("tenant", [one.name for one in settings.tenant])
    classes = settings.policy().classes
    names = [one.name for one in classes]
    for position, rule in enumerate(settings.rule, 1):
        if rule.klass not in names:
            hint = complaints.nearest(rule.klass, names) or f"there are: {', '.join(names)}"
            raise SettingError(f"rule.{position}.class", f"there is no class named {rule.klass!r}", hint=hint)
    _check_shares(settings.klass, classes)
    _check_limits(settings.limits)


def _check_twice(section: str, names: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for position, name in enumerate(names, 1):
        if name in first:
            what = f"{name!r} is the name of {section} {first[name]} already"
            raise SettingError(f"{section}.{position}.name", what, hint="put them together into one")
        first[name] = position


def _check_shares(given: Sequence[ClassSettings], classes: Sequence[ClassView]) -> None:
    """Built-in classes count too: their least shares are given whether or not anybody wrote them down."""
    views = {one.name: one for one in classes}
    for position, one in enumerate(given, 1):
        view = views[one.name]
        if view.most_share < view.least_share:
            setting = "most_share" if one.most_share is not None else "least_share"
            what = f"its most share {view.most_share:g} is less than its least share {view.least_share:g}"
            raise SettingError(f"class.{position}.{setting}", what)
    total = sum(one.least_share for one in classes)
    if total > 1 + ROUNDING:
        position = max(position for position, one in enumerate(given, 1) if one.least_share)
        shares = " + ".join(f"{one.least_share:g} {one.name}" for one in classes if one.least_share)
        what = f"the least shares of all classes add up to {total:g} ({shares}), and there is only 1"
        raise SettingError(f"class.{position}.least_share", what, hint="make them smaller")


def _check_limits(limits: LimitsSettings) -> None:
    if limits.kind == "fixed" and limits.sequences is None:
        raise SettingError("limits.sequences", 'is missing; kind = "fixed" needs it', hint="as in sequences = 64")
    for low, high in (("cache_low", "cache_high"), ("wait_low_s", "wait_high_s")):
        lower, higher = getattr(limits, low), getattr(limits, high)
        if lower > higher:
            raise SettingError(f"limits.{low}", f"{lower:g} is more than limits.{high}, {higher:g}")
