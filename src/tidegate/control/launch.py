"""Starts the children: recorded from their first moment, marked in their environment, their logs followed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidegate import logs
from tidegate.control.logfollow import LogFollowers
from tidegate.control.state import ProcessKind, ProcessRecord, Records
from tidegate.engines.base import EngineFacts
from tidegate.fleet import local
from tidegate.fleet.local import LocalChild
from tidegate.home import Home
from tidegate.types import DialectName, ProcessId

HOME_VARIABLE = "TIDEGATE_HOME"
NAME_VARIABLE = "TIDEGATE_CHILD"
"""Marks a child with its name, so that one started in the moment before control was killed is found without a record."""


@dataclass(frozen=True)
class Launcher:
    """Starts children of one data folder. `environ` is what they inherit."""

    home: Home
    records: Records
    followers: LogFollowers
    environ: Mapping[str, str]

    async def start(
        self,
        name: str,
        kind: ProcessKind,
        digest: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> LocalChild:
        """A running child, recorded. `env` comes on top of what is inherited. Raises OSError."""
        self.follow(name, kind, log)
        marked = {**self.environ, **(env or {}), HOME_VARIABLE: str(self.home.path), NAME_VARIABLE: name}
        child = await local.spawn(argv, env=marked, log=log or self.log_file(name), pass_fds=pass_fds)
        self.records.put(ProcessRecord(name=name, kind=kind, id=child.id, digest=digest))
        return child

    def adopt(self, record: ProcessRecord) -> LocalChild | None:
        """A recorded child that still lives, its log followed from here on; None if it is gone."""
        child = local.adopt(record.id)
        if child is not None:
            self.follow(record.name, record.kind)
        return child

    def kill(self, record: ProcessRecord) -> None:
        """SIGKILL to a recorded child; whoever waits for it forgets it."""
        local.kill(record.id)

    async def end(self, record: ProcessRecord, grace_s: float) -> None:
        """End a recorded child and forget it."""
        child = local.adopt(record.id)
        if child is not None:
            await child.stop(grace_s)
        self.ended(record.name, record.id)

    def answers(
        self,
        record: ProcessRecord,
        url: str,
        *,
        api_key: str = "",
        dialect: DialectName | None = None,
        facts: EngineFacts | None = None,
    ) -> None:
        """Record where a child answers: from now on it can be adopted."""
        self.records.put(msgspec.structs.replace(record, url=url, api_key=api_key, dialect=dialect, facts=facts))

    def rename(self, record: ProcessRecord, name: str) -> None:
        """Keep a child's record under another name, so that its own is free for a successor."""
        self.records.put(msgspec.structs.replace(record, name=name))
        self.ended(record.name, record.id)

    def ended(self, name: str, process: ProcessId) -> None:
        """Forget a child that is gone, unless its name is another's by now."""
        record = self.records.get(name)
        if record is not None and record.id == process:
            self.records.forget(name)

    def follow(self, name: str, kind: ProcessKind, log: Path | None = None) -> None:
        """Follow a child's log from where it ends now."""
        engine = kind is ProcessKind.ENGINE
        self.followers.follow(name, log or self.log_file(name), lambda line: logs.emit_line(line, name, engine=engine))

    def log_file(self, name: str) -> Path:
        return self.home.logs / f"{name}.log"


async def end_strays(home: Home, known: set[ProcessId], grace_s: float) -> None:
    """End children of this data folder that nobody has a record of."""
    found = local.find_sessions(HOME_VARIABLE, str(home.path))
    strays = [process for process, environ in found.items() if NAME_VARIABLE in environ and process not in known]
    for process in strays:
        child = local.adopt(process)
        if child is not None:
            await child.stop(grace_s)
