"""When reports are made."""

from typing import Literal

from pydantic import Field

from tidegate.config.section import Section


class ReportSettings(Section):
    """The report of the week, in reports/ of the data folder (`tidegate report` makes one at any time)."""

    weekly: bool = True
    """Whether one is made each week; one that was missed while nothing ran is made at the next start."""
    weekday: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = "monday"
    """The day."""
    hour: int = Field(6, ge=0, le=23)
    """The hour (UTC)."""
    keep: int = Field(12, ge=1, le=1000)
    """How many are kept."""
    calibrate_days: int = Field(30, ge=0, le=3650)
    """After how many days a new calibration is proposed; 0 for never."""
