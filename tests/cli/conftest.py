"""Commands run as a user runs them: in a process of their own, in an empty folder, with a data folder of their own."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def tidegate(tmp_path):
    """Run `tidegate ARGUMENTS`; more of the environment as keywords."""
    here = tmp_path / "here"
    here.mkdir()

    def run(*arguments, **environ):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "HF_"))}
        return subprocess.run(
            [sys.executable, "-m", "tidegate", *map(str, arguments)],
            cwd=here,
            env={**clean, "TIDEGATE_HOME": str(tmp_path / "home"), "LANG": "C.UTF-8", **environ},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    run.here, run.home = here, tmp_path / "home"
    return run
