"""NVIDIA GPUs: what is known of one, which are free, and what the driver's errors mean in words. Pure.

`tidegate.nvml` asks the driver.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.types import GpuReport


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment, in the driver's own units; what it does not tell is None."""

    id: str
    """The driver's own (`GPU-…`), which no other GPU has, and which CUDA_VISIBLE_DEVICES understands."""
    name: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None
    """What a program could have now. None, as the memory, where GPU and processor share theirs (GB10)."""
    used_bytes: int | None = None
    """Without what the driver keeps for itself, where it tells that apart."""
    compute: tuple[int, int] | None = None
    """Compute capability: (9, 0)."""
    use_percent: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    processes: tuple[int, ...] | None = None
    """Those that compute on it, by process id; in a container only its own, or none."""
    parted: bool = False
    """Whether it is cut into instances (MIG), so that no program can have it whole."""
    fault: str = ""
    """Why it tells nothing at all."""


@dataclass(frozen=True)
class Fault:
    """What keeps the driver from answering, and what to do about it."""

    text: str
    advice: str


@dataclass(frozen=True)
class Reading:
    """What the driver told at one moment; nothing where there is none."""

    gpus: tuple[Gpu, ...] = ()
    """In the driver's order, which is that of the PCI bus."""
    driver: str = ""
    fault: Fault | None = None
    """Why there is no answer; the GPUs are then those that were known before, without their values."""


RESTART = "restart the machine"
FAULTS = {
    4: Fault("this user may not use the GPUs", "let the user read and write /dev/nvidia*"),
    9: Fault("the driver is not loaded", "load it (modprobe nvidia), or install it again for the kernel that runs"),
    12: Fault(
        "there is a GPU and no driver library (libnvidia-ml.so.1)",
        "install the driver's libraries; a container needs --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    15: Fault("the GPU is lost: it has fallen off the bus", f"look into the kernel's log for Xid, and {RESTART}"),
    16: Fault("the GPU has to be reset", f"nvidia-smi --gpu-reset, or {RESTART}"),
    17: Fault(
        "the operating system keeps the driver from the GPUs",
        "the container's rules for devices (cgroups) were taken back: start the container again",
    ),
    18: Fault(
        "driver/library version mismatch: the driver in the kernel is of another version than its libraries, as after "
        "an update",
        f"{RESTART}; in a container, use the host's libraries",
    ),
}
"""By NVML's number (nvmlReturn_t); other ones say little more than that something is wrong."""
OTHER_ADVICE = f"mend the driver: often it is enough to {RESTART}"


def fault(code: int, said: str) -> Fault:
    """An error of NVML in words. `said` is what it says itself."""
    return FAULTS.get(code) or Fault(f"the driver says: {said}", OTHER_ADVICE)


def report(gpu: Gpu) -> GpuReport:
    """What others are told every second."""
    return GpuReport(
        id=gpu.id,
        name=gpu.name,
        use=None if gpu.use_percent is None else gpu.use_percent / 100,
        memory_used_bytes=gpu.used_bytes,
        memory_total_bytes=gpu.memory_bytes,
        power_w=None if gpu.power_mw is None else gpu.power_mw / 1000,
        temperature_c=gpu.temperature_c,
    )


def free(gpus: Iterable[Gpu], least_bytes: int) -> tuple[Gpu, ...]:
    """The GPUs that a new engine can have whole: nobody computes there, and so much of the memory is free.

    Within a container other containers' processes are not to be seen: there the free memory alone tells of them. A GPU
    that shares the processor's memory has none to tell; whether that is enough is known elsewhere.
    """
    return tuple(
        gpu
        for gpu in gpus
        if not (gpu.fault or gpu.parted or gpu.processes) and (gpu.free_bytes is None or gpu.free_bytes >= least_bytes)
    )
