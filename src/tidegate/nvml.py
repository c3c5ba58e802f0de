"""Asks NVIDIA's driver about its GPUs, through NVML (the library `libnvidia-ml.so.1` that comes with it).

Where there is no `/dev/nvidiactl` nothing is loaded and nothing asked: the bindings take their time to import. A call may
block for as long as the driver likes, so all of them are made in threads that hold up nobody.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tidegate.gpus import OTHER_ADVICE, Fault, Gpu, Reading, fault, report
from tidegate.types import GpuReport

CONTROL_DEVICE: Final = Path("/dev/nvidiactl")
"""There wherever a driver is loaded, and in containers that were given a GPU."""
EVERY_S: Final = 1.0
RETRY_S: Final = 10.0
"""Between two attempts to have a lost GPU, or a driver that was reloaded, back: each opens NVML anew."""
GONE: Final = "the driver has it no more"
STALE_S: Final = 5.0
"""Values are forgotten once the driver leaves a question open for so long."""


class Nvml:
    """NVML, opened with the first reading. For one thread."""

    def __init__(self) -> None:
        self._open = False
        self._known: dict[str, Gpu] = {}
        """All that were ever seen, by id, without values."""
        self._numbers: dict[int, str] = {}
        """Who was seen last at which number: a GPU that is lost cannot say who it is."""

    def read(self) -> Reading:
        """All GPUs. Blocks; raises nothing that a driver is to blame for."""
        import pynvml

        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            found = _fault(error)
            return Reading(tuple(replace(one, fault=found.text) for one in self._known.values()), fault=found)
        gpus = [self._gpu(number) for number in range(count)]
        there = {gpu.id for gpu in gpus}
        gpus += [replace(one, fault=GONE) for one in self._known.values() if one.id not in there]
        return Reading(tuple(gpus), driver=_told(pynvml.nvmlSystemGetDriverVersion) or "")

    def close(self) -> None:
        """Let go of the driver; the next reading opens it anew."""
        if self._open:
            import pynvml

            self._open = False
            with contextlib.suppress(pynvml.NVMLError):  # of a driver that is gone
                pynvml.nvmlShutdown()

    def _gpu(self, number: int) -> Gpu:
        import pynvml

        try:
            card = pynvml.nvmlDeviceGetHandleByIndex(number)
            known = Gpu(pynvml.nvmlDeviceGetUUID(card), _told(pynvml.nvmlDeviceGetName, card) or "")
            gpu = _values(known, card)
        except pynvml.NVMLError as error:
            nobody = Gpu(f"number {number}", "unknown GPU")
            return replace(self._known.get(self._numbers.get(number, ""), nobody), fault=_fault(error).text)
        self._known[known.id], self._numbers[number] = known, known.id
        return gpu


def _values(known: Gpu, card: Any) -> Gpu:
    """Everything that moves. Raises NVMLError where the GPU is lost."""
    import pynvml

    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, card, pynvml.nvmlMemory_v2)
    memory = memory or _told(pynvml.nvmlDeviceGetMemoryInfo, card)  # drivers before 510
    use = _told(pynvml.nvmlDeviceGetUtilizationRates, card)
    temperature = _told(pynvml.nvmlDeviceGetTemperatureV, card, pynvml.NVML_TEMPERATURE_GPU)
    if temperature is None:  # older drivers
        temperature = _told(pynvml.nvmlDeviceGetTemperature, card, pynvml.NVML_TEMPERATURE_GPU)
    processes = _told(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, card)
    return replace(
        known,
        memory_bytes=memory.total if memory else None,
        free_bytes=memory.free if memory else None,
        used_bytes=memory.used if memory else None,
        compute=_told(pynvml.nvmlDeviceGetCudaComputeCapability, card),
        use_percent=use.gpu if use else None,
        power_mw=_told(pynvml.nvmlDeviceGetPowerUsage, card),
        temperature_c=temperature,
        processes=None if processes is None else tuple(process.pid for process in processes),
        parted=(_told(pynvml.nvmlDeviceGetMigMode, card) or (0, 0))[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )


def _told(ask: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where this GPU or this driver has none. Raises NVMLError where the GPU is lost."""
    import pynvml

    try:
        return ask(*arguments)
    except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_Uninitialized):
        raise
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _fault(error: Any) -> Fault:
    return fault(error.value, str(error))


def read(*, device: Path | None = None, timeout_s: float = 15.0) -> Reading:
    """One reading. Blocks for `timeout_s` at most."""
    if not (device or CONTROL_DEVICE).exists():
        return Reading()
    answers: queue.SimpleQueue[Reading] = queue.SimpleQueue()

    def ask() -> None:
        nvml = Nvml()
        reading = nvml.read()
        answers.put(reading)
        nvml.close()

    threading.Thread(target=ask, name="gpus once", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return Reading(fault=Fault(f"the driver does not answer within {timeout_s:g} s", OTHER_ADVICE))


class Watch:
    """Reads the GPUs every second, in a thread of its own. `tell` is told of each trouble, once, from any thread."""

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        device: Path | None = None,
        every_s: float = EVERY_S,
        retry_s: float = RETRY_S,
        stale_s: float = STALE_S,
    ) -> None:
        self._tell, self._device = tell, device or CONTROL_DEVICE
        self._every_s, self._retry_s, self._stale_s = every_s, retry_s, stale_s
        self._last: tuple[GpuReport, ...] = ()
        self._asked_s: float | None = None
        """Since when the driver is asked, by CLOCK_MONOTONIC; None between two readings."""
        self._told: set[str] = set()
        self._end = threading.Event()

    def begin(self) -> bool:
        """Start reading; False, and nothing is started, where this machine has no GPU."""
        if not self._device.exists():
            return False
        threading.Thread(target=self._run, name="gpus", daemon=True).start()
        return True

    def gpus(self) -> tuple[GpuReport, ...]:
        """What was read last. A driver that has stopped to answer leaves names without values."""
        asked_s = self._asked_s
        if asked_s is None or time.monotonic() - asked_s <= self._stale_s:
            return self._last
        self._say("the driver does not answer")
        return tuple(GpuReport(gpu.id, gpu.name) for gpu in self._last)

    def end(self) -> None:
        """Read no more; waits for nobody."""
        self._end.set()

    def _run(self) -> None:
        nvml = Nvml()
        anew_s = time.monotonic() + self._retry_s
        while True:
            self._asked_s = time.monotonic()
            reading = nvml.read()
            self._last = tuple(report(gpu) for gpu in reading.gpus)
            self._asked_s = None
            if self._end.is_set():
                return
            self._say_troubles(reading)
            lost = any(gpu.fault for gpu in reading.gpus)
            if lost and time.monotonic() >= anew_s:
                nvml.close()
                anew_s = time.monotonic() + self._retry_s
            if self._end.wait(self._retry_s if reading.fault else self._every_s):
                nvml.close()
                return

    def _say_troubles(self, reading: Reading) -> None:
        if reading.fault:
            self._say(f"{reading.fault.text} -> {reading.fault.advice}")
            return
        for gpu in reading.gpus:
            if gpu.fault:
                self._say(f"{gpu.name} ({gpu.id}): {gpu.fault}")

    def _say(self, trouble: str) -> None:
        if trouble not in self._told:
            self._told.add(trouble)
            self._tell(trouble)
