"""What `tidegate top` shows, as lines of a given width and height. Pure.

Made by hand, not as a table of rich, so that 80 columns and 24 lines hold what matters whatever the names are.
"""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tidegate.cli.status import duration, gib, gpu_values, mib
from tidegate.control.steering import Top, TopReplica
from tidegate.control.sums import ClassSum
from tidegate.types import GpuReport, ReplicaState

KEYS: Final = "up/down choose  +/- limit  a automatic  d drain/undrain  q quit  * set by hand"
NAME_LEAST: Final = 12
CLASS_LEAST: Final = 4
CLASS_MOST: Final = 11
"""Columns for a class's name above a count: all of it, up to so much, where every class has room for it."""
CLASSES_HEAD: Final = ("class", "queued", "wait", "in flight", "done/s", "refused/s", "tokens/s", "p50", "p99")
CLASSES_WIDTH: Final = (6, 7, 9, 6, 9, 8, 7, 7)
REPLICAS_HEAD: Final = ("state", "in/limit", "run", "wait", "KV", "req/s", "fail/s")
REPLICAS_WIDTH: Final = (8, 9, 4, 4, 4, 5, 6)
GPU_WIDTH: Final = 39
BAD: Final = "bold red"
HEAD: Final = "bold"


def screen(top: Top, *, width: int, height: int, selected: str, note: str, trouble: str = "") -> list[Text]:
    """`height` lines at most. `note` is what the last key did, `trouble` why what is seen is old."""
    head = [*_head(top), *_gpus(top.sums.gpus, width, max(1, height // 6))]
    most_classes = max(1, (height - len(head) - 6) // 2)
    classes = _classes(top.sums.classes, width, most_classes)
    room = height - len(head) - len(classes) - 5  # two empty lines, the replicas' head, what is said, the keys
    replicas = _replicas(top, width, selected=selected, most=max(1, room))
    said = Text(_cut(trouble or note or _about(top, selected), width), BAD if trouble else "")
    lines = [*head, Text(), *classes, Text(), *replicas, said]
    lines = [*lines[: max(0, height - 1)], Text(_cut(KEYS, width), "dim")]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def printed(top: Top, *, width: int) -> list[Text]:
    """All of it at once, for a file or a pipe."""
    lines = [*_head(top), *_gpus(top.sums.gpus, width, len(top.sums.gpus)), Text()]
    lines += [*_classes(top.sums.classes, width, len(top.sums.classes)), Text()]
    lines += _replicas(top, width, selected="", most=len(top.replicas))
    return lines + [Text(f"{one.id}: {_clean(one.cause)}") for one in top.replicas if one.cause]


def _head(top: Top) -> list[Text]:
    sums, first = top.sums, top.sums.first_token
    state = Text("ready", "green") if top.ready else Text("not ready", BAD)
    gateways = "1 gateway" if sums.gateways == 1 else f"{sums.gateways} gateways"
    memory = f"memory {gib(top.memory_used_bytes)} of {gib(top.memory_total_bytes)}"
    lines = [
        Text.assemble(f"Tidegate {top.version}, ", state, f", up {duration(top.up_s)}, {gateways}, {memory}"),
        Text.assemble(
            f"{rate(sums.requests_per_s)} requests/s, {rate(sums.tokens_per_s)} tokens/s, {sums.in_flight} in flight, ",
            f"{sums.queued} queued, {rate(sums.refused_per_s)} refused/s, ",
            Text(f"{rate(sums.failed_per_s)} failed/s", BAD if sums.failed_per_s else ""),
        ),
        Text(
            f"first token: p50 {seconds(first.p50_s)}, p99 {seconds(first.p99_s)} ({first.samples} in {top.window_s:.0f} s)"
        ),
    ]
    if top.other_hosts:
        told = (f"{_clean(one.host)} {_clean(one.listen)} ({one.in_flight} in flight)" for one in top.other_hosts)
        lines.append(Text(f"gateways of other hosts: {', '.join(told)}"))
    return lines


def _gpus(gpus: Sequence[GpuReport], width: int, most: int) -> list[Text]:
    """As many beside each other as there is room for, `most` lines at most."""
    beside = max(1, (width + 2) // (GPU_WIDTH + 2))
    shown = gpus if len(gpus) <= most * beside else gpus[: most * beside - 1]
    cells = [f"GPU {number}: {gpu_values(one) or one.name}" for number, one in enumerate(shown)]
    cells += [f"and {len(gpus) - len(shown)} more"] if len(shown) < len(gpus) else []
    fitted = [set_cell_size(_cut(cell, GPU_WIDTH), GPU_WIDTH) for cell in cells]
    return [Text("  ".join(fitted[begin : begin + beside]).rstrip()) for begin in range(0, len(fitted), beside)]


def _classes(classes: Sequence[ClassSum], width: int, most: int) -> list[Text]:
    name = max(NAME_LEAST, width - sum(CLASSES_WIDTH) - len(CLASSES_WIDTH))
    name = min(name, max((cell_len(one.name) for one in classes), default=0) + 2, 40)
    name = max(name, NAME_LEAST)
    lines = [Text(_row(CLASSES_HEAD, (name, *CLASSES_WIDTH), width), HEAD)]
    shown = classes if len(classes) <= most else classes[: max(1, most - 1)]
    for one in shown:
        first = one.first_token
        cells = (
            one.name,
            str(one.queued),
            seconds(one.wait_s or None),
            str(one.in_flight),
            rate(one.requests_per_s),
            rate(one.refused_per_s),
            rate(one.tokens_per_s),
            seconds(first.p50_s),
            seconds(first.p99_s),
        )
        lines.append(Text(_row(cells, (name, *CLASSES_WIDTH), width)))
    if len(shown) < len(classes) and most > 1:
        lines.append(Text(f"  and {len(classes) - len(shown)} more", "dim"))
    return lines


def _replicas(top: Top, width: int, *, selected: str, most: int) -> list[Text]:
    """The head and `most` rows at most, those around the one that is selected."""
    fixed = sum(REPLICAS_WIDTH) + len(REPLICAS_WIDTH)
    longest = max((cell_len(one.id) for one in top.replicas), default=0) + 2
    names = [one.name for one in top.sums.classes]
    counts_width = [max(CLASS_LEAST, min(CLASS_MOST, cell_len(one))) for one in names]
    if fixed + longest + sum(counts_width) + len(names) > width:
        names = names[: max(0, (width - fixed - NAME_LEAST) // (CLASS_LEAST + 1))]
        counts_width = [CLASS_LEAST for _ in names]
    name = max(NAME_LEAST, min(longest, width - fixed - sum(counts_width) - len(names)))
    widths = (name, *REPLICAS_WIDTH, *counts_width)
    heads = (
        set_cell_size(_clean(one), min(size, cell_len(one))) for one, size in zip(names, counts_width, strict=True)
    )
    lines = [Text(_row(("  replica", *REPLICAS_HEAD, *heads), widths, width), HEAD)]
    position = next((number for number, one in enumerate(top.replicas) if one.id == selected), 0)
    begin = max(0, min(position - most // 2, len(top.replicas) - most))
    for one in top.replicas[begin : begin + most]:
        mark = "> " if one.id == selected else "  "
        counts = (str(one.seen.by_class.get(klass, 0) or "") for klass in names)
        cells = (mark + one.id, *_replica(one), *counts)
        lines.append(Text(_row(cells, widths, width), _style(one, chosen=one.id == selected)))
    if not top.replicas:
        lines.append(Text("  none yet", "dim"))
    return lines


def _replica(one: TopReplica) -> tuple[str, ...]:
    seen = one.seen
    limit = one.limit_set if one.limit_set is not None else seen.limit
    return (
        "out" if seen.health and one.state is ReplicaState.READY else one.state,
        f"{seen.in_flight}/{'-' if limit is None else limit}{'*' if one.limit_set is not None else ''}",
        _told(seen.running),
        _told(seen.waiting),
        "" if seen.kv_usage is None else f"{seen.kv_usage:.0%}",
        rate(seen.requests_per_s),
        rate(seen.failures_per_s),
    )


def _style(one: TopReplica, *, chosen: bool) -> str:
    bad = one.seen.health or one.state in {ReplicaState.FAILED, ReplicaState.STUCK}
    colour = "red" if bad else "yellow" if one.state is not ReplicaState.READY else ""
    return f"{colour} reverse".strip() if chosen else colour


def _about(top: Top, selected: str) -> str:
    """More of the replica that is selected."""
    one = next((one for one in top.replicas if one.id == selected), None)
    if one is None:
        return ""
    parts = [f"{one.id}: {one.model}, {one.engine}"]
    parts += [f"process {one.pid}"] if one.pid else []
    parts += [mib(one.memory_bytes)] if one.memory_bytes else []
    parts += [f"{one.slots} slots"] if one.slots else []
    parts += ["drained by hand"] if one.drained else []
    parts += [f"{one.restarts} restarts"] if one.restarts else []
    parts += [f"not asked: {', '.join(one.seen.health)}"] if one.seen.health else []
    parts += [one.cause] if one.cause else []
    return ", ".join(parts)


def rate(per_s: float) -> str:
    """`0`, `0.4`, `12.3`, `345`, `12k`."""
    if per_s >= 10_000:
        return f"{per_s / 1000:.0f}k"
    if per_s >= 100:
        return f"{per_s:.0f}"
    return f"{per_s:.1f}" if per_s >= 0.05 else "0"


def seconds(value: float | None) -> str:
    """`85 ms`, `1.25 s`, `31 s`; `-` where it is not known."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.0f} s"


def _told(value: int | None) -> str:
    return "" if value is None else str(value)


def _row(cells: Sequence[str], widths: Sequence[int], width: int) -> str:
    """The first cell to the left, the others to the right, one column apart."""
    parts = [set_cell_size(_cut(cells[0], widths[0]), widths[0])]
    for cell, size in zip(cells[1:], widths[1:], strict=True):
        fitted = _cut(cell, size)
        parts.append(" " * (size - cell_len(fitted)) + fitted)
    return _cut(" ".join(parts), width)


def _cut(text: str, width: int) -> str:
    text = _clean(text)
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def _clean(text: str) -> str:
    """An engine's words may hold anything, and nothing of it may steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
