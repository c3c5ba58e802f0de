"""A report as text, as Markdown, and as one HTML page that needs nothing else. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from tidegate.bench.page import document
from tidegate.bench.svg import chart
from tidegate.control.report.chapters import Chapter, Report


def heading(report: Report) -> list[str]:
    """What it is about; `partial` first, where it is."""
    lines = [
        f"{_time(report.since_s)} to {_time(report.until_s)} UTC, {report.requests:,} requests, from {report.source}"
    ]
    if report.partial:
        lines.insert(0, f"PARTIAL: {'; '.join(report.partial)}")
    return lines


def text(report: Report) -> str:
    """For a terminal."""
    parts = ["\n".join(heading(report))]
    for chapter in report.chapters:
        lines = [chapter.subject.upper(), f"  {chapter.text}", *_table(chapter), f"  -> {chapter.advice}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def markdown(report: Report) -> str:
    """For a ticket or a wiki."""
    parts = ["# Report of the load", *heading(report)]
    for chapter in report.chapters:
        parts += [f"## {chapter.subject.capitalize()}", chapter.text]
        if chapter.rows:
            rows = (chapter.head, ("---",) * len(chapter.head), *chapter.rows)
            parts.append(
                "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
            )
        parts.append(f"**Advice:** {chapter.advice}.")
    return "\n\n".join(parts) + "\n"


def html(report: Report) -> str:
    """For a browser."""
    parts = [f"<p>{escape(line)}</p>" for line in heading(report)]
    for chapter in report.chapters:
        parts += [f"<h2>{escape(chapter.subject.capitalize())}</h2><p>{escape(chapter.text)}</p>"]
        parts += _plot(chapter)
        if chapter.rows:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in chapter.head)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in chapter.rows)
            parts.append(f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>')
        parts.append(f"<p><b>Advice:</b> {escape(chapter.advice)}.</p>")
    return document("Report of the load", parts)


def _plot(chapter: Chapter) -> Iterator[str]:
    prefix = "requests_per_s."
    hours = [
        (float(name.removeprefix(prefix)), rate) for name, rate in chapter.figures.items() if name.startswith(prefix)
    ]
    if len(hours) > 1:
        yield chart("Requests by hour of the day", [("requests", sorted(hours))], across="hour (UTC)", up="1/s")


def _table(chapter: Chapter) -> Iterator[str]:
    rows = (chapter.head, *chapter.rows) if chapter.rows else ()
    widths = [max(len(row[place]) for row in rows) for place in range(len(chapter.head))] if rows else []
    for row in rows:
        cells = [
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"    {'  '.join(cells)}".rstrip()


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
