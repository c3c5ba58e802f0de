"""The usage table adds up, on SQLite and on PostgreSQL."""

import threading
from datetime import date

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from store.postgres import temporary_cluster
from tidegate.errors import OperatorError, StoreError
from tidegate.store import KeyStore, UsageStore, open_database
from tidegate.store.tables import metadata
from tidegate.types import Outcome, UsageCount


@pytest.fixture(scope="module")
def cluster():
    with temporary_cluster() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request, tmp_path):
    """What `open_database` takes."""
    if request.param == "sqlite":
        return (tmp_path / "state.db", None)
    return (tmp_path / "unused", request.getfixturevalue("cluster"))


@pytest.fixture
def database(address):
    opened = open_database(*address)
    yield opened
    with opened.write() as connection:
        connection.exec_driver_sql("DELETE FROM usage_day")
    opened.close()


def test_migrations_lead_to_the_tables_the_code_knows(database):
    with database.read() as connection:
        difference = compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)
    assert difference == []


def test_keys_are_kept_on_either_database(database):
    keys = KeyStore(database)
    _, view = keys.create("anna", tenant="销售", models=("m",), tokens_per_day=10**12)
    assert view in keys.views()
    with pytest.raises(OperatorError, match="already a key named 'anna'"):
        keys.create("anna")
    keys.revoke("anna")
    assert keys.required()


def count(
    *, day="2026-11-30", tenant="sales", klass="interactive", model="m", outcome=Outcome.DONE, numbers=(1, 10, 20)
):
    return UsageCount(day, tenant, klass, model, outcome, *numbers)


def rows(found):
    return [(*row.labels.values(), row.requests, row.prompt_tokens, row.completion_tokens) for row in found]


def test_what_is_added_adds_up(database):
    usage = UsageStore(database)
    usage.add([count(), count(numbers=(2, 1, 0)), count(tenant="hr")])
    usage.add([count(), count(outcome=Outcome.FAILED, numbers=(1, 0, 0))])
    usage.add([])
    assert rows(usage.report()) == [("sales", 5, 21, 40), ("hr", 1, 10, 20)]
    assert rows(usage.report(["outcome", "tenant"])) == [
        ("done", "sales", 4, 21, 40),
        ("done", "hr", 1, 10, 20),
        ("failed", "sales", 1, 0, 0),
    ]


def test_it_is_reported_by_any_label_and_from_any_day(database):
    usage = UsageStore(database)
    usage.add(count(day=f"2026-11-{day:02d}", klass=f"c{day % 2}", model=f"m{day % 3}") for day in range(1, 31))
    assert rows(usage.report([])) == [(30, 300, 600)]
    assert rows(usage.report(["class"])) == [("c0", 15, 150, 300), ("c1", 15, 150, 300)]
    assert len(usage.report(["model", "class"])) == 6
    assert [row.labels for row in usage.report(["day"], since=date(2026, 11, 28))] == [
        {"day": "2026-11-28"},
        {"day": "2026-11-29"},
        {"day": "2026-11-30"},
    ]
    assert rows(usage.report([], since=date(2026, 12, 1))) == []
    with pytest.raises(KeyError):
        usage.report(["key"])


def test_many_rows_and_large_numbers_are_taken(database):
    usage = UsageStore(database)
    usage.add(count(tenant=f"租户{number}", numbers=(1, 2**40, 2**40)) for number in range(1700))
    assert rows(usage.report([])) == [(1700, 1700 * 2**40, 1700 * 2**40)]


def test_several_writers_at_once_lose_nothing(address, database):
    faults = []

    def write(names):
        mine = open_database(*address)
        try:
            for _ in range(20):
                UsageStore(mine).add(count(tenant=name) for name in names)
        except StoreError as error:
            faults.append(error)
        finally:
            mine.close()

    orders = (["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"])
    threads = [threading.Thread(target=write, args=(names,)) for names in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert rows(UsageStore(database).report()) == [(name, 60, 600, 1200) for name in "abc"]


def test_a_write_that_fails_has_added_nothing(database):
    usage = UsageStore(database)
    usage.add([count()])
    with pytest.raises(ValueError, match="isoformat"):
        usage.add([count(), count(day="yesterday")])
    assert rows(usage.report()) == [("sales", 1, 10, 20)]
