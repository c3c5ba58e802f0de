"""When a report is due, and when a new calibration is proposed. Pure: time is handed in."""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAY_S: Final = 86_400.0
SHOWN_S: Final = 7 * DAY_S
"""How long a proposal is shown."""


class Done(msgspec.Struct, frozen=True):
    """What was done last; Unix times."""

    reported_at_s: float
    proposed_at_s: float
    shown: bool = False
    """Whether `proposed_at_s` is of a proposal, and not of the first start."""


def last_due_s(now_s: float, weekday: str, hour: int) -> float:
    """The latest moment of the schedule that is not after `now_s`."""
    now = datetime.fromtimestamp(now_s, UTC)
    at = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    at -= timedelta(days=(at.weekday() - DAYS.index(weekday)) % 7)
    return (at if at <= now else at - timedelta(days=7)).timestamp()


def not_ahead(done: Done | None, now_s: float) -> Done:
    """What was done, as of a clock that may have been set back; at the first start everything counts as just done."""
    if done is None:
        return Done(now_s, now_s)
    return msgspec.structs.replace(
        done, reported_at_s=min(done.reported_at_s, now_s), proposed_at_s=min(done.proposed_at_s, now_s)
    )


def report_due(done: Done, now_s: float, weekday: str, hour: int) -> bool:
    """Whether a moment of the schedule has passed since the last report; several that were missed are one."""
    return done.reported_at_s < last_due_s(now_s, weekday, hour)


def proposal_due(done: Done, now_s: float, days: int) -> bool:
    """Whether it is time to propose a new calibration; `days` of 0 is never."""
    return days > 0 and now_s - done.proposed_at_s >= days * DAY_S


def proposed(done: Done, now_s: float) -> bool:
    """Whether a proposal is to be shown."""
    return done.shown and 0 <= now_s - done.proposed_at_s < SHOWN_S
