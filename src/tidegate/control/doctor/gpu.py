"""GPUs, as NVIDIA's driver tells of them."""

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate.control.doctor.findings import Finding, note, ok, problem, size

QUERY = "name,memory.total,memory.free,driver_version,compute_cap"
NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers."""
VLLM_COMMAND = "python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm"
INSTALL_VLLM = f"`{VLLM_COMMAND}` installs the engine for it; start it, and give its URL to `tidegate up --engine`"


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    memory_bytes: int
    free_bytes: int
    driver: str
    compute: str
    """Compute capability, as in 9.0."""


@dataclass(frozen=True)
class GpuFacts:
    """What is known of the GPUs."""

    gpus: tuple[Gpu, ...] = ()
    cards: int = 0
    """NVIDIA cards on the PCI bus, with a driver or without."""
    fault: str = ""
    """What nvidia-smi said instead of an answer."""


def gather(*, timeout_s: float = 15.0, devices: Path = Path("/sys/bus/pci/devices")) -> GpuFacts:
    """Ask nvidia-smi where there is one, and the PCI bus."""
    cards = _cards(devices)
    program = shutil.which("nvidia-smi")
    if program is None:
        return GpuFacts(cards=cards)
    try:
        ran = subprocess.run(
            [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return GpuFacts(cards=cards, fault=f"nvidia-smi does not answer within {timeout_s:g} s")
    except OSError as error:
        return GpuFacts(cards=cards, fault=f"nvidia-smi cannot be run: {error.strerror}")
    if ran.returncode:
        said = (ran.stdout + ran.stderr).strip().splitlines()
        return GpuFacts(cards=cards, fault=said[0] if said else f"nvidia-smi ends with {ran.returncode}")
    return GpuFacts(parse(ran.stdout), cards)


def parse(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's answer to `QUERY`; a line that is none is left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(QUERY.split(",")):
            continue
        name, total, free, driver, compute = fields
        found.append(Gpu(name, _mib(total), _mib(free), driver, compute))
    return tuple(found)


def check(facts: GpuFacts) -> Iterable[Finding]:
    for gpu in facts.gpus:
        memory = f", {size(gpu.free_bytes)} of {size(gpu.memory_bytes)} free" if gpu.memory_bytes else ""
        yield note("gpu", f"{gpu.name}{memory}, driver {gpu.driver}, compute {gpu.compute}", INSTALL_VLLM)
    if facts.gpus:
        return
    if facts.fault:
        yield problem("gpu", facts.fault, "mend the driver (often a restart after an update), or remove nvidia-smi")
    elif facts.cards:
        yield note(
            "gpu",
            f"{facts.cards} NVIDIA card{'' if facts.cards == 1 else 's'} without a driver",
            "install NVIDIA's driver to use it; without, llama.cpp runs on the processor",
        )
    else:
        yield ok("gpu", "none; llama.cpp runs on the processor")


def _mib(text: str) -> int:
    return int(text) << 20 if text.isdigit() else 0  # "[N/A]" where CPU and GPU share their memory


def _cards(devices: Path) -> int:
    count = 0
    try:
        for device in devices.iterdir():
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
            count += vendor == NVIDIA_VENDOR and kind.startswith(DISPLAY_CLASSES)
    except OSError:
        return count  # no PCI bus to be seen, as in many containers
    return count
