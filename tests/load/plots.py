"""Plots as SVG, written by hand: a few panels one above the other, lines or bars in them, and a legend."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, PANEL, GAP = 760, 190, 56
LEFT, RIGHT, TOP = 76, 16, 76
COLOURS = {"tidegate": "#0b7285", "nginx": "#e8590c", "direct": "#868e96"}
MORE_COLOURS = ("#5f3dc4", "#2b8a3e", "#c2255c", "#1971c2")
INK, GRID = "#212529", "#dee2e6"


@dataclass
class Series:
    """One line; None where there is nothing."""

    name: str
    values: Sequence[tuple[float, float | None]]
    colour: str = ""
    steps: bool = False
    """Values hold until the next one."""


@dataclass
class Panel:
    """One plot of several series over the same axis."""

    title: str
    unit: str
    series: Sequence[Series] = ()
    groups: Sequence[tuple[str, Sequence[tuple[str, float]]]] = ()
    """Bars instead of lines: groups of (name, value)."""
    most: float | None = None
    log_from: float | None = None
    """The axis is logarithmic, from here."""
    marks: Sequence[tuple[float, str]] = ()
    """Horizontal lines."""
    shaded: Sequence[tuple[float, float, str]] = field(default_factory=tuple)
    """Spans of the horizontal axis, each with its words."""


def colour(name: str, number: int) -> str:
    return COLOURS.get(name) or MORE_COLOURS[number % len(MORE_COLOURS)]


def draw(file: Path, title: str, panels: Sequence[Panel], *, note: str = "", across: str = "") -> None:
    """Write the file. `across` names the horizontal axis of the last panel, `note` stands under the title."""
    height = TOP + len(panels) * (PANEL + GAP)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 20, title, size=15, bold=True),
        _text(LEFT, 38, note, size=11),
    ]
    for number, panel in enumerate(panels):
        top = TOP + number * (PANEL + GAP)
        parts += _bars(panel, top) if panel.groups else _lines(panel, top)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, across, anchor="middle"))
    file.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(text)}</text>'


def _across(y: float, stroke: str, more: str = "") -> str:
    return f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{stroke}" {more}/>'


def _scale(panel: Panel, values: Sequence[float], top: float) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its height on the page, and where the axis has its marks."""
    most = panel.most or max([*values, *(at for at, _ in panel.marks), 1e-9]) * 1.08
    if panel.log_from is None:
        step = _round_step(most / 4)
        ticks = [step * number for number in range(int(most / step + 1e-9) + 1)]
        return lambda value: top + PANEL * (1 - min(value, most) / most), ticks
    least = panel.log_from
    span = math.log(most / least)
    ticks = [base * 10.0**power for power in range(-4, 5) for base in (1, 2, 5)]
    ticks = [tick for tick in ticks if least * 0.999 <= tick <= most]
    return lambda value: top + PANEL * (1 - math.log(min(max(value, least), most) / least) / span), ticks


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * base for base in (1, 2, 2.5, 5, 10) if power * base >= rough * 0.999)


def _frame(panel: Panel, top: float, height: Callable[[float], float], ticks: Sequence[float]) -> list[str]:
    right = WIDTH - RIGHT
    parts = [_text(LEFT, top - 8, panel.title, bold=True)]
    for tick in ticks:
        y = height(tick)
        parts += [
            _across(y, GRID),
            _text(LEFT - 6, y + 4, f"{tick:g}{panel.unit}", anchor="end", size=11),
        ]
    for at, words in panel.marks:
        y = height(at)
        parts += [
            _across(y, INK, 'stroke-dasharray="5 4"'),
            _text(right, y - 4, words, anchor="end", size=11),
        ]
    return parts


def _legend(names: Sequence[tuple[str, str]], top: float) -> list[str]:
    parts, x = [], float(WIDTH - RIGHT)
    for name, paint in reversed(names):
        x -= 6.5 * len(name) + 24
        parts += [
            f'<rect x="{x:.1f}" y="{top - 17:.1f}" width="10" height="10" fill="{paint}"/>',
            _text(x + 14, top - 8, name),
        ]
    return parts


def _lines(panel: Panel, top: float) -> list[str]:
    values = [value for one in panel.series for _, value in one.values if value is not None]
    height, ticks = _scale(panel, values, top)
    end = max((at for one in panel.series for at, _ in one.values), default=1.0)

    def across(at: float) -> float:
        return LEFT + (WIDTH - RIGHT - LEFT) * at / end

    parts = []
    for begin, until, words in panel.shaded:
        parts += [
            f'<rect x="{across(begin):.1f}" y="{top}" width="{across(until) - across(begin):.1f}" height="{PANEL}" fill="#fff3bf"/>',
            _text(across((begin + until) / 2), top + 14, words, anchor="middle", size=11),
        ]
    parts += _frame(panel, top, height, ticks)
    for number in range(0, int(end) + 1, 5):
        parts.append(_text(across(number), top + PANEL + 15, str(number), anchor="middle", size=11))
    names = []
    for number, one in enumerate(panel.series):
        paint = one.colour or colour(one.name, number)
        names.append((one.name, paint))
        parts += [
            f'<polyline points="{run}" fill="none" stroke="{paint}" stroke-width="2"/>'
            for run in _runs(one, across, height)
        ]
    return [*parts, *_legend(names, top)]


def _runs(one: Series, across: Callable[[float], float], height: Callable[[float], float]) -> list[str]:
    """The points of each unbroken stretch."""
    runs: list[list[str]] = [[]]
    before: float | None = None
    for at, value in one.values:
        if value is None:
            runs.append([])
        else:
            if one.steps and before is not None and runs[-1]:
                runs[-1].append(f"{across(at):.1f},{height(before):.1f}")
            runs[-1].append(f"{across(at):.1f},{height(value):.1f}")
        before = value
    return [" ".join(run * 2 if len(run) == 1 else run) for run in runs if run]


def _bars(panel: Panel, top: float) -> list[str]:
    height, ticks = _scale(panel, [value for _, bars in panel.groups for _, value in bars], top)
    parts = _frame(panel, top, height, ticks)
    names: dict[str, str] = {}
    width = (WIDTH - RIGHT - LEFT) / len(panel.groups)
    for place, (group, bars) in enumerate(panel.groups):
        bar = min(60.0, 0.8 * width / len(bars))
        x = LEFT + width * (place + 0.5) - bar * len(bars) / 2
        parts.append(_text(LEFT + width * (place + 0.5), top + PANEL + 15, group, anchor="middle"))
        for number, (name, value) in enumerate(bars):
            paint = names.setdefault(name, colour(name, number))
            y = height(value)
            parts += [
                f'<rect x="{x + number * bar:.1f}" y="{y:.1f}" width="{bar - 4:.1f}" height="{top + PANEL - y:.1f}" fill="{paint}"/>',
                _text(x + number * bar + bar / 2 - 2, y - 3, f"{value:.3g}", anchor="middle", size=10),
            ]
    return [*parts, *_legend(list(names.items()), top)]
