"""The data folder: whose it is, who may read it, and which processes of ours live."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.control.doctor.findings import Finding, note, ok, problem
from tidegate.control.state import ProcessRecord, Records
from tidegate.fleet.local import is_alive
from tidegate.home import Home

PRIVATE_FILES = ("state.db", "lan.key", "gateway.token", "run/admin.json", "run/service.key", "run/processes.json")


@dataclass(frozen=True)
class FolderFacts:
    """What is known of the data folder."""

    path: Path
    exists: bool
    mode: int = 0
    owner: int = 0
    user: int = 0
    open_files: tuple[str, ...] = ()
    """Files with secrets that other users can read."""
    control: int = 0
    """The process that holds `run/lock`; 0 if none does."""
    alive: tuple[ProcessRecord, ...] = ()
    dead: tuple[ProcessRecord, ...] = ()

    @property
    def ours(self) -> frozenset[int]:
        """Every process of ours that lives."""
        return frozenset({self.control, *(record.id.pid for record in self.alive)} - {0})


def gather(home: Home) -> FolderFacts:
    try:
        found = home.path.stat()
    except FileNotFoundError:
        return FolderFacts(home.path, exists=False, user=os.getuid())
    records = list(Records.load(home).all())
    living = {record.name for record in records if is_alive(record.id)}
    return FolderFacts(
        path=home.path,
        exists=True,
        mode=found.st_mode & 0o777,
        owner=found.st_uid,
        user=os.getuid(),
        open_files=tuple(name for name in PRIVATE_FILES if _mode(home.path / name) & 0o077),
        control=lock_holder(home.run / "lock"),
        alive=tuple(record for record in records if record.name in living),
        dead=tuple(record for record in records if record.name not in living),
    )


def check(facts: FolderFacts) -> Iterable[Finding]:
    if not facts.exists:
        yield ok("data folder", f"{facts.path} will be made at the first start")
        return
    if facts.owner != facts.user:
        yield problem(
            "data folder",
            f"{facts.path} belongs to user {facts.owner}, and this is user {facts.user}",
            "run as its owner, or set TIDEGATE_HOME to a folder of your own",
        )
    elif facts.mode & 0o077:
        yield problem("data folder", f"{facts.path} is open to other users", f"chmod 700 {facts.path}")
    else:
        yield ok("data folder", f"{facts.path} is yours alone")
    for name in facts.open_files:
        yield problem(
            "data folder", f"{facts.path / name} can be read by other users", f"chmod 600 {facts.path / name}"
        )
    names = ", ".join(record.name for record in facts.alive)
    if facts.control:
        yield ok("processes", f"control runs (process {facts.control}){f', with {names}' if names else ''}")
        if facts.dead:
            yield note(
                "processes", f"{_names(facts.dead)} ended", "control starts them again; `tidegate status` shows it"
            )
    elif facts.alive:
        yield note("processes", f"no control runs, but {names} still do", "`tidegate up` takes them over")
    elif facts.dead:
        yield note("processes", f"none runs; {_names(facts.dead)} did not end in order", "`tidegate up` clears that up")
    else:
        yield ok("processes", "none of this data folder runs")


def lock_holder(lock: Path, locks: Path = Path("/proc/locks")) -> int:
    """The process that holds the flock of `lock`, seen without touching it; 0 if none does."""
    try:
        inode = lock.stat().st_ino
        lines = locks.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        fields = line.split()  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return 0


def _names(records: tuple[ProcessRecord, ...]) -> str:
    return ", ".join(record.name for record in records)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        return 0
