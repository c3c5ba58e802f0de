"""Reports come once a week, a missed one once, a proposal once a month; a clock that jumps makes no flood of them."""

from datetime import UTC, datetime

import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tidegate.config.reports import ReportSettings
from tidegate.control.report import schedule
from tidegate.control.report.ring import Ring
from tidegate.control.report.samples import ClassSample, Sample
from tidegate.control.report.schedule import DAY_S, DAYS, Done
from tidegate.control.report.weekly import CALIBRATE, Weekly
from tidegate.home import Home
from tidegate.types import CLASSES


def at(*when):
    return datetime(*when, tzinfo=UTC).timestamp()


def test_the_moment_is_the_latest_of_its_weekday_and_hour():
    monday = at(2026, 11, 30, 6)
    assert schedule.last_due_s(at(2026, 12, 1, 11), "monday", 6) == monday
    assert schedule.last_due_s(monday, "monday", 6) == monday
    assert schedule.last_due_s(monday - 1, "monday", 6) == monday - 7 * DAY_S
    assert schedule.last_due_s(at(2026, 12, 1, 11), "sunday", 23) == at(2026, 11, 29, 23)


@given(now=st.floats(0, 4e9), weekday=st.sampled_from(DAYS), hour=st.integers(0, 23))
def test_the_moment_is_never_ahead_and_never_a_week_ago(now, weekday, hour):
    due = schedule.last_due_s(now, weekday, hour) if now > 8 * DAY_S else now
    assert 0 <= now - due < 7 * DAY_S


def test_what_was_missed_is_due_once():
    done = Done(at(2026, 10, 1), 0.0)
    now = at(2026, 12, 1)
    assert schedule.report_due(done, now, "monday", 6)
    assert not schedule.report_due(Done(now, 0.0), now + 60, "monday", 6)


def test_the_first_start_and_a_clock_set_back_make_nothing_due():
    now = at(2026, 12, 1)
    assert schedule.not_ahead(None, now) == Done(now, now)
    assert schedule.not_ahead(Done(now + 9e6, now + 9e6, True), now) == Done(now, now, True)


def test_a_month_of_weeks(tmp_path):
    home, now = Home(tmp_path / "home"), at(2026, 12, 1, 11)
    home.create()
    settings = ReportSettings(keep=2)

    def weekly():
        return Weekly(home, lambda: settings, lambda: CLASSES, wall=lambda: now, log=structlog.get_logger())

    running = weekly()
    with capture_logs() as told:
        running.look()
        assert told == []
        for _ in range(5):
            now += 7 * DAY_S
            Ring(home.samples).write([Sample(now - 60, 60.0, {"batch": ClassSample({"done": 7})})])
            running.look()
            running.look()
        now += 5 * 7 * DAY_S  # it was off, and starts again
        running = weekly()
        running.look()
        running.look()
    events = [line["event"] for line in told]
    assert events.count("report of the week written") == 6
    assert events.count("new calibration proposed") == 2
    assert [line.get("requests") for line in told if "requests" in line] == [7, 7, 7, 7, 7, 0]
    assert len(list(home.reports.glob("*.html"))) == len(list(home.reports.glob("2*.json"))) == 2
    assert running.notices() == (CALIBRATE,)
    now += 8 * DAY_S
    assert running.notices() == ()


def test_what_is_switched_off_is_not_done(tmp_path):
    home, now = Home(tmp_path / "home"), at(2026, 12, 1)
    home.create()
    settings = ReportSettings(weekly=False, calibrate_days=0)
    weekly = Weekly(home, lambda: settings, lambda: CLASSES, wall=lambda: now, log=structlog.get_logger())
    with capture_logs() as told:
        weekly.look()
        now += 90 * DAY_S
        weekly.look()
    assert told == []


def test_a_folder_that_cannot_be_written_is_told_once_and_tried_again(tmp_path):
    home, now = Home(tmp_path / "home"), at(2026, 12, 1)
    home.create()
    home.reports.write_text("in the way")
    weekly = Weekly(home, ReportSettings, lambda: CLASSES, wall=lambda: now, log=structlog.get_logger())
    with capture_logs() as told:
        weekly.look()
        weekly.look()
        assert len(told) == 1
        home.reports.unlink()
        weekly.look()
    assert len(told) == 1
    assert (home.reports / "done.json").exists()
