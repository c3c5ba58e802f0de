"""A PostgreSQL of one's own: a cluster in a temporary folder, reached over a Unix socket, gone with the test."""

import contextlib
import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def programs() -> Path | None:
    """Where Debian keeps the server's programs, which are not in PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    here = shutil.which("initdb")
    return found[-1].parent if found else Path(here).resolve().parent if here else None


@contextlib.contextmanager
def temporary_cluster() -> Iterator[str]:
    """The URL of an empty database. Skips where there is no PostgreSQL, or nobody who may run it."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'tidegate[postgres]'")
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("needs PostgreSQL: apt install postgresql")
    as_other: list[str] = []
    user = getpass.getuser()
    if os.geteuid() == 0:  # PostgreSQL refuses to be run by root
        if shutil.which("runuser") is None:
            pytest.skip("needs runuser, to start PostgreSQL as somebody else than root")
        user = "nobody"
        as_other = ["runuser", "-u", user, "--"]
    folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))
    try:
        if as_other:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            command = [*as_other, str(bin_folder / program), *arguments]
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
            assert ran.returncode == 0, ran.stderr

        data = str(folder / "data")
        run("initdb", "--pgdata", data, "--username", "tidegate", "--auth", "trust", "--no-sync", "--encoding", "UTF8")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run("pg_ctl", "--pgdata", data, "--wait", "--log", str(folder / "log"), "--options", options, "start")
        try:
            yield f"postgresql://tidegate@/postgres?host={folder}"
        finally:
            run("pg_ctl", "--pgdata", data, "--wait", "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
