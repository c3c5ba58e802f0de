"""Weights on a slow disk are copied once to a fast one, and loaded from there.

A copy grows in a folder of its own, is read back and compared with the checksums of its source, and gets its name in one
step; `staged.json` in it says what it is a copy of. One that is not whole, or whose source has changed, is never used.
`.staged.json` beside the models says where copies are.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import ModelError
from tidegate.home import write_private
from tidegate.models import library
from tidegate.models.download import CHUNK_BYTES, SPARE_BYTES, sha256_of
from tidegate.models.progress import Progress, Silent, Step

RECORD: Final = "staged.json"
PLACES: Final = ".staged.json"
GROWING: Final = ".staging-"
OLD: Final = ".old-"
SETTLE: Final = "the copy is made anew by `tidegate models stage`"
NOT_WEIGHTS: Final = frozenset({library.MANIFEST, RECORD})


class Copied(msgspec.Struct, frozen=True):
    """One file of a copy, and its source, as they were when they were equal."""

    name: str
    size_bytes: int
    source_mtime_ns: int
    mtime_ns: int
    sha256: str


class Record(msgspec.Struct, frozen=True):
    """What `staged.json` says."""

    source: str
    """The GGUF file, or the folder."""
    files: tuple[Copied, ...]


class Begun(msgspec.Struct, frozen=True):
    """Which source a growing file is a copy of; another one is begun anew."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Staged:
    """A copy that is whole."""

    path: Path
    """What an engine is given: the GGUF file, or the folder."""
    size_bytes: int
    copied_bytes: int = 0
    """What had to be read from the slow disk now; 0 where the copy was there already."""
    read_s: float = 0.0
    """How long that took."""
    check_s: float = 0.0
    """How long reading the whole copy back took."""


def stage(
    models: Path, source: Path, to: Path, progress: Progress, *, free: Callable[[Path], int] | None = None
) -> Staged:
    """A whole copy of `source`, a GGUF file or a folder, below `to`; what is there already is not copied again.

    Raises ModelError where there is no space, the source is damaged or changes meanwhile, or `to` cannot be written.
    """
    source, to = source.resolve(), to.expanduser().absolute()
    place = to / _name_of(source)
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        with library.locked(to, place.name, progress):
            found = staged_at(place, source)
            if found is None:
                found = _copy(models, source, place, progress, free or _free)
        _remember(models, source, place)
    except OSError as error:
        raise ModelError(
            f"{source.name} cannot be copied to {to}: {error.strerror or error}", hint="another folder with --to DIR"
        ) from None
    return found


def staged(models: Path, source: Path) -> Staged | None:
    """The copy that was made of a model; None where there is none. Raises ModelError for one that may not be used."""
    source = source.resolve()
    place = _places(models).get(str(source))
    return staged_at(Path(place), source, strict=True) if place is not None else None


def staged_at(place: Path, source: Path, *, strict: bool = False) -> Staged | None:
    """The copy at `place`, if it is whole and its source is what it was; `strict` has ModelError say why it is not."""

    def refuse(why: str) -> Staged | None:
        if strict:
            raise ModelError(f"the copy of {source.name} in {place} is not used: {why}", hint=SETTLE)
        return None

    try:
        record = msgspec.json.decode((place / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return refuse("it is gone, or not whole")
    if record.source != str(source) or {path.name for path in _files(source)} != {one.name for one in record.files}:
        return refuse("its source has other files now")
    for one in record.files:
        now = (source if source.is_file() else source / one.name).stat()
        if (now.st_size, now.st_mtime_ns) != (one.size_bytes, one.source_mtime_ns):
            return refuse(f"{one.name} has changed since")
        try:
            copy = (place / one.name).stat()
        except OSError:
            return refuse(f"{one.name} is missing in it")
        if (copy.st_size, copy.st_mtime_ns) != (one.size_bytes, one.mtime_ns):
            return refuse(f"{one.name} in it is not as it was written")
    path = place / source.name if source.is_file() else place
    return Staged(path, sum(one.size_bytes for one in record.files))


def remove(models: Path, source: Path) -> int:
    """Take the copy of a model away; bytes freed. Engines that have it open go on with it."""
    source = source.resolve()
    place = _places(models).get(str(source))
    if place is None:
        return 0
    freed = _drop(Path(place))
    _forget(models, str(source))
    return freed


def prune(models: Path) -> list[tuple[Path, int]]:
    """Take away the copies of models that are gone: each with the bytes it had."""
    gone = [(source, Path(place)) for source, place in _places(models).items() if not Path(source).exists()]
    pruned = []
    for source, place in gone:
        pruned.append((place, _drop(place)))
        _forget(models, source)
    return pruned


def _copy(models: Path, source: Path, place: Path, progress: Progress, free: Callable[[Path], int]) -> Staged:
    growing = place.with_name(GROWING + place.name)
    growing.mkdir(mode=0o700, exist_ok=True)
    files = _files(source)
    wanted = {file.name for file in files}
    for stray in [path for path in growing.iterdir() if path.name not in wanted and path.name[0] != "."]:
        stray.unlink()
    total = sum(file.stat().st_size for file in files)
    here = sum(path.stat().st_size for path in growing.glob("[!.]*"))
    if free(place.parent) < total - here + SPARE_BYTES:
        _drop(place)  # of an older source, or broken: of no more use
    if (room := free(place.parent)) < total - here + SPARE_BYTES:
        raise ModelError(
            f"{source.name} needs {(total - here) / 1024**2:,.0f} MiB in {place.parent}, and {room / 1024**2:,.0f} MiB are free",
            hint="free some space there, or choose another folder with --to DIR",
        )
    sums = _checksums(models, source)
    copied, bytes_read, read_s, done = [], 0, 0.0, 0
    with progress.step(f"copying {source.name} to {place.parent}", total) as step:
        for file in files:
            before, begun_s = file.stat(), time.monotonic()
            bytes_read += _copy_file(file, growing / file.name, sums(file), _from(done, step))
            read_s += time.monotonic() - begun_s
            after = file.stat()
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ModelError(f"{file} has changed while it was copied", hint="try again once nobody writes to it")
            done += after.st_size
            mtime_ns = (growing / file.name).stat().st_mtime_ns
            copied.append(Copied(file.name, after.st_size, after.st_mtime_ns, mtime_ns, sums(file)))
    begun_s = time.monotonic()
    for one in copied:
        if _sum_from_disk(growing / one.name) != one.sha256:
            (growing / one.name).unlink()
            raise ModelError(f"the copy of {one.name} in {growing} is not what was written", hint="look at that disk")
    check_s = time.monotonic() - begun_s
    _install(growing, place, Record(str(source), tuple(copied)))
    path = place / source.name if source.is_file() else place
    return Staged(path, total, bytes_read, read_s, check_s)


def _from(done_bytes: int, step: Step) -> Step:
    return lambda now_bytes: step(done_bytes + now_bytes)


def _copy_file(source: Path, target: Path, sha256: str, step: Step) -> int:
    """Go on with a copy, or begin it; bytes read of the source. Raises ModelError for a source that is damaged."""
    found, state = source.stat(), target.with_name(f".{target.name}.begun")
    begun = Begun(found.st_size, found.st_mtime_ns)
    if not (target.exists() and _begun(state) == begun and target.stat().st_size <= found.st_size):
        target.unlink(missing_ok=True)
        write_private(state, msgspec.json.encode(begun))
    resumed = target.exists() and target.stat().st_size > 0
    digest, bytes_read = hashlib.sha256(), 0
    with source.open("rb") as reading, target.open("ab+") as writing:
        writing.seek(0)
        while chunk := writing.read(CHUNK_BYTES):
            digest.update(chunk)
        reading.seek(writing.tell())
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            bytes_read += len(chunk)
            step(writing.tell())
        writing.flush()
        os.fsync(writing.fileno())
    if digest.hexdigest() == sha256:
        return bytes_read
    target.unlink()
    if resumed:  # what was there of it may be what is wrong
        return bytes_read + _copy_file(source, target, sha256, step)
    raise ModelError(
        f"{source} is damaged: it is not what its checksum says",
        hint="`tidegate models verify` reads it whole; get it anew with `tidegate models pull`",
    )


def _install(growing: Path, place: Path, record: Record) -> None:
    for state in growing.glob(".*.begun"):
        state.unlink()
    write_private(growing / RECORD, msgspec.json.encode(record))
    _sync(growing / RECORD)
    _sync(growing)
    _drop(place)
    growing.rename(place)
    _sync(place.parent)


def _drop(place: Path) -> int:
    """Take a folder away, out of its place in one step; bytes freed."""
    if not place.exists():
        return 0
    freed = sum(path.stat().st_size for path in place.iterdir() if path.is_file())
    old = place.with_name(OLD + place.name)
    shutil.rmtree(old, ignore_errors=True)
    place.rename(old)
    shutil.rmtree(old, ignore_errors=True)
    return freed


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sum_from_disk(path: Path) -> str:
    """SHA-256 of a file as the disk has it: what memory keeps of it is let go of first."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sha256_of(path)


def _files(source: Path) -> Sequence[Path]:
    """What is copied. Raises ModelError where nothing is there."""
    if source.is_file():
        return (source,)
    found = sorted(path for path in source.glob("[!.]*") if path.is_file() and path.name not in NOT_WEIGHTS)
    if not found:
        raise ModelError(f"there is no model at {source}", hint="see `tidegate models list`")
    return found


def _checksums(models: Path, source: Path) -> Callable[[Path], str]:
    """Of files of a model: those that were written down when it was got, else worked out once."""
    folder = source if source.is_dir() else source.parent
    known: dict[str, str] = {}
    for model in library.stored(models):
        if model.folder.resolve() == folder:
            known = {file.path: file.sha256 for file in model.manifest.files}
    return lambda path: known.get(path.name) or library.checksum(models, path)


def _name_of(source: Path) -> str:
    """A folder's name that tells a reader whose copy it is, and is no other model's."""
    words = "-".join(source.parts[-3:] if source.is_file() else source.parts[-2:]).strip("/-")
    letters = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in words)
    return f"{letters[:100].lstrip('.')}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"


def _begun(state: Path) -> Begun | None:
    try:
        return msgspec.json.decode(state.read_bytes(), type=Begun)
    except (OSError, msgspec.DecodeError):
        return None


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _places(models: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode((models / PLACES).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


def _remember(models: Path, source: Path, place: Path) -> None:
    with library.locked(models, PLACES, Silent()):
        places = _places(models)
        if places.get(str(source)) != str(place):
            write_private(models / PLACES, msgspec.json.encode({**places, str(source): str(place)}))


def _forget(models: Path, source: str) -> None:
    with library.locked(models, PLACES, Silent()):
        places = _places(models)
        places.pop(source, None)
        write_private(models / PLACES, msgspec.json.encode(places))
