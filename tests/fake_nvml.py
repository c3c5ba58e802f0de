"""A machine with GPUs, as far as NVIDIA's bindings can tell: `fake_nvml.c`, built and put in the place of the driver's library."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
MISSING = "no C compiler, or no headers, here: apt-get install gcc libc6-dev"
PATIENCE_S = 30.0
GIB = 1 << 30
A10 = {
    "name": "NVIDIA A10",
    "uuid": "GPU-a",
    "total": 24 * GIB,
    "reserved": GIB // 2,
    "used": 8 * GIB,
    "free": 15 * GIB + GIB // 2,
    "use": 45,
    "power": 143_500,
    "temperature": 62,
    "compute": "8.6",
    "processes": "4242 4243",
    "mig": 0,
}
H200 = {**A10, "name": "NVIDIA H200", "uuid": "GPU-b", "total": 140 * GIB, "compute": "9.0", "processes": ""}


class Machine:
    """GPUs and their driver in a folder. `control` stands for /dev/nvidiactl."""

    def __init__(self, folder, *, old=False):
        self.folder, self.control, self._answers = folder, folder / "nvidiactl", folder / "answers"
        self.control.touch()
        built = subprocess.run(
            [COMPILER, "-shared", "-fPIC", "-D_GNU_SOURCE", *(["-DOLD"] if old else []), "-o", LIBRARY, SOURCE],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
        )
        if built.returncode:
            pytest.skip(f"{MISSING}: {built.stderr}")
        self.environ = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(self._answers)}
        self.tell([])

    def tell(self, cards, **machine):
        """What the driver answers from now on."""
        told = {"count": len(cards), "driver": "550.54.15", **machine}
        told |= {f"{number}.{key}": value for number, card in enumerate(cards) for key, value in card.items()}
        fresh = self.folder / "fresh"
        fresh.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
        fresh.replace(self._answers)

    def start(self, script, *arguments):
        """A process of its own on this machine, that prints lines of JSON; the fault of a script that fails is seen."""
        return subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env={**os.environ, **self.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def whole(self):
        """Environment in which every Python program takes this for the machine it runs on."""
        place = self.folder / "site"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(
            f"import pathlib, tidegate.nvml\ntidegate.nvml.CONTROL_DEVICE = pathlib.Path({str(self.control)!r})\n"
        )
        return {**self.environ, "PYTHONPATH": str(place)}

    def run(self, script, *arguments):
        """What such a process prints, to its end."""
        with self.start(script, *arguments) as process:
            told, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        return json.loads(told)


@pytest.fixture
def machine(tmp_path):
    """Skipped where there is no C compiler."""
    if COMPILER is None:
        pytest.skip(MISSING)
    return Machine(tmp_path)
