"""Make `.venv` hold what is locked in requirements/: `install.py base` to run, `install.py dev` to test as well.

Does nothing when that is so already. A stamp inside `.venv`, written last, names all that the installation was made
from; without a stamp that fits, a `.venv` that is whole is brought up to date, and any other is made anew. Only the
standard library is used, on whichever Python `scripts/find-python` chose. Packages come from wherever pip is set to
get them (pip.conf, PIP_INDEX_URL); the hashes in requirements/ hold for every mirror.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
PIP_LOG = VENV / "install.log"
LEVELS = {"base": ["base"], "dev": ["base", "dev"]}
"""What an installation is, and the levels that it fulfils."""

PIP = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
LOCKED = ["--no-deps", "--require-hashes", "--no-build-isolation", "--no-compile"]
PIP_ENV = os.environ | {
    "PIP_USER": "0",  # a pip.conf with `user = true` cannot install into a virtual environment
    "PIP_USE_PEP517": "1",  # pip < 23.1 would otherwise run `setup.py install`, which setuptools no longer has
    "PIP_PROGRESS_BAR": "off",
}


class InstallError(Exception):
    """A step did not succeed; the message is for the user."""


def stamp(level: str) -> Path:
    return VENV / f"installed-{level}"


def fingerprint(level: str) -> str:
    """A digest of all that an installation of this level is made from, its place included: a venv cannot be moved."""
    digest = hashlib.sha256(f"{VENV}\n{level}\n".encode())
    for path in (
        ROOT / "requirements" / "build.txt",
        ROOT / "requirements" / f"{level}.txt",
        ROOT / "pyproject.toml",
        Path(__file__),
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def venv_version(statement: str) -> str | None:
    """`sys.version` of the Python in `.venv` if it can run `statement`, else None."""
    try:
        answer = subprocess.run(
            [VENV_PYTHON, "-I", "-c", f"import sys; {statement}; print(sys.version)"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def wanted(version: str | None) -> bool:
    """Whether a venv's Python may stay: new enough, and the very one that the user names, where one is named."""
    if version is None or tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (3, 11):
        return False
    return not os.environ.get("PYTHON") or version == sys.version


def is_stamped(level: str) -> bool:
    try:
        return stamp(level).read_text() == fingerprint(level)
    except OSError:
        return False


def is_installed(level: str) -> bool:
    return is_stamped(level) and wanted(venv_version("import tidegate"))


def install(level: str) -> None:
    """Bring `.venv` to the level. Raises InstallError."""
    started = time.monotonic()
    for name in LEVELS:
        stamp(name).unlink(missing_ok=True)
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"tidegate: setting up .venv with Python {version}; the first time takes about a minute", file=sys.stderr)
    if not wanted(venv_version("import pip, pip._internal.cli.main")):
        run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    PIP_LOG.write_text("")
    pip([*LOCKED, "-r", "requirements/build.txt"], packages=0)
    requirements = ROOT / "requirements" / f"{level}.txt"
    pip([*LOCKED, "-r", str(requirements)], packages=len(re.findall(r"^\S+==", requirements.read_text(), re.MULTILINE)))
    pip(["--no-deps", "--no-build-isolation", "--no-compile", "--editable", "."], packages=0)
    # pip would compile on one core only; and a machine with PYTHONDONTWRITEBYTECODE would compile at every start.
    site_packages = next((VENV / "lib").glob("python*/site-packages"))
    run([str(VENV_PYTHON), "-m", "compileall", "-q", "-j", "0", str(site_packages), "src"], check=False)
    for name in LEVELS[level]:
        stamp(name).write_text(fingerprint(name))
    print(f"tidegate: .venv is ready, after {time.monotonic() - started:.0f} s", file=sys.stderr)


def run(command: list[str], *, check: bool = True) -> None:
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise InstallError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def pip(arguments: list[str], *, packages: int) -> None:
    """`pip install`; its output goes to PIP_LOG, and a terminal sees which of how many `packages` it is at."""
    with (
        PIP_LOG.open("a") as log,
        subprocess.Popen(
            [*PIP, *arguments],
            cwd=ROOT,
            env=PIP_ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - said to the type checker
        seen = 0
        for line in process.stdout:
            log.write(line)
            name = re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", line)
            if name and packages and sys.stderr.isatty():
                seen += 1
                print(f"\r\033[K  {seen} of {packages}: {name[1]}", end="", file=sys.stderr, flush=True)
        if packages and sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    if process.returncode:
        tail = "\n".join(f"  {line}" for line in PIP_LOG.read_text().splitlines()[-12:])
        raise InstallError(
            f"pip could not install what is locked in requirements/. The end of {PIP_LOG}:\n{tail}\n"
            "Is the package index reachable? A mirror is named in pip's own settings, for one run by PIP_INDEX_URL=ADDRESS.\n"
            "无法安装依赖:请检查网络;可用 PIP_INDEX_URL=地址 或 pip.conf 指定镜像源。"
        )


def main() -> int:
    level = sys.argv[1] if len(sys.argv) > 1 else "dev"
    if level not in LEVELS:
        print(f"usage: install.py {'|'.join(LEVELS)}", file=sys.stderr)
        return 2
    if Path(sys.prefix) == VENV:
        return 0 if is_stamped(level) and importlib.util.find_spec("tidegate") else 1
    lock = os.open(ROOT / "requirements", os.O_RDONLY)  # `make up` and `make test` at once take turns
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed(level):
            install(level)
    except InstallError as error:
        print(f"tidegate: the set-up failed. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntidegate: the set-up was stopped; the next run goes on with it", file=sys.stderr)
        return 130
    finally:
        os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
