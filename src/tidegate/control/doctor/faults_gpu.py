"""What keeps vLLM from a GPU that answers: its driver, its age, and whoever holds its memory."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.doctor.findings import Finding, note, problem, size
from tidegate.engines import profiles
from tidegate.engines.model_facts import ModelFacts
from tidegate.engines.plan_types import Gpu as PlannedGpu
from tidegate.engines.vllm_flags import PINNED
from tidegate.errors import ModelError
from tidegate.gpus import Gpu

LEAST_DRIVER: Final = (580, 65)
"""For CUDA 13 (NVIDIA's table of CUDA toolkits and drivers), which the wheels of vLLM 0.32 are built with."""
HELD_BYTES: Final = 512 << 20
"""Less than this the driver itself may hold."""
ENGINE_NAMES: Final = re.compile(r"vllm|EngineCore|sglang|llama", re.IGNORECASE)
INIT: Final = 1


@dataclass(frozen=True)
class Holder:
    """A process that has memory of a GPU."""

    name: str
    status: str
    """As psutil has it: running, zombie …"""
    parent: int


def gather(gpus: Iterable[Gpu]) -> dict[int, Holder]:
    """The processes that compute on GPUs, as far as they are to be seen."""
    import psutil

    found = {}
    for pid in {pid for gpu in gpus for pid in gpu.processes or ()}:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                name = " ".join(process.cmdline()[:2]) or process.name()
                found[pid] = Holder(name[:80], process.status(), process.ppid())
        except psutil.Error:
            continue
    return found


def check(
    gpus: Sequence[Gpu],
    driver: str,
    holders: Mapping[int, Holder],
    *,
    ours: frozenset[int],
    installed: bool,
    model: ModelFacts,
) -> Iterator[Finding]:
    """Findings. With vLLM for GPUs `installed` what would keep it from starting is a problem, else worth knowing."""
    if gpus and driver and _numbers(driver) < LEAST_DRIVER:
        wanted = ".".join(map(str, LEAST_DRIVER))
        text = f"driver {driver} is too old for CUDA 13, which vLLM {PINNED} is built with ({wanted} or newer)"
        advice = "update the driver, or the host's where this is a container"
        yield problem("gpu", text, advice) if installed else note("gpu", text, advice)
    for gpu in gpus:
        if gpu.fault:
            continue
        yield from _age(gpu, installed=installed)
        yield from _held(gpu, holders, ours)
        yield from _room(gpu, model, installed=installed and not ours)


def _age(gpu: Gpu, *, installed: bool) -> Iterator[Finding]:
    if gpu.compute is None:
        return
    told = f"{gpu.name} has compute capability {gpu.compute[0]}.{gpu.compute[1]}"
    if gpu.compute < profiles.OLDEST_COMPUTE:
        text = f"{told}, and vLLM {PINNED} holds kernels for 7.5 and newer"
        advice = "llama.cpp runs on the processor; or use a newer GPU"
        yield problem("gpu", text, advice) if installed else note("gpu", text, advice)
    elif gpu.compute < profiles.BFLOAT16_COMPUTE:
        yield note(
            "gpu", f"{told}: no bfloat16, no FlashAttention", "models are served in float16 (`tidegate engines plan`)"
        )


def _held(gpu: Gpu, holders: Mapping[int, Holder], ours: frozenset[int]) -> Iterator[Finding]:
    used = gpu.used_bytes or 0
    seen = {pid: holders[pid] for pid in gpu.processes or () if pid in holders}
    if used > HELD_BYTES and gpu.processes == ():
        yield problem(
            "gpu",
            f"{size(used)} of {gpu.name} are held, and no process is to be seen that holds them",
            "a process ended badly (`fuser -v /dev/nvidia*`), or runs in another container",
        )
    for pid, holder in seen.items():
        if pid in ours:
            continue
        if holder.status == "zombie":
            yield problem(
                "gpu",
                f"process {pid} ({holder.name}) is dead and still holds memory of {gpu.name}",
                f"end its parent, process {holder.parent}",
            )
        elif holder.parent == INIT and ENGINE_NAMES.search(holder.name):
            yield problem(
                "gpu",
                f"process {pid} ({holder.name}) has memory of {gpu.name}, and what started it is gone",
                f"if nobody uses it: kill {pid}",
            )


def _room(gpu: Gpu, model: ModelFacts, *, installed: bool) -> Iterator[Finding]:
    """Whether the model would start there now; with engines of ours on it their memory is not free."""
    if not installed or gpu.compute is None or gpu.memory_bytes is None or gpu.free_bytes is None:
        return
    try:
        profiles.plan(model, PlannedGpu(gpu.name, gpu.memory_bytes, gpu.free_bytes, gpu.compute))
    except ModelError as error:
        if gpu.compute >= profiles.OLDEST_COMPUTE:
            yield problem("gpu", str(error), error.hint)


def _numbers(driver: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
