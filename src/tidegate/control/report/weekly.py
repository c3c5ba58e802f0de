"""Makes the report of the week when it is due, keeps the last ones, and proposes a new calibration once a month."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from tidegate.config import ReportSettings
from tidegate.control.report import schedule, words
from tidegate.control.report.chapters import Asked, Report
from tidegate.control.report.installed import installed
from tidegate.control.report.making import make
from tidegate.control.report.ring import Ring
from tidegate.control.report.schedule import Done
from tidegate.errors import OperatorError
from tidegate.home import Home, write_private
from tidegate.types import ClassView

LOOK_S: Final = 60.0
SPAN_S: Final = 7 * 86_400.0
STATE: Final = "done.json"
CALIBRATE: Final = (
    "it is time to calibrate anew: `tidegate tune`, or measure with `tidegate bench` and compare with last time"
)


def last_done(home: Home) -> Done | None:
    """What was done last in this data folder, as far as it is known. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        return msgspec.json.decode((home.reports / STATE).read_bytes(), type=Done)
    return None


class Weekly:
    """`wall` is Unix time; the settings are asked for each time, as they may be another's by then."""

    def __init__(
        self,
        home: Home,
        settings: Callable[[], ReportSettings],
        classes: Callable[[], Sequence[ClassView]],
        *,
        wall: Callable[[], float],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self._home, self._settings, self._classes, self._wall, self._log = home, settings, classes, wall, log
        self._done: Done | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)

    def notices(self) -> tuple[str, ...]:
        """What `tidegate status` is to say."""
        return (CALIBRATE,) if self._done is not None and schedule.proposed(self._done, self._wall()) else ()

    def look(self) -> None:
        """Do what is due. Blocks."""
        now_s, settings = self._wall(), self._settings()
        try:
            held = self._done if self._done is not None else last_done(self._home)
            done = schedule.not_ahead(held, now_s)
            if settings.weekly and schedule.report_due(done, now_s, settings.weekday, settings.hour):
                made = self._make(now_s)
                path = self._keep(made, settings.keep)
                self._log.info("report of the week written", file=str(path), requests=made.requests)
                done = msgspec.structs.replace(done, reported_at_s=now_s)
            if schedule.proposal_due(done, now_s, settings.calibrate_days):
                self._log.info("new calibration proposed", advice=CALIBRATE)
                done = msgspec.structs.replace(done, proposed_at_s=now_s, shown=True)
            if done != held:
                self._home.reports.mkdir(mode=0o700, exist_ok=True)
                write_private(self._home.reports / STATE, msgspec.json.encode(done))
            self._done, self._trouble = done, ""
        except (OSError, OperatorError) as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._log.error("the report of the week cannot be made yet", cause=self._trouble)

    def _make(self, now_s: float) -> Report:
        read = Ring(self._home.samples).read(now_s - SPAN_S, now_s)
        partial = (f"{read.broken} samples were cut short",) if read.broken else ()
        return make(
            Asked(
                now_s - SPAN_S,
                now_s,
                read.samples,
                self._classes(),
                installed=installed(self._home),
                partial=partial,
            )
        )

    def _keep(self, made: Report, most: int) -> Path:
        """Write it as a page and for programs, and remove the oldest of more than `most`."""
        folder = self._home.reports
        folder.mkdir(mode=0o700, exist_ok=True)
        name = datetime.fromtimestamp(made.until_s, UTC).strftime("%Y-%m-%dT%H%M")
        write_private(folder / f"{name}.json", msgspec.json.format(msgspec.json.encode(made)))
        write_private(folder / f"{name}.html", words.html(made).encode())
        written = [path for path in folder.glob("????-??-??T????.html") if path.stem != name]
        for path in sorted(written, key=lambda path: path.stat().st_mtime, reverse=True)[most - 1 :]:
            path.unlink(missing_ok=True)
            path.with_suffix(".json").unlink(missing_ok=True)
        return folder / f"{name}.html"
