"""Opening the database: private, up to date, and every fault in plain words."""

import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tidegate.errors import SettingError, StoreError
from tidegate.store import KeyStore, migrations, open_database
from tidegate.store.database import Touch
from tidegate.store.tables import metadata


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.db"


@pytest.fixture
def database(file):
    opened = open_database(file)
    yield opened
    opened.close()


def test_the_recorded_head_is_the_newest_migration():
    scripts = ScriptDirectory(str(migrations.FOLDER))
    assert scripts.get_heads() == [migrations.HEAD]


def test_migrations_lead_to_the_tables_the_code_knows(database):
    with database.read() as connection:
        difference = compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), metadata)
    assert difference == []


def test_the_file_is_closed_to_other_users_with_its_log(file):
    old = os.umask(0o022)
    try:
        database = open_database(file)
        KeyStore(database).create("a")
        modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir()}
        database.close()
    finally:
        os.umask(old)
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}


def test_a_file_that_others_can_read_is_closed_to_them(file):
    open_database(file).close()
    file.chmod(0o644)
    open_database(file).close()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_up_to_date_is_opened_without_alembic(file):
    open_database(file).close()
    code = (
        "import sys; from pathlib import Path; from tidegate.store import open_database\n"
        "open_database(Path(sys.argv[1])).close(); print(any('alembic' in name for name in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code, file], check=True, timeout=60, capture_output=True, text=True)
    assert ran.stdout == "False\n"


def test_a_schema_newer_than_the_program_is_refused_and_left_alone(file):
    open_database(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StoreError, match="has schema 9999; this version of Tidegate knows schemas up to") as caught:
        open_database(file)
    assert "newer version" in caught.value.hint


def test_a_failed_migration_leaves_nothing_behind(file, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sa.Connection, "commit", None)
        patch.setattr("tidegate.store.migrations.FOLDER", file.parent)
        (file.parent / "versions").mkdir()
        source = "from alembic import op\nrevision, down_revision = '0001', None\n"
        source += "def upgrade():\n    op.execute('CREATE TABLE half (a)')\n    op.execute('NO SQL')\n"
        (file.parent / "versions" / "v1.py").write_text(source)
        with pytest.raises(StoreError, match="syntax error"):
            open_database(file)
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    connection.close()
    open_database(file).close()


def test_many_may_open_an_empty_database_at_once(file):
    faults = []

    def open_it():
        try:
            open_database(file).close()
        except StoreError as error:
            faults.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_damaged_file_is_said_to_be_damaged(file):
    file.write_bytes(b"this is no database" * 500)
    with pytest.raises(StoreError, match="it is not a database") as caught:
        open_database(file)
    assert "restore a backup" in caught.value.hint
    assert str(file) in str(caught.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"nowhere/state\.db cannot be opened: No such file"):
        open_database(tmp_path / "nowhere" / "state.db")


def test_a_lock_that_is_held_is_told(file, monkeypatch):
    monkeypatch.setattr("tidegate.store.database.BUSY_TIMEOUT_S", 0.05)
    database = open_database(file)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program holds its lock"):
        KeyStore(database).create("a")
    assert KeyStore(database).views() == ()  # readers do not wait for writers
    other.close()
    KeyStore(database).create("a")
    database.close()


def fill(keys):
    for number in range(10_000):
        keys.create(f"key {number}")


def test_a_full_disk_is_told_and_the_database_stays_whole(database, file):
    keys = KeyStore(database)
    keys.create("before")
    with database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full"):
        fill(keys)
    assert "before" in {view.name for view in keys.views()}


def test_a_write_cut_by_the_size_limit_of_the_process_is_told(tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path; from tidegate.store import open_database, KeyStore\n"
        "from tidegate.errors import StoreError\n"
        "database = open_database(Path(sys.argv[1])); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))\n"
        "try:\n    [KeyStore(database).create(f'k{n}') for n in range(1000)]\n"
        "except StoreError as error: print(error)"
    )
    argv = [sys.executable, "-c", code, tmp_path / "state.db"]
    ran = subprocess.run(argv, check=True, timeout=60, capture_output=True, text=True)
    assert "cannot be used: the disk" in ran.stdout


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("mysql://u:secret@h/d", "'mysql' is not sqlite or postgresql"),
        ("nonsense", "is not the URL of a database"),
        ("postgresql+nosuch://h/d", "is not the URL of a database"),
        ("postgresql://h:port/d", "is not the URL of a database"),
    ],
)
def test_a_url_that_cannot_be_used_names_the_setting_and_tells_no_password(file, url, what):
    with pytest.raises(SettingError, match=f"^store.url: {what}") as caught:
        open_database(file, url)
    assert "secret" not in str(caught.value)


def test_postgresql_without_its_driver_names_the_extra(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingError, match="PostgreSQL needs the package psycopg") as caught:
        open_database(file, "postgresql://u:secret@127.0.0.1:1/d")
    assert "tidegate[postgres]" in caught.value.hint


def test_a_sqlite_url_is_another_place_for_the_file(tmp_path, file):
    open_database(file, f"sqlite:///{tmp_path}/other.db").close()
    assert (tmp_path / "other.db").stat().st_mode & 0o777 == 0o600
    assert not file.exists()


def test_a_look_at_the_files_tells_that_somebody_has_written(tmp_path):
    """Cheap enough for a loop that serves requests; a time that is too young to tell counts as a write."""
    clock = time.time
    database = open_database(tmp_path / "state.db")
    touch = Touch(tmp_path / "state.db", now=lambda: clock() + 10)
    assert touch.changed()
    assert not touch.changed()
    other = open_database(tmp_path / "state.db")
    KeyStore(other).create("anna")
    assert touch.changed()
    assert not touch.changed()
    young = Touch(tmp_path / "state.db", now=lambda: clock() - 10)
    assert young.changed()
    assert young.changed()
    assert Touch(tmp_path / "none.db").changed()
    other.close()
    database.close()
