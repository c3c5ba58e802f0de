"""The models of this machine: `models/NAME/VARIANT/` with its files and `manifest.json`, which is written last.

A folder without a manifest is no model, so that whatever was cut, broken or is still growing is never served.
GGUF files put into `models/` by hand are models too; their checksums are kept in `models/.checksums.json`.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidegate.errors import ModelError
from tidegate.gguf import GgufHeader, read_header
from tidegate.home import write_private
from tidegate.models.download import sha256_of
from tidegate.models.progress import Progress, Silent

MANIFEST = "manifest.json"
SAFETENSORS = "safetensors"
"""The variant of the original weights; every other variant is a quantisation, in one GGUF file."""
LOCKS, STAGING, OLD = ".locks", ".pull-", ".old-"
CHECKSUMS = ".checksums.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file as it was when its checksum was right."""

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


class Source(msgspec.Struct, frozen=True):
    """Where a model came from."""

    kind: str
    """`huggingface`, `modelscope`, `wheel`, `converted` or `file`."""
    where: str
    """Repository, requirement or path."""
    revision: str = ""
    digest: str = ""
    """For `converted`: the digest of the weights it was made from."""


class Manifest(msgspec.Struct, frozen=True):
    """What `manifest.json` says."""

    name: str
    variant: str
    main: str
    """The GGUF file's name; empty for a safetensors folder, which is used as a whole."""
    files: tuple[FileRecord, ...]
    digest: str
    """SHA-256 over weights, quantisation and template: the version."""
    source: Source
    licence: str = ""
    created_s: float = 0.0


@dataclass(frozen=True)
class Stored:
    """A model of the data folder."""

    folder: Path
    manifest: Manifest

    @property
    def path(self) -> Path:
        """What an engine is given: the GGUF file, or the folder."""
        return self.folder / self.manifest.main if self.manifest.main else self.folder

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.manifest.files)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def variant(self) -> str:
        return self.manifest.variant


def stored(models: Path) -> list[Stored]:
    """Every model that was finished, by name and variant."""
    found = []
    for path in sorted(models.glob(f"[!.]*/*/{MANIFEST}")):
        try:
            found.append(Stored(path.parent, msgspec.json.decode(path.read_bytes(), type=Manifest)))
        except (OSError, msgspec.DecodeError):
            continue  # unreadable is unfinished; prune takes it away
    return found


def by_hand(models: Path) -> list[Path]:
    """GGUF files that somebody put into `models/` itself."""
    return sorted(path for path in models.glob("[!.]*.gguf") if path.is_file())


def folder_of(models: Path, name: str, variant: str) -> Path:
    return models / name / variant


def record(folder: Path, path: str, sha256: str) -> FileRecord:
    found = (folder / path).stat()
    return FileRecord(path, found.st_size, found.st_mtime_ns, sha256)


def digest_of_gguf(sha256: str, header: GgufHeader) -> str:
    """The version of a GGUF model: equal digests may continue each other's answers."""
    text = f"{sha256}\n{header.quantisation}\n{hashlib.sha256(header.chat_template.encode()).hexdigest()}"
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_folder(files: Sequence[FileRecord]) -> str:
    """The version of a safetensors folder: weights, configuration and template, whatever their order."""
    text = "\n".join(sorted(f"{file.sha256}  {file.path}" for file in files))
    return hashlib.sha256(text.encode()).hexdigest()


def staging_of(models: Path, name: str, variant: str) -> Path:
    """Where a model grows until it is whole. It stays there when a download is cut, and is gone on from."""
    return models / f"{STAGING}{name}@{variant}"


def install(models: Path, staging: Path, manifest: Manifest) -> Stored:
    """Declare the model in `staging` whole and put it in its place, in that of an older one if there is one."""
    folder, old = (
        folder_of(models, manifest.name, manifest.variant),
        models / f"{OLD}{manifest.name}@{manifest.variant}",
    )
    write_private(staging / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    # An engine that still has the older files open goes on with them.
    shutil.rmtree(old, ignore_errors=True)
    return Stored(folder, manifest)


def find(models: Path, name: str, variant: str) -> Stored | None:
    """The finished model of that name and variant."""
    return next((model for model in stored(models) if (model.name, model.variant) == (name, variant)), None)


def new_manifest(
    name: str, variant: str, main: str, files: Sequence[FileRecord], *, digest: str, source: Source, licence: str
) -> Manifest:
    return Manifest(name, variant, main, tuple(files), digest, source, licence, time.time())


def install_gguf(
    models: Path, staging: Path, main: str, sha256: str, *, name: str, variant: str, source: Source, licence: str
) -> Stored:
    """Declare the GGUF file `main` in `staging`, of this checksum, whole, and put it in its place. Raises ModelError."""
    digest = digest_of_gguf(sha256, read_header(staging / main))
    files = [record(staging, main, sha256)]
    manifest = new_manifest(name, variant, main, files, digest=digest, source=source, licence=licence)
    return install(models, staging, manifest)


def check(model: Stored) -> GgufHeader | None:
    """Whether a model is still what it was: sizes, times, and the GGUF header; milliseconds, at every start.

    Files whose time changed are read through once. Returns the header of a GGUF. Raises ModelError.
    """
    for file in model.manifest.files:
        path = model.folder / file.path
        try:
            found = path.stat()
        except FileNotFoundError:
            raise _not_whole(model, f"{file.path} is missing") from None
        if found.st_size != file.size_bytes:
            raise _not_whole(model, f"{file.path} has {found.st_size:,} bytes instead of {file.size_bytes:,}")
        if found.st_mtime_ns != file.mtime_ns and sha256_of(path) != file.sha256:
            raise _not_whole(model, f"the checksum of {file.path} is wrong")
    return read_header(model.path) if model.manifest.main else None


def verify(model: Stored, progress: Progress) -> None:
    """Read every byte of a model and compare. Raises ModelError that names the file."""
    done = 0
    with progress.step(f"verifying {model.name} {model.variant}", model.size_bytes) as step:
        for file in model.manifest.files:
            path = model.folder / file.path
            if not path.is_file():
                raise _not_whole(model, f"{file.path} is missing")
            if sha256_of(path) != file.sha256:
                raise _not_whole(model, f"the checksum of {file.path} is wrong")
            done += file.size_bytes
            step(done)
    if model.manifest.main:
        read_header(model.path)


def _not_whole(model: Stored, what: str) -> ModelError:
    return ModelError(
        f"the model {model.name} ({model.variant}) in {model.folder} is not whole: {what}",
        hint=f"get it anew with `tidegate models pull {model.name}`, or take it away with `tidegate models remove {model.name}`",
    )


def checksum(models: Path, path: Path) -> str:
    """SHA-256 of a file outside the manifests, worked out once and kept while size and time stay the same."""
    cache, key, found = models / CHECKSUMS, str(path.resolve()), path.stat()
    with locked(models, CHECKSUMS, Silent()):
        try:
            known = msgspec.json.decode(cache.read_bytes(), type=dict[str, FileRecord])
        except (FileNotFoundError, msgspec.DecodeError):
            known = {}
        kept = known.get(key)
        if kept and (kept.size_bytes, kept.mtime_ns) == (found.st_size, found.st_mtime_ns):
            return kept.sha256
        sha256 = sha256_of(path)
        known = {name: entry for name, entry in known.items() if Path(name).exists()}
        known[key] = FileRecord(key, found.st_size, found.st_mtime_ns, sha256)
        write_private(cache, msgspec.json.encode(known))
        return sha256


def _lock_file(models: Path, name: str) -> int:
    folder = models / LOCKS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextmanager
def locked(models: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the right to write the model `name`; a second process waits until the first is done."""
    descriptor = _lock_file(models, name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another process is getting {name}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def try_locked(models: Path, name: str) -> Iterator[bool]:
    """As `locked`, without waiting: whether the right was free."""
    descriptor = _lock_file(models, name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def remove(models: Path, model: Stored) -> int:
    """Take a model away; bytes freed. It is out of its place in one step, whatever interrupts the rest."""
    freed = model.size_bytes
    old = models / f"{OLD}{model.name}@{model.variant}"
    shutil.rmtree(old, ignore_errors=True)
    model.folder.rename(old)
    shutil.rmtree(old)
    if not any(model.folder.parent.iterdir()):
        model.folder.parent.rmdir()
    return freed
