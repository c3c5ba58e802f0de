"""A report as one HTML page that needs nothing else: no script, no file, no network."""

from html import escape
from typing import Final

from tidegate.bench import text
from tidegate.bench.results import Report, Run
from tidegate.bench.svg import Points, chart

MOST_LINES: Final = 8
"""In a plot: of more runs the first ones."""
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#212529;max-width:860px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.15em .8em;border-bottom:1px solid #dee2e6;text-align:right}
td:first-child,th:first-child{text-align:left}code{background:#f1f3f5;padding:.1em .3em;overflow-wrap:anywhere}
svg{width:100%;height:auto;margin:1em 0;font:12px system-ui,sans-serif;fill:#212529}
svg .title{font-weight:bold;font-size:14px}svg .grid{stroke:#dee2e6}svg .mark{stroke:#212529;stroke-dasharray:5 4}
.wide{overflow-x:auto}
"""


def page(report: Report) -> str:
    """The whole document."""
    parts = [f"<p>{escape(line)}</p>" for line in text.heading(report)]
    parts.append(f"<p><code>{escape(report.command)}</code></p>")
    parts += [f"<p>{escape(sentence)}</p>" for sentence in text.sentences(report)]
    names = [one.name + (" (partial)" if one.partial else "") for one in report.runs]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in text.rows(report)
    )
    parts.append(f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>')
    repeats = text.repeats(report)
    if repeats:
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in repeats)
        parts.append(f"<h2>Over the repeats</h2><table><tr><th>run<th>figure<th>mean (95 %)</tr>{body}</table>")
    parts += plots(report)
    return document(f"Load on {report.model}", parts)


def document(title: str, parts: list[str]) -> str:
    """A whole page of these parts, which are markup already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def plots(report: Report) -> list[str]:
    """Distributions, throughput against latency where several rates were run, and the last run's time line."""
    runs = report.runs[:MOST_LINES]
    found = []
    for what in ("latency", "first token", "time per output token"):
        series = [(one.name, _distribution(one.curves[what])) for one in runs if what in one.curves]
        if series:
            found.append(chart(f"Distribution of {what}", series, across="share of the answers, %", up="ms"))
    if len({one.name for one in report.runs}) > 1:
        found.append(_against(report.runs))
    if report.runs:
        found += _time_line(report.runs[-1])
    return found


def _distribution(quantiles: list[float]) -> Points:
    return [(100 * place / (len(quantiles) - 1), value * 1000) for place, value in enumerate(quantiles)]


def _against(runs: list[Run]) -> str:
    ordered = sorted((one for one in runs if one.latency_s), key=lambda one: one.queries_per_s)
    series: list[tuple[str, Points]] = [
        (
            name,
            [
                (one.queries_per_s, pick * 1000)
                for one in ordered
                if one.latency_s and (pick := getattr(one.latency_s, key))
            ],
        )
        for name, key in (("P50", "p50"), ("P99", "p99"))
    ]
    return chart("Latency against throughput", series, across="answers a second", up="ms")


def _time_line(one: Run) -> list[str]:
    line = one.time_line
    rates: list[tuple[str, Points]] = [
        ("sent", [(second.at_s, second.sent_per_s) for second in line]),
        ("answered", [(second.at_s, second.answered_per_s) for second in line]),
        ("failed", [(second.at_s, second.failed_per_s) for second in line]),
    ]
    times: list[tuple[str, Points]] = [
        ("P50", [(second.at_s, _ms(second.p50_s)) for second in line]),
        ("P99", [(second.at_s, _ms(second.p99_s)) for second in line]),
    ]
    return [
        chart(f"Time line of {one.name}: requests", rates, across="seconds", up="1/s"),
        chart(f"Time line of {one.name}: latency of what ended", times, across="seconds", up="ms"),
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
