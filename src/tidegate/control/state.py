"""What control keeps in `run/`: the lock, the records of its processes, the address of the admin port, the chat's key.

The lock says that a control lives; it is let go by the kernel when its process dies, however it dies, and children do
not inherit it. The records say what the children are, so that the next control can adopt or end them.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from tidegate import logs
from tidegate.engines.base import EngineFacts
from tidegate.errors import HomeLockedError, OperatorError
from tidegate.home import Home, write_private
from tidegate.types import DialectName, ProcessId

LOCK_FILE = "lock"
WRITABLE = "look at the permissions of the data folder, and at the space that is free"
SIGN_IN_FILE = "sign-in.json"
"""Digests of the keys that may sign in to the chat page, a JSON list that the page reads at each attempt."""

GATEWAY_TOKEN_FILE = "gateway.token"  # noqa: S105 - a file's name
LEAST_TOKEN_CHARS = 16
"""Whoever writes a token of their own: a shorter one is replaced."""

METRICS_FOLDER = "metrics"
"""In `run/`: what each data process counted (see `tidegate.gateway.shared_metrics`)."""


class ProcessKind(StrEnum):
    """What a child is for."""

    GATEWAY = "gateway"
    CHAT = "chat"
    ENGINE = "engine"


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One child, as the next control must know it to adopt it."""

    name: str
    kind: ProcessKind
    id: ProcessId
    digest: str
    """Of everything it was started with; a process of another digest is ended, not adopted."""
    url: str = ""
    """Known once it answers; without it the process cannot be adopted."""
    api_key: str = ""
    """The engine's own key."""
    dialect: DialectName | None = None
    facts: EngineFacts | None = None


class AdminAddress(msgspec.Struct, frozen=True):
    """`run/admin.json`: how `tidegate status` and `tidegate reload` reach this control."""

    url: str
    token: str
    pid: int


class Lock:
    """`run/lock`, held from `acquire` to `release` or to this process's end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, home: Home) -> Self:
        """Raises HomeLockedError that names the process which holds it, or OperatorError."""
        path = home.run / LOCK_FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OperatorError(f"{path} cannot be opened: {error.strerror}", hint=WRITABLE) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).strip()
            os.close(descriptor)
            raise HomeLockedError(str(home.path), int(holder) if holder.isdigit() else 0) from None
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # the number only makes the other's message better; the disk may be full
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        """The file stays, and is empty: removing it would let two controls hold two locks of one name."""
        os.ftruncate(self._descriptor, 0)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child in the middle of its exec may still have a copy
        os.close(self._descriptor)


@dataclass
class Records:
    """`run/processes.json`: whole on disk after every change, so that a killed control leaves the truth behind.

    On a full disk the last whole file stays, and children go on being kept: the next control ends those it lacks.
    """

    path: Path
    _by_name: dict[str, ProcessRecord] = field(default_factory=dict)
    _stale: bool = False
    """Whether the file lacks the last change."""

    @classmethod
    def load(cls, home: Home) -> Self:
        """What the last control left; nothing where the file is missing, or is no such file."""
        path = home.run / "processes.json"
        try:
            records = msgspec.json.decode(path.read_bytes(), type=list[ProcessRecord])
        except (OSError, msgspec.DecodeError):
            records = []
        return cls(path, {record.name: record for record in records})

    def put(self, record: ProcessRecord) -> None:
        self._by_name[record.name] = record
        self._write()

    def forget(self, name: str) -> None:
        if self._by_name.pop(name, None) is not None:
            self._write()

    def get(self, name: str) -> ProcessRecord | None:
        return self._by_name.get(name)

    def all(self) -> Iterable[ProcessRecord]:
        return tuple(self._by_name.values())

    def _write(self) -> None:
        try:
            write_private(self.path, msgspec.json.encode(self.all()))
        except OSError as error:
            if not self._stale:
                logs.get().error("data folder cannot be written", file=str(self.path), cause=error.strerror)
            self._stale = True
        else:
            self._stale = False


def write_admin(home: Home, url: str) -> AdminAddress:
    """A new token for the admin port at `url`, written for this user's commands. Raises OperatorError."""
    address = AdminAddress(url=url, token=secrets.token_urlsafe(32), pid=os.getpid())
    _write(home.run / "admin.json", msgspec.json.encode(address))
    return address


def read_admin(home: Home) -> AdminAddress | None:
    """Where the control of this data folder answers; None if none was started, or the last one ended in order.

    Raises OperatorError.
    """
    path = home.run / "admin.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdminAddress)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    except OSError as error:
        hint = "does the data folder belong to another user? TIDEGATE_HOME names yours"
        raise OperatorError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def service_key(home: Home) -> str:
    """The key of our own services, made when there is none: a chat page that is adopted keeps the one it has.

    Raises OperatorError.
    """
    from tidegate.store.keys import PREFIX, new_secret  # SQLAlchemy is slow to import, and `status` needs none of it

    path = home.run / "service.key"
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        key = ""
    if not key.startswith(PREFIX):
        key = new_secret()
        _write(path, key.encode())
    return key


def gateway_token(home: Home) -> str:
    """The token of gateways on other hosts, in `gateway.token`; made when there is none, and the same at every start.

    Raises OperatorError.
    """
    path = home.path / GATEWAY_TOKEN_FILE
    try:
        token = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        token = ""
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}", hint=WRITABLE) from None
    if len(token) < LEAST_TOKEN_CHARS:
        token = secrets.token_urlsafe(32)
        _write(path, f"{token}\n".encode())
    return token


def write_sign_in(home: Home, digests: Sequence[str]) -> None:
    """The keys that may sign in to the chat page. Raises OperatorError."""
    _write(home.run / SIGN_IN_FILE, msgspec.json.encode(digests))


def _write(path: Path, data: bytes) -> None:
    try:
        write_private(path, data)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written: {error.strerror}", hint=WRITABLE) from None


def clear(home: Home) -> None:
    """Remove the files of a run that ended in order, those of its engines too; the lock stays.

    What cannot be removed stays, too, and does no harm: nothing in it lives.
    """
    shutil.rmtree(home.run / METRICS_FOLDER, ignore_errors=True)
    with contextlib.suppress(OSError):
        for path in home.run.iterdir():
            if path.name != LOCK_FILE and not path.is_dir():
                path.unlink(missing_ok=True)
