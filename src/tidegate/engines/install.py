"""Puts an engine into a virtual environment of its own, by pip, with pip's own settings.

What pip reads (pip.conf, PIP_* variables, proxies) is left to it, so that mirrors and indexes are those that the user has
set up for everything else. The lock is inherited by pip: whatever becomes of this process, two never write to one folder.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.engines import environments, pip_words
from tidegate.engines.environments import Environment
from tidegate.engines.vllm_releases import DEFAULT, DISK_BYTES, UNWANTED, Kind, Release
from tidegate.errors import OperatorError

GIB: Final = 1024**3
LOCK: Final = ".lock"
PR_SET_PDEATHSIG: Final = 1
LOOK: Final = (
    "import json, platform, torch, vllm;"
    "print(json.dumps([vllm.__version__, torch.__version__, platform.python_version(), torch.cuda.is_available()]))"
)
"""Imports what every start imports, so that an environment that cannot start is never declared whole."""


@dataclass(frozen=True)
class Wish:
    """What to install, and how."""

    release: Release
    pip_args: tuple[str, ...] = ()
    """Handed to `pip install` as they are."""
    python: str = sys.executable
    """Which Python the environment is made with."""
    wheels: Path | None = None
    """A folder to take every wheel from, instead of asking anybody."""
    pinned: bool = True
    """Whether packages have the versions that were tried here."""


def install(engines: Path, wish: Wish, *, log: Path, say: Callable[[str], None]) -> Environment:
    """The environment of that release; the one that is there where there is one. Raises OperatorError.

    `log` gets all that pip says.
    """
    engines.mkdir(mode=0o700, parents=True, exist_ok=True)
    release, folder = wish.release, engines / wish.release.name
    with lock_folder(engines) as lock:
        held = environments.find(engines, release.version)
        if held is not None:
            if held.made.kind != release.kind:
                raise OperatorError(
                    f"vLLM {release.version} is installed for {held.made.kind}, not for {release.kind}",
                    hint=f"`tidegate engines remove vllm --version {release.version}` first",
                )
            say(f"vLLM {release.version} ({held.made.kind}) is installed: {held.folder}")
            return held
        check_python(wish)
        _check_room(engines, folder, DISK_BYTES[release.kind], f"vLLM {release.version} ({release.kind})")
        if folder.exists():
            say(f"{folder} is half an installation; it is made anew")
        make_venv(wish.python, folder, lock)
        scratch = folder / "tmp"
        scratch.mkdir()
        say(f"installing {release.requirement} into {folder}; what pip says is in {log}")
        pip = Pip(folder / "bin" / "python", scratch, log, lock, say)
        pip.run("install", *arguments(wish), release.requirement, *wish.pip_args)
        if UNWANTED[release.kind]:
            pip.run("uninstall", "--yes", *UNWANTED[release.kind])
        python, torch = _look(folder, release, lock)
        shutil.rmtree(scratch, ignore_errors=True)
        made = environments.mark_whole(folder, release, python=python, torch=torch)
    say(f"vLLM {release.version} ({release.kind}, torch {torch}) is installed: {made.made.size_bytes / GIB:.1f} GiB")
    return made


def arguments(wish: Wish) -> Iterator[str]:
    """What pip is told beside the requirement."""
    if wish.pinned and wish.release.pins is not None:
        yield from ("--constraint", str(wish.release.pins))
    if wish.wheels is not None:
        yield from ("--no-index", "--find-links", str(wish.wheels))


def make_venv(python: str, folder: Path, lock: int) -> None:
    """An empty virtual environment with pip, whatever was in its place. Raises OperatorError."""
    ran = _run([python, "-m", "venv", "--clear", str(folder)], _environ(folder), lock)
    if ran.returncode:
        said = (ran.stdout.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        lacks = "ensurepip" in ran.stdout or "No module named venv" in ran.stdout
        raise OperatorError(
            f"{python} cannot make a virtual environment: {said}",
            hint="Debian and Ubuntu keep that in a package of its own: `apt install python3-venv`; or name another --python"
            if lacks
            else "name another Python with --python",
        )


@dataclass(frozen=True)
class Pip:
    """Runs pip of one environment; its temporary files go to `scratch`, on the disk whose room was checked."""

    python: Path
    scratch: Path
    log: Path
    lock: int
    say: Callable[[str], None]

    def run(self, *arguments: str) -> None:
        """Raises OperatorError that names what is missing."""
        command, *rest = arguments
        quiet = ("--progress-bar", "off") if command in {"install", "download"} else ()
        argv = [str(self.python), "-m", "pip", "--no-input", "--disable-pip-version-check", command, *quiet, *rest]
        said: list[str] = []
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        environ = _environ(self.scratch)
        with (
            self.log.open("w" if command != "uninstall" else "a", encoding="utf-8") as log,
            _child(argv, environ, self.lock) as process,
        ):
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            for line in process.stdout:
                log.write(line)
                said.append(line)
                if told := pip_words.progress(line):
                    self.say(told)
        if process.returncode:
            cause, hint = pip_words.why(said)
            raise OperatorError(f"pip could not {command} {rest[-1] if rest else ''}: {cause}", hint=hint)


def _look(folder: Path, release: Release, lock: int) -> tuple[str, str]:
    """Versions of Python and torch of an environment that can start. Raises OperatorError."""
    environ = _environ(folder / "tmp") | preload(folder, release.kind)
    ran = _run([str(folder / "bin" / "python"), "-c", LOOK], environ, lock)
    try:
        version, torch, python, cuda = json.loads(ran.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        said = (ran.stdout.strip().splitlines() or [f"exit status {ran.returncode}"])[-1]
        raise OperatorError(
            f"vLLM {release.version} is installed but cannot be imported: {said}",
            hint="another version may do (--version), or the versions tried here (without --unpinned)",
        ) from None
    if str(version).partition("+")[0] != release.version.partition("+")[0]:
        raise OperatorError(f"pip installed vLLM {version} instead of {release.version}", hint="look at --pip-arg")
    if release.kind == "cuda" and not cuda:
        raise OperatorError(
            f"vLLM {release.version} is installed, but its torch {torch} cannot use the GPU",
            hint="the driver may be too old for this CUDA (`tidegate doctor`); `--cpu` installs for the processor",
        )
    return python, torch


def preload(folder: Path, kind: Kind) -> dict[str, str]:
    """LD_PRELOAD as vLLM's CPU build needs it: Intel's OpenMP, and its own allocator; nothing elsewhere."""
    if kind != "cpu":
        return {}
    site = next((folder / "lib").glob("python3.*/site-packages"), None)
    libraries = [folder / "lib" / "libiomp5.so"]
    if site is not None:
        libraries += sorted((site / "vllm" / "libs").glob("libtcmalloc*.so*"))[:1]
    there = ":".join(str(path) for path in reversed(libraries) if path.is_file())
    return {"LD_PRELOAD": there} if there else {}


def check_python(wish: Wish) -> None:
    """Raises OperatorError unless the release has wheels for the Python that is wished for."""
    ran = subprocess.run(
        [wish.python, "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    ) if shutil.which(wish.python) else None  # fmt: skip
    if ran is None or ran.returncode:
        raise OperatorError(f"there is no Python {wish.python}", hint="name one with --python")
    major, minor = (int(part) for part in ran.stdout.split())
    if not wish.release.fits((major, minor)):
        raise OperatorError(
            f"vLLM {wish.release.version} has no wheels for Python {major}.{minor}",
            hint=f"name another Python with --python, or another --version ({DEFAULT} is the one tried here)",
        )


def _check_room(engines: Path, folder: Path, needed: int, what: str) -> None:
    """Raises OperatorError, with the numbers. What half an installation takes is given back first."""
    free = shutil.disk_usage(engines).free + (environments.size_of(folder) if folder.exists() else 0)
    if free < needed:
        raise OperatorError(
            f"there is no room for {what} in {engines}: it takes up to {needed / GIB:.0f} GiB while it is installed, "
            f"and {free / GIB:.1f} GiB are free",
            hint="free some, or set TIDEGATE_HOME to a folder on a larger disk",
        )


@contextmanager
def lock_folder(engines: Path) -> Iterator[int]:
    """The sole right to install into a folder, as a descriptor that pip inherits. Raises OperatorError."""
    descriptor = os.open(engines / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(
                f"another installation is at work in {engines}", hint="wait for it, or end it, and try again"
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _environ(scratch: Path) -> dict[str, str]:
    """What is inherited, less what would lead another Python astray; pip's own settings stay."""
    astray = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"}
    kept = {name: value for name, value in os.environ.items() if name not in astray}
    return {**kept, "PIP_USER": "0", "TMPDIR": str(scratch)}


def _child(argv: Sequence[str], environ: Mapping[str, str], lock: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        list(argv),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
        preexec_fn=_ends_with_us,  # noqa: PLW1509 - one system call
    )


def _run(argv: Sequence[str], environ: Mapping[str, str], lock: int) -> "subprocess.CompletedProcess[str]":
    with _child(argv, environ, lock) as process:
        said, _ = process.communicate()
    return subprocess.CompletedProcess(argv, process.returncode, said)


def _ends_with_us() -> None:
    """Nobody goes on writing into an environment whose installation was killed (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
