"""Engines' own virtual environments: found, listed, taken away.

`engines/vllm-0.32.0/` is one, with `environment.json`, which is written last: a folder without it is half an installation,
and is never used.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tidegate.engines.vllm_releases import Kind, Release, order
from tidegate.errors import OperatorError
from tidegate.home import write_private

MARK: Final = "environment.json"
TRASH: Final = ".removing-"


class Made(msgspec.Struct, frozen=True):
    """What `environment.json` says."""

    engine: str
    version: str
    kind: Kind
    """Built for `cpu` or `cuda`."""
    requirement: str
    python: str
    """Version of its Python."""
    torch: str
    size_bytes: int
    created_s: float


@dataclass(frozen=True)
class Environment:
    """A whole environment."""

    folder: Path
    made: Made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def installed(engines: Path) -> list[Environment]:
    """Every whole environment, the newest version first."""
    found = []
    for mark in engines.glob(f"[!.]*/{MARK}"):
        try:
            found.append(Environment(mark.parent, msgspec.json.decode(mark.read_bytes(), type=Made)))
        except (OSError, msgspec.DecodeError):
            continue  # unreadable is unfinished
    return sorted(found, key=lambda one: order(one.made.version), reverse=True)


def unfinished(engines: Path) -> list[Path]:
    """Folders of installations that were broken off, or are under way."""
    whole = {one.folder for one in installed(engines)}
    return sorted(path for path in engines.glob("[!.]*") if path.is_dir() and path not in whole)


def find(engines: Path, version: str = "") -> Environment | None:
    """The environment of that version, the newest where none is given."""
    return next((one for one in installed(engines) if version in {"", one.made.version}), None)


def mark_whole(folder: Path, release: Release, *, python: str, torch: str) -> Environment:
    """Declare an environment whole."""
    made = Made("vllm", release.version, release.kind, release.requirement, python, torch, size_of(folder), time.time())
    write_private(folder / MARK, msgspec.json.format(msgspec.json.encode(made), indent=2))
    return Environment(folder, made)


def remove(folder: Path) -> int:
    """Take an environment away; bytes freed. It is out of its place in one step, whatever interrupts the rest."""
    freed = size_of(folder)
    gone = folder.with_name(f"{TRASH}{folder.name}-{os.getpid()}")
    try:
        folder.rename(gone)
        for left in folder.parent.glob(f"{TRASH}*"):
            shutil.rmtree(left, ignore_errors=left != gone)
    except OSError as error:
        raise OperatorError(f"{folder} cannot be taken away: {error.strerror}") from None
    return freed


def size_of(folder: Path) -> int:
    """Bytes of all files below, as they lie on the disk; links are not followed, files of several names count once."""
    total, seen = 0, set[tuple[int, int]]()
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - 40,000 files, and Path takes twice as long
            except FileNotFoundError:
                continue
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                total += stat.st_blocks * 512
    return total
