"""Bundles: one tar file that carries an engine's wheels and models to a machine without a network.

`bundle.json` comes first and says what is in it, with the checksum of every file. A file that it does not name is never
written anywhere, and one that differs from what it says is an error.
"""

import hashlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

import msgspec

from tidegate import __version__
from tidegate.errors import OperatorError

CONTENTS: Final = "bundle.json"
FORMAT: Final = 1
CHUNK_BYTES: Final = 1024 * 1024
MAX_CONTENTS_BYTES: Final = 16 * CHUNK_BYTES

Tell = Callable[[int], None]
"""Called with the bytes done so far."""


class BundledFile(msgspec.Struct, frozen=True):
    """One file: its name in the bundle, relative and without `..`."""

    path: str
    size_bytes: int
    sha256: str


class BundledEngine(msgspec.Struct, frozen=True):
    """Wheels of an engine, below `wheels/`."""

    engine: str
    version: str
    kind: str
    python: str
    """The Python that the wheels are for, as in 3.11."""
    platform: str
    """As `sysconfig.get_platform()` says it."""


class Contents(msgspec.Struct, frozen=True):
    """`bundle.json`."""

    format: int
    tidegate: str
    created_s: float
    files: tuple[BundledFile, ...]
    engine: BundledEngine | None = None
    models: tuple[msgspec.Raw, ...] = ()
    """Manifests of models, whose files are below `models/NAME/VARIANT/`."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def below(self, prefix: str) -> tuple[BundledFile, ...]:
        return tuple(file for file in self.files if file.path.startswith(prefix))


@dataclass(frozen=True)
class Source:
    """A file to pack, and its name in the bundle."""

    file: Path
    name: str


def write(
    target: Path, sources: Sequence[Source], *, engine: BundledEngine | None, models: Iterable[bytes], tell: Tell
) -> Contents:
    """Write a bundle, whole or not at all. `models` are manifests. Raises OperatorError."""
    part = target.with_name(f".{target.name}.part")
    try:
        files = tuple(BundledFile(one.name, one.file.stat().st_size, _digest(one.file)) for one in sources)
        contents = Contents(FORMAT, __version__, time.time(), files, engine, tuple(map(msgspec.Raw, models)))
        head = msgspec.json.format(msgspec.json.encode(contents), indent=1)
        done = 0
        with tarfile.open(part, "w") as archive:  # wheels and weights do not get smaller
            archive.addfile(_entry(CONTENTS, len(head)), io.BytesIO(head))
            for one, file in zip(sources, files, strict=True):
                with one.file.open("rb") as opened:
                    archive.addfile(_entry(file.path, file.size_bytes), opened)
                done += file.size_bytes
                tell(done)
        part.replace(target)
    except OSError as error:
        raise OperatorError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return contents


def read(bundle: Path) -> Contents:
    """What a bundle says is in it. Raises OperatorError for a file that is none."""
    try:
        with tarfile.open(bundle, "r:") as archive:
            first = archive.next()
            if first is None or first.name != CONTENTS or not first.isfile() or first.size > MAX_CONTENTS_BYTES:
                raise _no_bundle(bundle, "it does not begin with its contents")
            contents = msgspec.json.decode(_opened(archive, first).read(), type=Contents)
    except FileNotFoundError:
        raise OperatorError(f"{bundle} does not exist", hint="`tidegate bundle --out FILE` makes one") from None
    except OSError as error:
        raise OperatorError(f"{bundle} cannot be read: {error.strerror or error}") from None
    except (tarfile.TarError, msgspec.DecodeError):
        raise _no_bundle(bundle, "it is no tar file of ours") from None
    if contents.format != FORMAT:
        raise OperatorError(
            f"{bundle} has the format {contents.format}, and this Tidegate reads {FORMAT}",
            hint=f"it was made by Tidegate {contents.tidegate}: use one of that version",
        )
    for file in contents.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise _no_bundle(bundle, f"it names the file {file.path!r}")
    return contents


def extract(bundle: Path, contents: Contents, prefix: str, folder: Path, tell: Tell) -> list[Path]:
    """Write the files below `prefix` into `folder`, without the prefix, each compared with its checksum.

    Raises OperatorError where one is missing or differs; what is written then is of no use.
    """
    wanted = {file.path: file for file in contents.below(prefix)}
    written, done = [], 0
    try:
        with tarfile.open(bundle, "r:") as archive:
            for entry in archive:
                file = wanted.pop(entry.name, None)
                if file is None:
                    continue
                target = folder / file.path.removeprefix(prefix)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if not entry.isfile() or _copy(_opened(archive, entry), target) != file.sha256:
                    raise _no_bundle(bundle, f"{file.path} is damaged in it")
                written.append(target)
                done += file.size_bytes
                tell(done)
    except (tarfile.TarError, EOFError):
        raise _no_bundle(bundle, "it ends too early, or is damaged") from None
    except OSError as error:
        raise OperatorError(f"{bundle} cannot be unpacked into {folder}: {error.strerror or error}") from None
    if wanted:
        raise _no_bundle(bundle, f"it lacks {next(iter(wanted))}")
    return written


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, int(time.time())
    return entry


def _opened(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    return cast("IO[bytes]", archive.extractfile(entry))  # a regular file, as was asked before


def _copy(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_bundle(bundle: Path, why: str) -> OperatorError:
    return OperatorError(
        f"{bundle} is no whole bundle: {why}", hint="make it anew with `tidegate bundle`, or copy it again"
    )
