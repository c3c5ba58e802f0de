"""Which vLLM is started, and how it wants to be: an installed one, a Python of the user's own, or a command of theirs."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.config import VllmOptions
from tidegate.engines import environments
from tidegate.engines.install import preload
from tidegate.engines.vllm_releases import Kind
from tidegate.errors import ModelError, SettingError

INSTALL: Final = "`tidegate engines install vllm` installs it"
SERVER: Final = "vllm.entrypoints.openai.api_server"
"""What the CPU build is started by: its own `vllm` command asks for a distribution of another name, and fails."""
COMMAND: Final = "vllm.entrypoints.cli.main"
METADATA: Final = re.compile(r"vllm(?P<cpu>_cpu)?-(?P<version>[^-]+)\.dist-info")


@dataclass(frozen=True)
class Program:
    """A vLLM that can be started."""

    start: tuple[str, ...]
    """Comes before the model's folder."""
    kind: Kind | None
    """What it was built for; None where only it knows."""
    version: str = ""
    """Empty where only it knows."""
    preload: str = ""
    """LD_PRELOAD that it wants."""

    @property
    def label(self) -> str:
        return f"vLLM {self.version or 'of unknown version'}{f' ({self.kind})' if self.kind else ''}"


def find(options: VllmOptions, engines: Path) -> Program:
    """The vLLM that the options name. Raises SettingError where they name none, ModelError where none is installed."""
    if options.command and options.python is not None:
        raise SettingError("pool.options.command", "and pool.options.python exclude each other")
    if options.command:
        if shutil.which(options.command[0]) is None:
            raise SettingError("pool.options.command", f"there is no program {options.command[0]}")
        return Program(options.command, None)
    if options.python is not None:
        return _of_python(options.python)
    found = environments.find(engines, options.version)
    if found is None:
        here = ", ".join(one.made.version for one in environments.installed(engines)) or "none"
        wanted = f"vLLM {options.version}" if options.version else "vLLM"
        install = (
            f"`tidegate engines install vllm --version {options.version}` installs it" if options.version else INSTALL
        )
        raise ModelError(f"{wanted} is not installed here; there are: {here}", hint=install)
    made = found.made
    return _program(found.python, made.kind, made.version, preload(found.folder, made.kind).get("LD_PRELOAD", ""))


def _of_python(python: Path) -> Program:
    name = "pool.options.python"
    if not python.is_file() or not os.access(python, os.X_OK):
        raise SettingError(name, f"{python} is no program", hint="as in /opt/vllm/bin/python")
    folder = python.parent.parent
    sites = [*folder.glob("lib/python3.*/site-packages"), *folder.glob("lib64/python3.*/site-packages")]
    metadata = (METADATA.fullmatch(path.name) for site in sites for path in site.glob("vllm*.dist-info"))
    found = next((one for one in metadata if one is not None), None)
    if found is None:
        if sites and (folder / "pyvenv.cfg").is_file() and not _sees_more(folder):
            raise SettingError(name, f"the environment of {python} has no vLLM", hint=f"`{python} -m pip install vllm`")
        return _program(python, None, "", "")  # one of the system's: it will say itself
    version = found["version"]
    kind: Kind = "cpu" if found["cpu"] or version.endswith("+cpu") else "cuda"
    return _program(python, kind, version, preload(folder, kind).get("LD_PRELOAD", ""))


def _program(python: Path, kind: Kind | None, version: str, libraries: str) -> Program:
    start = (str(python), "-m", SERVER, "--model") if kind == "cpu" else (str(python), "-m", COMMAND, "serve")
    return Program(start, kind, version, libraries)


def _sees_more(folder: Path) -> bool:
    """Whether a virtual environment uses the packages of the Python that it was made with, too."""
    return (
        re.search(r"(?m)^include-system-site-packages\s*=\s*true", (folder / "pyvenv.cfg").read_text("utf-8"))
        is not None
    )
