"""Plots as SVG, written by hand: lines over an axis. Pure."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float | None]]
"""None where there is nothing: the line is broken."""

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 40, 44
COLOURS: Final = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#1971c2", "#868e96", "#f08c00")


def chart(
    title: str, series: Sequence[tuple[str, Points]], *, across: str, up: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """One plot with a legend. `marks` are horizontal lines with words."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points if y is not None] + [at for at, _ in marks]
    most_x, most_y = max([*xs, 1e-9]), max([*ys, 1e-9]) * 1.05
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place_x(x: float) -> float:
        return LEFT + (right - LEFT) * x / most_x

    def place_y(y: float) -> float:
        return bottom - (bottom - TOP) * y / most_y

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>',
    ]
    for tick in _ticks(most_y):
        y = place_y(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [
        f'<text x="{place_x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(most_x)
    ]
    for at, words in marks:
        y = place_y(at)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="mark"/>')
        parts.append(f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end">{escape(words)}</text>')
    for number, (_, points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _line(points, colour, place_x, place_y)
    parts += _legend([name for name, _ in series])
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">{escape(up)}</text>')
    return "\n".join([*parts, "</svg>"])


def _line(
    points: Points, colour: str, place_x: Callable[[float], float], place_y: Callable[[float], float]
) -> list[str]:
    runs: list[list[str]] = [[]]
    dots = []
    for x, y in points:
        if y is None:
            runs.append([])
            continue
        runs[-1].append(f"{place_x(x):.1f},{place_y(y):.1f}")
        if len(points) <= 30:
            dots.append(f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3" fill="{colour}"/>')
    lines = [
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="2"/>' for run in runs if run
    ]
    return lines + dots


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], float(WIDTH - RIGHT)
    for number, name in reversed(list(enumerate(names))):
        x -= 7 * len(name) + 22
        parts.append(f'<rect x="{x:.1f}" y="20" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14:.1f}" y="29">{escape(name)}</text>')
    return parts


def _ticks(most: float) -> list[float]:
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * base for base in (1, 2, 2.5, 5, 10) if power * base >= rough * 0.999)
    return [float(f"{step * number:.12g}") for number in range(int(most / step + 1e-9) + 1)]
