"""What the figures of overloads look like: medians of several runs, and their plots."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from load.plots import Panel, Series, draw
from load.steps import LOADS, SECONDS

Row = dict[str, Any]


def medians(rows: Sequence[Row]) -> list[Row]:
    """One row for each front and load: medians, of faults the most."""
    found: dict[tuple[float, str], list[Row]] = {}
    for one_row in rows:
        found.setdefault((one_row["load"], one_row["front"]), []).append(one_row)
    return [
        {
            key: value if isinstance(value, str) else (max if key == "faults" else median)([r[key] for r in group])
            for key, value in group[0].items()
        }
        for _, group in sorted(found.items(), key=lambda pair: pair[0][0])
    ]


def draw_loads(file: Path, rows: Sequence[Row], title: str, target_s: float, note: str) -> None:
    loads = sorted({one_row["load"] for one_row in rows})

    def groups(key: str, factor: float) -> list[tuple[str, list[tuple[str, float]]]]:
        return [
            (f"{load:g} x", [(one_row["front"], factor * one_row[key]) for one_row in rows if one_row["load"] == load])
            for load in loads
        ]

    panels = [
        Panel(
            f"interactive requests with a first token within {1e3 * target_s:.0f} ms",
            " %",
            groups=groups("in_time", 100),
            most=110,
        ),
        Panel(
            "their first token, 99th percentile of those served", " s", groups=groups("first_p99_s", 1), log_from=0.01
        ),
        Panel("tokens a second", "", groups=groups("tokens_per_s", 1)),
    ]
    draw(file, title, panels, note=note, across="load, as a multiple of what the engines can serve")


def draw_steps(file: Path, found: Mapping[str, Row], target_s: float, note: str) -> None:
    waits = [
        Series(name, [(r["second"] + 0.5, r["first_p99_s"]) for r in one_front["seconds"]])
        for name, one_front in found.items()
    ]
    up, down = SECONDS[0], SECONDS[0] + SECONDS[1]
    shaded = ((up, down, f"{LOADS[1]:g} times what can be served"),)
    marks = ((target_s, f"{1e3 * target_s:.0f} ms"),)
    panels = [
        Panel(
            "first token of interactive requests, 99th percentile of each second",
            " s",
            waits,
            log_from=0.02,
            marks=marks,
            shaded=shaded,
        )
    ]
    ours = found.get("tidegate")
    if ours is not None:
        samples = ours["samples"]
        refused = [(r["second"] + 0.5, r["refused"]) for r in ours["seconds"]]
        came = [(r["second"] + 0.5, r["came"]) for r in ours["seconds"]]
        counts = [Series("came", came, colour="#868e96"), Series("refused at once", refused, colour="#c2255c")]
        panels.append(Panel("interactive requests a second before tidegate", "", counts, shaded=shaded))
        limits = [
            Series(f"{what} {replica.rpartition('-')[2]}", list(zip(samples["at_s"], values, strict=False)), steps=True)
            for what, kept in (("limit", samples["limits"]), ("has", samples["running"]))
            for replica, values in kept.items()
        ]
        panels.append(Panel("tidegate: limit and requests of each replica", "", limits, shaded=shaded))
    draw(
        file, "A step of the load: 0.5, 3 and 0.5 times what two engines can serve", panels, note=note, across="seconds"
    )
