"""An engine's wheels, for a machine without a network: fetched by pip here, installed from a bundle there."""

import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidegate import bundle
from tidegate.bundle import BundledEngine, Contents, Source
from tidegate.engines.install import Pip, Wish, arguments, check_python, lock_folder, make_venv
from tidegate.engines.vllm_releases import BUNDLE_BYTES, GIB, Kind, Release
from tidegate.errors import OperatorError

PREFIX: Final = "wheels/"
ENGINE: Final = "vllm"
UNPACKED: Final = ".wheels-"
"""Folders with wheels while they are installed: this, the process, and what makes them unique."""


@contextmanager
def fetched(beside: Path, wish: Wish, *, log: Path, say: Callable[[str], None]) -> Iterator[list[Source]]:
    """Every wheel that the release needs on a machine like this one, in a folder beside the bundle while it is packed.

    Raises OperatorError.
    """
    check_python(wish)
    needed = BUNDLE_BYTES[wish.release.kind]
    free = shutil.disk_usage(beside).free
    if free < needed:
        raise OperatorError(
            f"there is no room for the wheels of {wish.release.requirement} in {beside}: up to {needed / GIB:.0f} GiB are "
            f"needed, and {free / GIB:.1f} GiB are free",
            hint="name a file on a larger disk with --out",
        )
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=beside) as scratch, lock_folder(Path(scratch)) as lock:
        venv, wheels, temporary = Path(scratch, "venv"), Path(scratch, "wheels"), Path(scratch, "tmp")
        temporary.mkdir()
        wheels.mkdir()
        make_venv(wish.python, venv, lock)
        say(f"fetching {wish.release.requirement} and what it needs; what pip says is in {log}")
        pip = Pip(venv / "bin" / "python", temporary, log, lock, say)
        argv = ("--only-binary", ":all:", "--dest", str(wheels), *arguments(wish), *wish.pip_args)
        pip.run("download", *argv, wish.release.requirement)
        yield [Source(file, f"{PREFIX}{file.name}") for file in sorted(wheels.iterdir())]


def describe(release: Release) -> BundledEngine:
    """What a bundle says of wheels that were fetched here."""
    version = ".".join(platform.python_version_tuple()[:2])
    return BundledEngine(ENGINE, release.version, release.kind, version, sysconfig.get_platform())


@contextmanager
def unpacked(
    file: Path, contents: Contents, engines: Path, say: Callable[[str], None]
) -> Iterator[tuple[Release, Path]]:
    """The release in a bundle, and a folder with its wheels. Raises OperatorError."""
    held = contents.engine
    if held is None or held.engine != ENGINE:
        raise OperatorError(
            f"there is no engine in {file}", hint="`tidegate bundle` packs one unless --no-engine is given"
        )
    release = Release(held.version, _kind(held.kind))
    if held.platform != sysconfig.get_platform():
        raise OperatorError(f"{file} is for {held.platform}, and this is {sysconfig.get_platform()}")
    if held.python != ".".join(map(str, sys.version_info[:2])):
        say(f"the wheels are for Python {held.python}; name one with --python if this does not do")
    engines.mkdir(mode=0o700, parents=True, exist_ok=True)
    _clear(engines)
    size = sum(one.size_bytes for one in contents.below(PREFIX))
    free = shutil.disk_usage(engines).free
    if free < size:
        raise OperatorError(
            f"there is no room for the wheels in {engines}: {size / GIB:.1f} GiB, {free / GIB:.1f} are free"
        )
    with tempfile.TemporaryDirectory(prefix=f"{UNPACKED}{os.getpid()}-", dir=engines) as folder:
        say(f"unpacking {len(contents.below(PREFIX))} wheels, {size / GIB:.1f} GiB")
        bundle.extract(file, contents, PREFIX, Path(folder), lambda _: None)
        yield release, Path(folder)


def _clear(engines: Path) -> None:
    """Take away what others had unpacked when they were killed."""
    for left in engines.glob(f"{UNPACKED}*"):
        owner = left.name.removeprefix(UNPACKED).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def _kind(text: str) -> Kind:
    if text == "cpu":
        return "cpu"
    if text == "cuda":
        return "cuda"
    raise OperatorError(f"the bundle's engine is for {text!r}, which is neither cpu nor cuda")
