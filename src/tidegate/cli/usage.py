"""`tidegate usage`: what was used, by tenant, class, model, day and outcome, out of the table in the store."""

import csv
import re
import sys
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tidegate.errors import OperatorError
from tidegate.store.usage import NUMBERS, UsageRow, UsageStore

UNITS_DAYS: Final = {"d": 1, "w": 7}

app = typer.Typer(add_completion=False)


class By(StrEnum):
    """What usage is told apart by."""

    TENANT = "tenant"
    CLASS = "class"
    MODEL = "model"
    DAY = "day"
    OUTCOME = "outcome"


@app.command()
def usage(
    by: Annotated[list[By] | None, typer.Option(help="What to tell apart; repeatable.")] = None,
    since: Annotated[str, typer.Option(help="7d, 4w, or a day (2026-12-31); days are UTC.")] = "7d",
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one list.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file.")] = None,
) -> None:
    """Show requests and tokens used. What was used in the last 3 seconds may not be in it yet."""
    labels = [one.value for one in dict.fromkeys(by or [By.TENANT])]
    first = first_day(since, datetime.now(UTC).date())
    rows = _read(labels, first, config)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode([_flat(row) for row in rows])).decode())
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*labels, *NUMBERS])
        writer.writerows(list(_flat(row).values()) for row in rows)
    elif rows:
        show(rows, labels, first)
    else:
        print(f"nothing was used since {first}", file=sys.stderr)


def first_day(since: str, today: date) -> date:
    """The first day of a report: `7d` are seven days, today's included. Raises OperatorError."""
    span = re.fullmatch(r"([0-9]{1,5})([dw])", since.strip())
    try:
        if span and int(span[1]):
            return today - timedelta(days=int(span[1]) * UNITS_DAYS[span[2]] - 1)
        return date.fromisoformat(since.strip())
    except (ValueError, OverflowError):
        raise OperatorError(
            f"--since: {since!r} is neither a number of days nor a day", hint="as in 7d, 4w or 2026-12-31"
        ) from None


def show(rows: list[UsageRow], labels: list[str], first: date) -> None:
    """The report as a table, with a sum where there is something to add."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=f"since {first} (UTC)", title_justify="left", box=None)
    for name in labels:
        table.add_column(name, overflow="fold")
    for name in ("requests", "prompt tokens", "completion tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.labels.values(), *(f"{getattr(row, name):,}" for name in NUMBERS))
    if len(rows) > 1:
        sums = (f"{sum(getattr(row, name) for row in rows):,}" for name in NUMBERS)
        table.add_row("all", *[""] * (len(labels) - 1), *sums, style="bold")
    console.print(table)


def _read(labels: list[str], first: date, config: Path | None) -> list[UsageRow]:
    from tidegate.cli.parts import Store
    from tidegate.config import find_file, load
    from tidegate.home import find_home

    settings = load(find_file(config, find_home().path))
    home = find_home(settings.store.home)
    if settings.store.url is None and not home.database.exists():
        return []
    store = Store.open(settings, home)
    try:
        return UsageStore(store.database).report(labels, since=first)
    finally:
        store.close()


def _flat(row: UsageRow) -> dict[str, object]:
    return {**row.labels, **{name: getattr(row, name) for name in NUMBERS}}
