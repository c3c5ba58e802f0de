"""Where the time of an engine's start went, as its log tells: loading, compiling, warming up. Pure but for the file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
READ_BYTES: Final = 1024 * 1024
"""Of a log; a start writes a few tens of KiB."""
SLOW_LOAD_S: Final = 10.0
"""A shorter load is worth no word."""
SLOW_SHARE: Final = 0.5
"""Of the start: less than this, and a faster disk would not change much."""
SLOW_DISK_BYTES_S: Final = 300e6
"""A single SATA SSD reads 500 MB/s; what is below this is a hard disk, or a network between."""
MINUTES_FROM_S: Final = 120.0

LOADED: Final = (
    r"Model loading took [^\n]{0,60}? and (?P<s>[\d.]+) seconds",  # vLLM on a GPU: weights and all
    r"Loading weights took (?P<s>[\d.]+) seconds",  # vLLM
    r"tidegate: [^\n]{0,200} loaded in (?P<s>[\d.]+) s",  # our llama.cpp
    r"load time = +(?P<ms>[\d.]+) ms",  # llama.cpp's own
)
"""In order: the first that is found at all tells it."""
COMPILED: Final = (
    r"\(compilation: (?P<s>[\d.]+) s",  # of vLLM's last line
    r"torch\.compile (?:took|takes) (?P<s>[\d.]+) s in total",
    r"torch\.compile and initial profiling/warmup run together took (?P<s>[\d.]+) s",
)
BEGUN: Final = (r"init engine \(profile, create kv cache, warmup model\) took (?P<s>[\d.]+) s",)
"""Compiling included."""
CAPTURED: Final = (r"Graph capturing finished in (?P<s>[\d.]+) secs",)


@dataclass(frozen=True)
class StartTimes:
    """Seconds of a start; None is what the engine does not tell. What is left is the process, and its first answer."""

    load_s: float | None = None
    """Weights, from the disk to where they compute."""
    compile_s: float | None = None
    warm_s: float | None = None
    """Profiling, the KV cache, CUDA graphs."""
    weights_bytes: int | None = None
    read_bytes: int | None = None
    """What the engine has really read from disks, be it weights or not; the rest was in memory."""

    @property
    def disk_bytes_s(self) -> float | None:
        """How fast the weights came from the disk; None where most of them did not, or that is not known."""
        if not (self.load_s and self.weights_bytes and self.read_bytes is not None):
            return None
        if self.read_bytes < self.weights_bytes / 2:
            return None
        return self.weights_bytes / self.load_s

    def words(self, total_s: float) -> str:
        """`load 4.1 s, compile 30.2 s, warm-up 12.0 s, rest 8.3 s`; empty where nothing is told."""
        parts = {"load": self.load_s, "compile": self.compile_s, "warm-up": self.warm_s}
        known = {name: seconds for name, seconds in parts.items() if seconds is not None}
        if not known:
            return ""
        rest_s = max(total_s - sum(known.values()), 0.0)
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in {**known, "rest": rest_s}.items())

    def fields(self) -> dict[str, float]:
        """What is known, for a line of the log."""
        told = {"load_s": self.load_s, "compile_s": self.compile_s, "warm_s": self.warm_s}
        speed = self.disk_bytes_s
        told["disk_mb_s"] = None if speed is None else speed / 1e6
        return {name: round(value, 2) for name, value in told.items() if value is not None}

    def slow_disk(self, total_s: float) -> str:
        """`weights on a slow disk: 4 min of 5 (0.7 GiB at 3 MB/s)`; empty where that was not what took the time."""
        speed, load_s = self.disk_bytes_s, self.load_s
        if speed is None or load_s is None or self.weights_bytes is None:
            return ""
        if load_s < SLOW_LOAD_S or load_s < SLOW_SHARE * total_s or speed > SLOW_DISK_BYTES_S:
            return ""
        size = f"{self.weights_bytes / 1024**3:.1f} GiB at {speed / 1e6:.0f} MB/s"
        if total_s >= MINUTES_FROM_S:
            return f"weights on a slow disk: {load_s / 60:.0f} min of {total_s / 60:.0f} ({size})"
        return f"weights on a slow disk: {load_s:.0f} s of {total_s:.0f} ({size})"


def read(text: str, *, weights_bytes: int | None = None, read_bytes: int | None = None) -> StartTimes:
    """What the log of one start tells. Where several workers tell the same, the slowest counts."""
    load_s, compile_s = _first(LOADED, text), _first(COMPILED, text)
    begun_s, captured_s = _first(BEGUN, text), _first(CAPTURED, text)
    warm_s = captured_s if begun_s is None else max(begun_s - (compile_s or 0.0), 0.0)
    return StartTimes(load_s, compile_s, warm_s, weights_bytes, read_bytes)


def of_log(log: Path, since: int, *, weights: Path | None = None, read_bytes: int | None = None) -> StartTimes:
    """What a log tells of the start that began at the offset `since`. `weights` is the model's file or folder."""
    try:
        with log.open("rb") as file:
            file.seek(since if since <= file.seek(0, 2) else 0)
            text = file.read(READ_BYTES).decode("utf-8", "replace")
    except OSError:
        text = ""
    return read(text, weights_bytes=size(weights) if weights is not None else None, read_bytes=read_bytes)


def size(weights: Path) -> int | None:
    """Bytes of a model's weights; None where they cannot be seen."""
    try:
        if weights.is_file():
            return weights.stat().st_size
        return sum(path.stat().st_size for path in weights.glob("*.safetensors")) or None
    except OSError:
        return None


def _first(patterns: tuple[str, ...], text: str) -> float | None:
    for pattern in patterns:
        found = [match.groupdict() for match in re.finditer(pattern, text)]
        if found:
            return max(float(one["s"]) if one.get("s") else float(one["ms"]) / 1000 for one in found)
    return None
