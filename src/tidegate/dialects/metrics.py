"""What an engine's /metrics says of its load, under the names of today and of older versions.

Sources: vllm/v1/metrics/loggers.py of vLLM 0.32 (older names: 0.2 to 0.10), tools/server/server.cpp of llama.cpp.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from tidegate.types import Load

_Combine = Callable[[Iterable[float]], float]

_FIELDS: Final[dict[str, tuple[_Combine, tuple[bytes, ...]]]] = {
    "running": (sum, (b"vllm:num_requests_running", b"llamacpp:requests_processing")),
    "waiting": (sum, (b"vllm:num_requests_waiting", b"llamacpp:requests_deferred")),
    "kv_usage": (
        max,
        (
            b"vllm:kv_cache_usage_perc",
            b"vllm:gpu_cache_usage_perc",
            b"vllm:gpu_cache_usage_ratio",
            b"llamacpp:kv_cache_usage_ratio",
        ),
    ),
    "prompt_tokens_total": (sum, (b"vllm:prompt_tokens_total", b"llamacpp:prompt_tokens_total")),
    "generation_tokens_total": (sum, (b"vllm:generation_tokens_total", b"llamacpp:tokens_predicted_total")),
    "iterations_total": (sum, (b"vllm:iteration_tokens_total_count", b"llamacpp:n_decode_total")),
    "preemptions_total": (sum, (b"vllm:num_preemptions_total",)),
    "prefill_s_total": (sum, (b"vllm:request_prefill_time_seconds_sum", b"llamacpp:prompt_seconds_total")),
    "started_at_s": (max, (b"process_start_time_seconds",)),
}
"""How the series of a name (one for each engine core or model) become one number, and the names, the newest first."""

_CACHE: Final = (b"vllm:cache_config_info", b"vllm:cache_config")
"""Of which the labels tell how large the cache is, a series for each engine core; the newest name first."""

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
    told = {name: int(value) if name in _COUNTS else value for name, value in found.items()}
    return Load(**told, kv_tokens=_cache_tokens(data))  # type: ignore[arg-type]  # counts are whole


def read_slots(props: bytes) -> tuple[int | None, int | None]:
    """How many sequences llama.cpp computes at once, and how many tokens each may have, as its /props says."""
    try:
        told = msgspec.json.decode(props, type=_Props)
    except msgspec.DecodeError:  # and so for what is JSON of another shape
        return None, None
    return _positive(told.total_slots), _positive(told.default_generation_settings.n_ctx)


class _Generation(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Props(msgspec.Struct, frozen=True):
    total_slots: int | None = None
    default_generation_settings: _Generation = _Generation()


def _positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _cache_tokens(data: bytes) -> int | None:
    """What the KV caches of all engine cores hold; None where one of them does not say."""
    for name in _CACHE:
        told = [_tokens(line) for line in _lines(data, name)]
        if told:
            sizes = [size for size in told if size]
            return sum(sizes) if len(sizes) == len(told) else None
    return None


def _tokens(labels: bytes) -> int | None:
    """Today's vLLM says it itself (with hybrid models it is not blocks times their size); older ones said the factors.

    `num_gpu_blocks` is "None" in a front end that never heard from its core; an operator's override is then what it is.
    """
    size = _label(labels, b"kv_cache_size_tokens")
    if size is not None:
        return size
    blocks = _label(labels, b"num_gpu_blocks") or _label(labels, b"num_gpu_blocks_override")
    block_size = _label(labels, b"block_size")
    return blocks * block_size if blocks and block_size else None


def _label(labels: bytes, name: bytes) -> int | None:
    """A label that is a whole number. A value cannot pass for a label: its quotes are escaped."""
    for before in (b"{", b",", b" "):
        start = labels.find(before + name + b'="')
        if start >= 0:
            start += len(name) + 3
            value = labels[start : labels.find(b'"', start)]
            return int(value) if value.isdigit() and len(value) < 16 else None
    return None


def _values(data: bytes, name: bytes) -> list[float]:
    """The values of all series of one name. What is no number that a load can have is left out."""
    return [value for line in _lines(data, name) if (value := _value(line)) is not None]


def _lines(data: bytes, name: bytes) -> Iterator[bytes]:
    """What follows a name: labels and value."""
    wanted = b"\n" + name
    start = data.find(wanted)
    while start >= 0:
        after = start + len(wanted)
        end = data.find(b"\n", after)
        line = data[after:] if end < 0 else data[after:end]
        if line[:1] in {b"{", b" ", b"\t"}:
            yield line
        start = data.find(wanted, after)


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
