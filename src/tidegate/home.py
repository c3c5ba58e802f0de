"""The data folder: one place for all state, closed to other users.

models/ engines/ chat/ logs/ traces/ samples/ reports/ profiles/ run/ state.db lan.key
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import OperatorError


@dataclass(frozen=True)
class Home:
    """Paths below the data folder. Nothing is made until `create`."""

    path: Path

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def engines(self) -> Path:
        """Environments of engines that were installed."""
        return self.path / "engines"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def traces(self) -> Path:
        """When requests came, where that is recorded; made then."""
        return self.path / "traces"

    @property
    def samples(self) -> Path:
        """What gateways say, by the minute, for reports; made then."""
        return self.path / "samples"

    @property
    def reports(self) -> Path:
        """Reports of the weeks; made then."""
        return self.path / "reports"

    @property
    def profiles(self) -> Path:
        """What tuning has tried and found; made then."""
        return self.path / "profiles"

    @property
    def run(self) -> Path:
        """Sockets, keys and process records of what runs now."""
        return self.path / "run"

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    def create(self) -> None:
        """Make the folder and its parts, mode 0700. Raises OperatorError where that cannot be."""
        try:
            for folder in (self.path, self.models, self.logs, self.run):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_mode & 0o077:
                self.path.chmod(0o700)
        except OSError as error:
            what = (
                "a file is in its place" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
            )
            raise OperatorError(
                f"the data folder {self.path} cannot be made or used: {what}",
                hint="set TIDEGATE_HOME to a folder that belongs to you",
            ) from error


def find_home(setting: Path | None = None, environ: Mapping[str, str] = os.environ) -> Home:
    """The data folder: `store.home`, else $TIDEGATE_HOME, else ~/.local/share/tidegate. Raises OperatorError."""
    if setting is None and environ.get("TIDEGATE_HOME"):
        setting = Path(environ["TIDEGATE_HOME"])
    if setting is None:
        base = environ.get("XDG_DATA_HOME")
        setting = (Path(base) if base else Path.home() / ".local" / "share") / "tidegate"
    try:
        return Home(setting.expanduser().absolute())
    except FileNotFoundError:
        raise OperatorError(
            f"{setting} counts from the current folder, and that one is gone", hint="`cd` to another one"
        ) from None


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
