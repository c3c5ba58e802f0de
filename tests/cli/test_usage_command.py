"""`tidegate usage` tells what is in the table: for people, for spreadsheets, for programs."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from tidegate.cli.usage import first_day
from tidegate.errors import OperatorError
from tidegate.store import UsageStore, open_database
from tidegate.types import Outcome, UsageCount


@pytest.fixture
def filled(tidegate):
    tidegate.home.mkdir()
    today = datetime.now(UTC).date()
    database = open_database(tidegate.home / "state.db")
    UsageStore(database).add(
        UsageCount((today - timedelta(days=ago)).isoformat(), tenant, klass, "m", Outcome.DONE, 1, 1000, 10)
        for ago in (0, 1, 6, 7, 30)
        for tenant, klass in (("sales", "standard"), ("sales", "interactive"), ("人事", "standard"))
    )
    database.close()
    return tidegate


def test_people_get_a_table_with_a_sum(filled):
    told = filled("usage", "--by", "tenant")
    assert told.returncode == 0, told.stderr
    lines = [line.split() for line in told.stdout.splitlines()]
    assert lines[2:] == [
        ["sales", "6", "6,000", "60"],
        ["人事", "3", "3,000", "30"],
        ["all", "9", "9,000", "90"],
    ]


def test_programs_get_json_and_spreadsheets_get_csv(filled):
    told = filled("usage", "--by", "tenant", "--by", "class", "--since", "1d", "--json")
    numbers = {"requests": 1, "prompt_tokens": 1000, "completion_tokens": 10}
    assert json.loads(told.stdout) == [
        {"tenant": "sales", "class": "interactive", **numbers},
        {"tenant": "sales", "class": "standard", **numbers},
        {"tenant": "人事", "class": "standard", **numbers},
    ]
    told = filled("usage", "--by", "model", "--since", "2000-01-01", "--csv")
    assert told.stdout == "model,requests,prompt_tokens,completion_tokens\nm,15,15000,150\n"


def test_where_nothing_was_used_nothing_is_made(tidegate):
    told = tidegate("usage")
    assert (told.returncode, told.stdout) == (0, "")
    assert "nothing was used since" in told.stderr
    assert not tidegate.home.exists()
    assert tidegate("usage", "--json").stdout == "[]\n"


def test_a_time_that_is_none_is_told(tidegate):
    told = tidegate("usage", "--since", "yesterday")
    assert told.returncode == 2
    assert "--since: 'yesterday' is neither" in told.stderr
    told = tidegate("usage", "--by", "key")
    assert told.returncode == 2
    assert "Traceback" not in told.stderr


def test_seven_days_are_today_and_the_six_before():
    today = date(2026, 11, 30)
    assert first_day("1d", today) == today
    assert first_day("7d", today) == date(2026, 11, 24)
    assert first_day("2w", today) == date(2026, 11, 17)
    assert first_day(" 2026-01-31 ", today) == date(2026, 1, 31)
    for wrong in ("0d", "7", "2026-02-30", ""):
        with pytest.raises(OperatorError):
            first_day(wrong, today)
