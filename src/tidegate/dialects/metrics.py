"""What an engine's /metrics says of its load, under the names of today and of older versions.

Sources: vllm/v1/metrics/loggers.py of vLLM 0.32 (older names: 0.4 to 0.10), tools/server/server.cpp of llama.cpp.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final

from tidegate.types import Load

_Combine = Callable[[Iterable[float]], float]

_FIELDS: Final[dict[str, tuple[_Combine, tuple[bytes, ...]]]] = {
    "running": (sum, (b"vllm:num_requests_running", b"llamacpp:requests_processing")),
    "waiting": (sum, (b"vllm:num_requests_waiting", b"llamacpp:requests_deferred")),
    "kv_usage": (max, (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"llamacpp:kv_cache_usage_ratio")),
    "prompt_tokens_total": (sum, (b"vllm:prompt_tokens_total", b"llamacpp:prompt_tokens_total")),
    "generation_tokens_total": (sum, (b"vllm:generation_tokens_total", b"llamacpp:tokens_predicted_total")),
    "iterations_total": (sum, (b"vllm:iteration_tokens_total_count", b"llamacpp:n_decode_total")),
    "preemptions_total": (sum, (b"vllm:num_preemptions_total",)),
    "prefill_s_total": (sum, (b"vllm:request_prefill_time_seconds_sum", b"llamacpp:prompt_seconds_total")),
    "started_at_s": (max, (b"process_start_time_seconds",)),
}
"""How the series of a name (one for each engine core or model) become one number, and the names, the newest first."""

_COUNTS: Final = frozenset(_FIELDS) - {"kv_usage", "prefill_s_total", "started_at_s"}
_COUNTERS: Final = tuple(name for name in _FIELDS if name.endswith("_total"))


def read_load(text: bytes) -> Load | None:
    """The load in the text of /metrics; None where it has no name that is known, or no number beside it.

    Only the names that are needed are looked for, so that 100 KB of histograms cost microseconds.
    """
    data = b"\n" + text
    others = b"llamacpp:" if b"\nvllm:" in data else b"vllm:"
    found: dict[str, float] = {}
    for field, (combine, names) in _FIELDS.items():
        for name in names:
            values = [] if name.startswith(others) else _values(data, name)
            if values:
                found[field] = combine(values)
                break
    if not found.keys() - {"started_at_s"}:
        return None
    return Load(**{name: int(value) if name in _COUNTS else value for name, value in found.items()})  # type: ignore[arg-type]  # counts are whole


def _values(data: bytes, name: bytes) -> list[float]:
    """The values of all series of one name. What is no number that a load can have is left out."""
    values: list[float] = []
    wanted = b"\n" + name
    start = data.find(wanted)
    while start >= 0:
        after = start + len(wanted)
        end = data.find(b"\n", after)
        line = data[after:] if end < 0 else data[after:end]
        if line[:1] in {b"{", b" ", b"\t"}:
            value = _value(line)
            if value is not None:
                values.append(value)
        start = data.find(wanted, after)
    return values


def _value(line: bytes) -> float | None:
    words = line[line.rfind(b"}") + 1 :].split(None, 2)  # labels, the value, and a time that few write
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def restarted(before: Load, after: Load) -> bool:
    """Whether the engine began anew between two looks: counters only ever grow, and a process starts once."""
    if before.started_at_s is not None and after.started_at_s is not None and before.started_at_s != after.started_at_s:
        return True
    return any(_less(getattr(after, name), getattr(before, name)) for name in _COUNTERS)


def advanced(before: Load, after: Load) -> bool:
    """Whether any counter of work has grown."""
    return any(_less(getattr(before, name), getattr(after, name)) for name in _COUNTERS)


def _less(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other
