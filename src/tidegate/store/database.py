"""Opening a database, and transactions whose faults are told in plain words.

SQLite (write-ahead log) is the default: one file, closed to other users. PostgreSQL is chosen by URL.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from tidegate.errors import SettingError, StoreError
from tidegate.store import migrations

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process's transaction; ours last milliseconds."""
CONNECT_TIMEOUT_S = 5
MIGRATION_LOCK = 0x7469_6465
"""PostgreSQL advisory lock: one process migrates at a time ("tide")."""


class Touch:
    """Whether a SQLite file may have been written: a look at two files' times, for those who cannot even ask a thread."""

    FRESH_S: Final = 0.1
    """A time as young as this may stay the same through a further write: such a file counts as written again."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        """`now` gives CLOCK_REALTIME seconds, as the file system does."""
        self._files = (file, Path(f"{file}-wal"))
        self._now = now
        self._last: list[tuple[int, int, int]] = []

    def changed(self) -> bool:
        """Whether anything was written since the last call; true at the first."""
        seen: list[tuple[int, int, int]] = []
        for file in self._files:
            try:
                one = file.stat()
            except OSError:
                seen.append((0, 0, 0))
            else:
                seen.append((one.st_ino, one.st_size, one.st_mtime_ns))
        fresh = max(mtime for _, _, mtime in seen) > (self._now() - self.FRESH_S) * 1e9
        before, self._last = self._last, seen
        return fresh or seen != before


class Database:
    """An open database with an up-to-date schema. Thread-safe; `where` names it in messages, without its password."""

    def __init__(self, engine: sa.Engine, where: str) -> None:
        self._engine = engine
        self.where = where

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A transaction that only reads. Raises StoreError."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction, committed at the end of the block and rolled back by any exception. Raises StoreError.

        SQLite's lock is taken at the start, so that what was read in the transaction still holds when it writes.
        IntegrityError is the caller's: it knows which rule its rows broke.
        """
        with self._translated(), self._engine.execution_options(tidegate_write=True).begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def migrate(self) -> None:
        """Bring the schema up to date; a database that is costs one query. Raises StoreError."""
        with self.read() as connection:
            if migrations.recorded_revision(connection) == migrations.HEAD:
                return
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
            migrations.upgrade(connection, self.where)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            raise
        except exc.DBAPIError as error:
            raise _store_error(error, self.where) from error
        except exc.TimeoutError as error:
            raise StoreError(f"the database {self.where} has no free connection", hint="try again") from error


def open_database(file: Path, url: str | None = None, password: str | None = None) -> Database:
    """The database at `url`, else the SQLite `file`, its schema up to date.

    Raises StoreError, and SettingError for a `url` that cannot be used.
    """
    address = _address(url, password) if url else sa.URL.create("sqlite+pysqlite", database=str(file))
    if address.get_backend_name() == "sqlite":
        where = address.database or ":memory:"
        if where != ":memory:":
            _make_private(Path(where))
        engine = sa.create_engine(address, connect_args={"timeout": BUSY_TIMEOUT_S})
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    else:
        where = address.render_as_string(hide_password=True)
        arguments = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "tidegate"}
        engine = sa.create_engine(address, connect_args=arguments, pool_pre_ping=True)
    database = Database(engine, where)
    try:
        database.migrate()
    except BaseException:
        database.close()
        raise
    return database


def _address(url: str, password: str | None) -> sa.URL:
    try:
        address = sa.make_url(url)
        if address.get_backend_name() == "postgresql" and "+" not in address.drivername:
            address = address.set(drivername="postgresql+psycopg")
        if address.get_backend_name() not in {"sqlite", "postgresql"}:
            raise SettingError("store.url", f"{address.get_backend_name()!r} is not sqlite or postgresql")
        address.get_dialect().import_dbapi()
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError) as error:
        hint = "as in postgresql://tidegate@db.example/tidegate or sqlite:////srv/tidegate/state.db"
        raise SettingError("store.url", "is not the URL of a database", hint=hint) from error
    except ImportError as error:
        raise SettingError(
            "store.url",
            f"PostgreSQL needs the package {error.name or 'psycopg'}, which is not installed",
            hint="pip install 'tidegate[postgres]'",
        ) from error
    return address.set(password=password) if password is not None else address


def _make_private(file: Path) -> None:
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except OSError as error:
        raise StoreError(
            f"the database {file} cannot be opened: {error.strerror}",
            hint="the data folder must belong to the user that runs Tidegate, on a disk that can be written",
        ) from error


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not guessed by the driver from the statement
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options().get("tidegate_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


SQLITE_FAULTS = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and try again"),
    sqlite3.SQLITE_BUSY: ("another program holds its lock", "end the program that has the file open, or try again"),
    sqlite3.SQLITE_LOCKED: ("another program holds its lock", "end the program that has the file open, or try again"),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "look at the permissions of the file and its folder"),
    sqlite3.SQLITE_PERM: ("it cannot be opened", "look at the permissions of the file and its folder"),
    sqlite3.SQLITE_READONLY: ("it cannot be written", "look at the permissions of the file and its folder"),
    sqlite3.SQLITE_IOERR: ("the disk gives an error", "look at the system's log, and at the space that is free"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "restore a backup, or move the file away to start with an empty one"),
    sqlite3.SQLITE_NOTADB: (
        "it is not a database",
        "restore a backup, or move the file away to start with an empty one",
    ),
}
"""What SQLite's primary result codes mean (https://sqlite.org/rescode.html), and what to do."""


def _store_error(error: exc.DBAPIError, where: str) -> StoreError:
    cause = error.orig
    text = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        what, hint = SQLITE_FAULTS.get(code, (text, "look at the log for what was being done"))
        return StoreError(f"the database {where} cannot be used: {what}", hint=hint)
    state = getattr(cause, "sqlstate", None)
    if state == "53100":
        return StoreError(f"the database {where} cannot be used: its disk is full", hint="free some space on its host")
    if isinstance(error, exc.OperationalError):
        hint = "is it running, and are host, port, user and password in store.url right?"
        return StoreError(f"the database {where} cannot be reached: {text}", hint=hint)
    return StoreError(f"the database {where} cannot be used: {text}", hint="look at the log for what was being done")
