"""What was used: requests and tokens by day, tenant, class, model and outcome."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tidegate.store.database import Database
from tidegate.store.tables import usage_day
from tidegate.types import UsageCount

LABELS = ("day", "tenant", "class", "model", "outcome")
"""What usage can be reported by."""
NUMBERS = ("requests", "prompt_tokens", "completion_tokens")
ROWS_AT_A_TIME = 500
"""Of one statement: far below SQLite's and PostgreSQL's bounds on parameters."""


class UsageRow(msgspec.Struct, frozen=True):
    """One line of a report. Labels that were not asked for are missing."""

    labels: dict[str, str]
    requests: int
    prompt_tokens: int
    completion_tokens: int


class UsageStore:
    """The table of usage. Every method is one transaction and raises StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, counts: Iterable[UsageCount]) -> None:
        """Add to what is there: all of it, or on an error nothing. Several processes may do so at once."""
        rows = _rows(counts)
        if not rows:
            return
        with self._database.write() as connection:
            insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert
            for begin in range(0, len(rows), ROWS_AT_A_TIME):
                statement = insert(usage_day).values(rows[begin : begin + ROWS_AT_A_TIME])
                added = {name: usage_day.c[name] + statement.excluded[name] for name in NUMBERS}
                connection.execute(statement.on_conflict_do_update(index_elements=LABELS, set_=added))

    def report(self, by: Sequence[str] = ("tenant",), *, since: date | None = None) -> list[UsageRow]:
        """What was used, for each combination of the labels `by`, from the day `since` on; most tokens first.

        By day, the order is that of the days. Raises KeyError for a label that is none of `LABELS`.
        """
        labels = [usage_day.c[name] for name in by]
        sums = [sa.func.sum(usage_day.c[name]).label(name) for name in NUMBERS]
        query = sa.select(*labels, *sums).group_by(*labels).having(sa.func.sum(usage_day.c.requests) > 0)
        if since is not None:
            query = query.where(usage_day.c.day >= since)
        most = sa.func.sum(usage_day.c.prompt_tokens + usage_day.c.completion_tokens)
        first = [usage_day.c.day] if "day" in by else []
        query = query.order_by(*first, most.desc(), sums[0].desc(), *labels)
        with self._database.read() as connection:
            found = connection.execute(query).all()
        return [
            UsageRow({name: str(value) for name, value in zip(by, row, strict=False)}, *map(int, row[len(by) :]))
            for row in found
        ]


def _rows(counts: Iterable[UsageCount]) -> list[dict[str, Any]]:
    """One row for each combination of labels, in one order for everybody: two writers never wait for each other."""
    totals: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for one in counts:
        total = totals[one.day, one.tenant[:64], one.klass[:64], one.model[:256], one.outcome.value]
        total[0] += one.requests
        total[1] += one.prompt_tokens
        total[2] += one.completion_tokens
    return [
        {
            **dict(zip(LABELS, (date.fromisoformat(key[0]), *key[1:]), strict=True)),
            **dict(zip(NUMBERS, totals[key], strict=True)),
        }
        for key in sorted(totals)
    ]
