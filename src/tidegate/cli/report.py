"""`tidegate report`: what the load was, how it was served, and one piece of advice on each."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from tidegate.errors import OperatorError

if TYPE_CHECKING:
    from tidegate.config import Settings
    from tidegate.control.report.chapters import Asked, Profile, Report
    from tidegate.control.report.samples import Sample
    from tidegate.home import Home

UNITS_S: Final = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
MOST_S: Final = 366 * 86_400.0
CHUNK_S: Final = 86_400.0
"""What is read at a time; what was read before an interruption is kept."""

app = typer.Typer(add_completion=False)


@app.command()
def report(  # noqa: PLR0917 - typer reads flags, which have no position
    since: Annotated[str, typer.Option(help="1h, 7d, 4w: so long before now.")] = "7d",
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus that has our metrics.")] = "",
    profile: Annotated[Path | None, typer.Option(help="A profile (JSON) to compare lengths and engines with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a ticket or a wiki.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="One page that needs nothing else.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file.")] = None,
) -> None:
    """Report on load, targets, limits, GPUs, lengths and costs. Ctrl-C keeps what was read so far."""
    from tidegate.config import find_file, load
    from tidegate.control.report import words
    from tidegate.control.report.making import make
    from tidegate.home import find_home

    if as_json + as_markdown + as_html > 1:
        raise OperatorError("--json, --markdown and --html are three forms of one report", hint="choose one")
    settings = load(find_file(config, find_home().path))
    home = find_home(settings.store.home)
    until_s = time.time()
    made = make(_asked(settings, home, until_s - span_s(since), until_s, prometheus, profile=_profile(profile)))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(made)).decode())
    else:
        sys.stdout.write((words.markdown if as_markdown else words.html if as_html else words.text)(made))
    _tell_empty(made, prometheus)


def span_s(since: str) -> float:
    """`7d` in seconds. Raises OperatorError."""
    found = re.fullmatch(r"([0-9]{1,4})([hdw])", since.strip())
    seconds = int(found[1]) * UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= MOST_S:
        raise OperatorError(f"--since: {since!r} is no time of up to a year", hint="as in 1h, 7d or 4w")
    return seconds


def _asked(
    settings: "Settings", home: "Home", since_s: float, until_s: float, prometheus: str, *, profile: "Profile | None"
) -> "Asked":
    from tidegate.control.report.chapters import Asked
    from tidegate.control.report.installed import installed
    from tidegate.control.report.prometheus import Prometheus
    from tidegate.control.report.ring import Ring

    samples: list[Sample] = []
    partial: list[str] = []
    broken = 0
    source = Prometheus(prometheus) if prometheus else None
    begin_s = since_s
    try:
        while begin_s < until_s:
            end_s = min(until_s, begin_s + CHUNK_S)
            if source is not None:
                samples += source.read(begin_s, end_s, until_s - since_s)
            else:
                read = Ring(home.samples).read(begin_s, end_s)
                samples += read.samples
                broken += read.broken
            begin_s = end_s
    except KeyboardInterrupt:
        partial.append(f"it was interrupted after {(begin_s - since_s) / UNITS_S['h']:.0f} h of the time were read")
    except OperatorError as error:
        if begin_s == since_s:
            raise
        partial.append(f"it ends early: {error}")
    except OSError as error:
        partial.append(f"samples cannot be read: {error.strerror or error}")
    if broken:
        partial.append(f"{broken} samples were cut short")
    return Asked(
        since_s,
        until_s,
        samples,
        settings.policy().classes,
        profile,
        installed(home),
        source.url if source is not None else str(home.samples),
        tuple(partial),
    )


def _profile(file: Path | None) -> "Profile | None":
    from tidegate.control.report.chapters import Profile

    if file is None:
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except OSError as error:
        raise OperatorError(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise OperatorError(f"{file} is no profile: {error}", hint="docs/report.md tells what one holds") from None


def _tell_empty(made: "Report", prometheus: str) -> None:
    if not made.covered:
        where = (
            "Prometheus has none of our metrics for that time" if prometheus else "there are no samples of that time"
        )
        print(f"{where}; `tidegate up` writes one a minute", file=sys.stderr)
