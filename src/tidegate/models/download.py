"""One file from a URL to its place: resumed, checked, and moved there whole or not at all.

While it grows it is `NAME.part`, beside `NAME.part.json` that says what it is a part of. Only a file whose size and
checksum are right gets its name.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import httpx
import msgspec
import stamina

from tidegate.errors import DownloadError
from tidegate.models.progress import Progress, Step

PART, PART_STATE = ".part", ".part.json"
CHUNK_BYTES = 1024 * 1024
STALL_S = 20.0
"""A server that sends nothing for so long is asked again."""
ATTEMPTS = 4
"""In a row without a single new byte."""
SPARE_BYTES = 64 * 1024 * 1024
"""Stay free on the disk after everything is written."""
TRANSIENT_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True)
class Wanted:
    """What a download must turn out to be."""

    url: str
    target: Path
    size_bytes: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + PART)

    @property
    def state(self) -> Path:
        return self.target.with_name(self.target.name + PART_STATE)


class PartState(msgspec.Struct, frozen=True):
    """What a `.part` is a part of."""

    size_bytes: int
    checksum: str
    etag: str
    """A strong etag of the server that sent it; empty for none."""


class TransientFault(Exception):
    """Worth another try: the connection was cut, or the server is busy."""


def check_free_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise DownloadError, with the numbers, unless `needed_bytes` fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        mib = 1024 * 1024
        raise DownloadError(
            f"there is no room for {what} in {folder}: it needs {needed_bytes / mib:,.0f} MiB and "
            f"{SPARE_BYTES / mib:.0f} MiB to spare, and {free / mib:,.0f} MiB are free",
            hint="free some (`tidegate models prune`), or set TIDEGATE_HOME to a folder on a larger disk",
        )


def part_bytes(wanted: Wanted) -> int:
    """How much of it is here already."""
    try:
        return wanted.part.stat().st_size
    except FileNotFoundError:
        return 0


def fetch(http: httpx.Client, wanted: Wanted, progress: Progress) -> str:
    """Download `wanted` and return its SHA-256. Raises DownloadError; what came so far is kept for the next try."""
    wanted.target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if wanted.target.is_file() and (whole := _checked(wanted, wanted.target)):
        return whole
    resumed = part_bytes(wanted) > 0
    with progress.step(f"downloading {wanted.target.name}", wanted.size_bytes) as step:
        _fetch_all(http, wanted, step)
        checked = _checked(wanted, wanted.part)
        if not checked and resumed:
            # The older part may have been what was wrong: once more, from the first byte.
            _drop(wanted)
            _fetch_all(http, wanted, step)
            checked = _checked(wanted, wanted.part)
    if not checked:
        _drop(wanted)
        raise DownloadError(
            f"{wanted.url} gave other bytes than the hub announced: the checksum of {wanted.target.name} is wrong",
            hint="try again; if it stays so, the hub or a proxy on the way changes files: choose another with TIDEGATE_HUB",
        )
    _sync(wanted.part)
    wanted.part.replace(wanted.target)
    wanted.state.unlink(missing_ok=True)
    return checked


def _fetch_all(http: httpx.Client, wanted: Wanted, step: Step) -> None:
    """Bring `.part` to its full length, as long as each round of attempts brings something new."""
    while True:
        before = part_bytes(wanted)
        try:
            for attempt in stamina.retry_context(
                on=TransientFault, attempts=ATTEMPTS, timeout=None, wait_initial=0.2, wait_jitter=0.2, wait_max=5
            ):
                with attempt:
                    _fetch_once(http, wanted, step)
        except TransientFault as fault:
            if part_bytes(wanted) > before:
                continue
            raise DownloadError(
                f"{wanted.url} could not be downloaded: {fault}",
                hint="what came so far is kept; give the same command again and it goes on from there",
            ) from None
        return


def _fetch_once(http: httpx.Client, wanted: Wanted, step: Step) -> None:
    start, etag = _resume_point(wanted)
    if start == wanted.size_bytes:
        return
    headers = {"accept-encoding": "identity"}
    if start:
        headers["range"] = f"bytes={start}-"
        if etag:
            headers["if-range"] = etag
    timeout = httpx.Timeout(STALL_S, connect=5.0)
    try:
        with http.stream("GET", wanted.url, headers=headers, timeout=timeout) as answer:
            start = _accept(answer, wanted, start)
            _write(answer, wanted, start, step)
    except httpx.TransportError as error:
        raise TransientFault(str(error) or type(error).__name__) from None
    except httpx.HTTPError as error:
        raise DownloadError(f"{wanted.url} could not be downloaded: {error}") from None
    if part_bytes(wanted) < wanted.size_bytes:
        raise TransientFault(f"it ended after {part_bytes(wanted):,} of {wanted.size_bytes:,} bytes")


def _resume_point(wanted: Wanted) -> tuple[int, str]:
    """Where to go on, and the etag that must still hold; (0, "") where what is here is a part of something else."""
    try:
        state = msgspec.json.decode(wanted.state.read_bytes(), type=PartState)
    except (FileNotFoundError, msgspec.DecodeError):
        return 0, ""
    here = part_bytes(wanted)
    known = wanted.sha256 or wanted.git_sha1
    same = state.size_bytes == wanted.size_bytes and state.checksum == known and (known or state.etag)
    return (here, state.etag) if same and here <= wanted.size_bytes else (0, "")


def _accept(answer: httpx.Response, wanted: Wanted, start: int) -> int:
    """The offset that the body of `answer` begins at. Raises TransientFault or DownloadError for anything else."""
    status = answer.status_code
    if status == HTTPStatus.PARTIAL_CONTENT:
        if answer.headers.get("content-range", "") != f"bytes {start}-{wanted.size_bytes - 1}/{wanted.size_bytes}":
            _drop(wanted)
            raise TransientFault("the server sent another range than was asked for")
        return start
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        _drop(wanted)
        raise TransientFault("the server does not have the rest of it")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in TRANSIENT_STATUS:
        raise TransientFault(f"HTTP {status}")
    if status != HTTPStatus.OK:
        raise DownloadError(f"{wanted.url} could not be downloaded: HTTP {status}")
    length = answer.headers.get("content-length", "")
    if length.isdigit() and int(length) != wanted.size_bytes and "content-encoding" not in answer.headers:
        raise DownloadError(
            f"{wanted.url} has {int(length):,} bytes, and the hub announced {wanted.size_bytes:,}",
            hint="a proxy may be answering in its place; choose another hub with TIDEGATE_HUB",
        )
    return 0


def _write(answer: httpx.Response, wanted: Wanted, start: int, step: Step) -> None:
    etag = answer.headers.get("etag", "")
    state = PartState(wanted.size_bytes, wanted.sha256 or wanted.git_sha1, "" if etag.startswith("W/") else etag)
    wanted.state.write_bytes(msgspec.json.encode(state))
    with wanted.part.open("r+b" if start else "wb") as file:
        file.seek(start)
        done = start
        for chunk in answer.iter_bytes():
            done += len(chunk)
            if done > wanted.size_bytes:
                raise DownloadError(
                    f"{wanted.url} sends more than the {wanted.size_bytes:,} bytes that the hub announced"
                )
            file.write(chunk)
            step(done)


def _checked(wanted: Wanted, path: Path) -> str:
    """The SHA-256 of `path` if it is what was wanted, else an empty string."""
    if path.stat().st_size != wanted.size_bytes:
        return ""
    sha256 = sha256_of(path)
    if wanted.sha256:
        return sha256 if sha256 == wanted.sha256 else ""
    if wanted.git_sha1:
        return sha256 if _git_sha1_of(path) == wanted.git_sha1 else ""
    return sha256


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_sha1_of(path: Path) -> str:
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _drop(wanted: Wanted) -> None:
    wanted.part.unlink(missing_ok=True)
    wanted.state.unlink(missing_ok=True)
