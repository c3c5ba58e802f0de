"""Why vLLM ended, from its log: the root cause stands far above the last lines, in another process's traceback. Pure but for the file."""

import re
import signal
from pathlib import Path
from typing import Final

from tidegate.engines.causes import SIGNAL_CAUSES, TAIL_LINES

READ_BYTES: Final = 512 * 1024
"""Of the log's end; two tracebacks of several processes, and all that was said before, are shorter."""
PREFIX: Final = re.compile(
    r"^(\(\w+[^)]*\bpid=\d+\)\s*)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
)
RAISED: Final = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Refused)(?::|$)")
CONSEQUENCE: Final = re.compile(r"Engine core initialization failed|Failed core proc|WorkerProc initialization failed")
"""Errors of one process about another's."""
EMPTY_NOISE: Final = re.compile(r"nanobind|leaked function|resource_tracker|^\s*$|^\s*\^+\s*$|- \.\.\. skipped")

CAUSES: Final = (
    (
        r"CUDA out of memory|OutOfMemoryError|No available memory for the cache blocks|CUDA error: out of memory",
        "the GPU has too little memory for this model and these sizes: a smaller context_tokens, fewer slots, or a GPU with more",
    ),
    (
        (r"is less than desired (GPU|CPU) memory utilization|on kv cache allocation is less than requested|"
        r"larger than the available KV cache memory|KV cache is needed, which is larger"),
        ("the memory that is free now is too little: end what else uses it (`nvidia-smi`, `free -h`), or set a smaller "
        "context_tokens"),
    ),
    (
        r"User-specified max_model_len .* is greater than the derived",
        "context_tokens is more than the model was trained on",
    ),
    (
        (r"Model architectures .* (are not supported|failed to be inspected)|does not recognize this architecture|"
        r"architectures? .* not (yet )?supported"),
        ("this vLLM does not know the model's architecture: it is older than the model, or the name in config.json is an old "
        "one (`tidegate doctor`)"),
    ),
    (
        r"no kernel image is available|CUDA capability sm_\d+ is not compatible|Minimum and Maximum cuda capability",
        "this vLLM has no kernels for this GPU: it is too old, or too new for this version",
    ),
    (r"Bfloat16 is only supported on GPUs", 'this GPU has no bfloat16: set args = ["--dtype", "float16"]'),
    (
        (r"CUDA driver version is insufficient|driver on your system is too old|forward compatibility was attempted|"
        r"CUDA_ERROR_(SYSTEM_DRIVER_MISMATCH|COMPAT_NOT_SUPPORTED)"),
        "the NVIDIA driver is too old for the CUDA that this vLLM was built with: update the driver",
    ),
    (
        r"libcuda\.so\.1|No CUDA GPUs are available|Failed to infer device type|Found no NVIDIA driver",
        "it was built for a GPU and sees none: `tidegate engines install vllm --cpu`, or look at the driver (`nvidia-smi`)",
    ),
    (
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeader",
        "a file of weights is damaged or half: pull the model again",
    ),
    (
        r"Cannot find any model weights|FileNotFoundError:.*safetensors|Weights? .* not found|not initialized from checkpoint",
        "files of weights are missing from the model's folder: pull the model again",
    ),
    (
        r"unrecognized arguments: (?P<what>[^\n]*)",
        "this vLLM does not have a flag that it was given: {what}",
    ),
    (r"error: argument (?P<what>[^\n]*)", "a flag was given wrongly: {what}"),
    (r"validation error.* for \w*Config[^\n]*\n(?P<what>[^\n]*\n[^\n]*)", "a flag was given wrongly: {what}"),
    (r"No module named '?vllm'?", "this Python has no vLLM: `tidegate engines install vllm`, or another pool.options.python"),
    (r"PackageNotFoundError.*\bvllm\b", "the CPU build's `vllm` command does not work: give its python instead of a command"),
    (r"[Aa]ddress already in use", "the port it wanted is taken"),
    (r"No space left on device", "the disk, or /dev/shm, is full"),
    (r"Permission denied|PermissionError", "a file it needs may not be read by this user"),
    (r"ModuleNotFoundError|ImportError", "its environment is not whole: remove it and install it again (`tidegate engines`)"),
)  # fmt: skip


def last_words(log: Path, since: int, status: int | None) -> tuple[str, tuple[str, ...]]:
    """Why it most likely ended, and the lines that say so best."""
    lines = [PREFIX.sub("", line, count=1) for line in _read(log, since).splitlines()]
    return likely_cause("\n".join(lines), status), telling(lines)


def likely_cause(text: str, status: int | None) -> str:
    """The likeliest reason in words; the exception itself where it is none that is known, empty when there is nothing."""
    for pattern, cause in CAUSES:
        found = re.search(pattern, text)
        if found is not None:
            what = found.groupdict().get("what") or ""
            return cause.format(what=" ".join(what.split())) if "{what}" in cause else cause
    if status is not None and status < 0:
        number = signal.Signals(-status)
        return SIGNAL_CAUSES.get(number, f"it was ended by {number.name}")
    raised = [line for line in text.splitlines() if RAISED.match(line) and not CONSEQUENCE.search(line)]
    return raised[0][:300] if raised else ""


def telling(lines: list[str]) -> tuple[str, ...]:
    """At most twenty: every exception that was raised, and then the end."""
    said = [line for line in lines if not EMPTY_NOISE.search(line)]
    raised = dict.fromkeys(line for line in said if RAISED.match(line))
    first = [line for line in raised if not CONSEQUENCE.search(line)][:5]
    rest = [line for line in said[-TAIL_LINES:] if line not in first]
    return tuple([*first, *rest[len(first) - TAIL_LINES :]] if first else rest)


def _read(log: Path, since: int) -> str:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(since if since <= size else 0, size - READ_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
