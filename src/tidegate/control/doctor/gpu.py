"""GPUs, as NVIDIA's driver tells of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tidegate import nvml
from tidegate.control.doctor.findings import Finding, note, ok, problem, size
from tidegate.gpus import Fault, Gpu

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of VGA and 3D controllers."""
VLLM_COMMAND = "tidegate engines install vllm"
INSTALL_VLLM = f"`{VLLM_COMMAND}` installs the engine for it, and `tidegate up` then uses it"


@dataclass(frozen=True)
class GpuFacts:
    """What is known of the GPUs."""

    gpus: tuple[Gpu, ...] = ()
    cards: int = 0
    """NVIDIA cards on the PCI bus, with a driver or without."""
    driver: str = ""
    fault: Fault | None = None
    """Why the driver does not answer."""

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """Those that answer."""
        return tuple(one for one in self.gpus if not one.fault)


def gather(
    *, timeout_s: float = 15.0, devices: Path = Path("/sys/bus/pci/devices"), control: Path | None = None
) -> GpuFacts:
    """Ask the driver where there is one (`control` is its device), and the PCI bus."""
    reading = nvml.read(device=control, timeout_s=timeout_s)
    return GpuFacts(reading.gpus, _cards(devices), reading.driver, reading.fault)


def check(facts: GpuFacts) -> Iterable[Finding]:
    if facts.fault:
        yield problem("gpu", facts.fault.text, facts.fault.advice)
        return
    for gpu in facts.gpus:
        if gpu.fault:
            yield problem(
                "gpu", f"{gpu.name} ({gpu.id}): {gpu.fault}", "nvidia-smi and the kernel's log tell more of it"
            )
        else:
            yield note("gpu", _described(gpu, facts.driver), INSTALL_VLLM)
    if facts.gpus:
        return
    if facts.cards:
        yield note(
            "gpu",
            f"{facts.cards} NVIDIA card{'' if facts.cards == 1 else 's'} without a driver",
            "install NVIDIA's driver to use it; without, llama.cpp runs on the processor",
        )
    else:
        yield ok("gpu", "none; llama.cpp runs on the processor")


def _described(gpu: Gpu, driver: str) -> str:
    parts = [gpu.name]
    if gpu.memory_bytes is not None and gpu.free_bytes is not None:
        parts += [f"{size(gpu.free_bytes)} of {size(gpu.memory_bytes)} free"]
    parts += [f"driver {driver}"] if driver else []
    parts += [f"compute {gpu.compute[0]}.{gpu.compute[1]}"] if gpu.compute else []
    parts += (
        [f"in use by {len(gpu.processes)} process{'' if len(gpu.processes) == 1 else 'es'}"] if gpu.processes else []
    )
    parts += ["cut into instances (MIG)"] if gpu.parted else []
    return ", ".join(parts)


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
