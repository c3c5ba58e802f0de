"""What pip says, in plain words. Pure."""

import re
from collections.abc import Sequence
from typing import Final

LARGE: Final = re.compile(r"^\s*Downloading (\S+?)(?:\.metadata)? \((\d[\d.]*) (MB|GB)\)")
LARGE_MB: Final = 20.0
NO_VERSION: Final = re.compile(
    r"Could not find a version that satisfies the requirement (?P<what>[^(]+?)(?: \(from (?P<by>[^)]*)\))?"
    r" \(from versions: (?P<there>[^)]*)\)"
)
NO_MATCH: Final = re.compile(r"No matching distribution found for (?P<what>.+)")
CONFLICT: Final = re.compile(
    r"Cannot install (?P<what>.+?) because these package versions have conflicting dependencies"
)
OFFLINE: Final = re.compile(
    r"NewConnectionError|Max retries exceeded|ConnectTimeoutError|Read timed out|ProxyError|Connection refused|"
    r"Temporary failure in name resolution|Network is unreachable"
)
TORCH_CPU: Final = (
    "an ordinary index has no CPU build of torch: name PyTorch's own index for CPUs with --pip-arg=--extra-index-url=URL, "
    "or a folder that holds the wheel with --pip-arg=--find-links=FOLDER"
)
SETTINGS: Final = "pip is asked with your own settings (`pip config list`, PIP_* variables, engines.pip_args)"


def progress(line: str) -> str:
    """What is worth telling of a line of pip's, as it comes; empty for most."""
    found = LARGE.match(line)
    if found is not None and (found[3] == "GB" or float(found[2]) >= LARGE_MB):
        return f"downloading {found[1].rsplit('/', 1)[-1]} ({found[2]} {found[3]})"
    return "unpacking" if line.startswith("Installing collected packages") else ""


def why(said: Sequence[str]) -> tuple[str, str]:
    """Why pip gave up, and what to do."""
    text = "".join(said)
    if "No space left on device" in text:
        return "the disk is full", "free some space (`df -h`), and try again"
    missing = NO_VERSION.search(text)
    if missing is not None:
        return _missing(missing, offline=OFFLINE.search(text) is not None)
    if (unmatched := NO_MATCH.search(text)) is not None:
        return f"there is no {unmatched['what'].strip()}", SETTINGS
    if (conflict := CONFLICT.search(text)) is not None:
        return (
            f"{conflict['what']} ask for versions that exclude one another",
            "--unpinned lets pip choose other versions than those tried here; look at --pip-arg and PIP_CONSTRAINT too",
        )
    if OFFLINE.search(text):
        return (
            "the package index cannot be reached",
            f"{SETTINGS}; without a network: `tidegate bundle` elsewhere, --from here",
        )
    errors = [line.strip().removeprefix("ERROR: ") for line in said if line.startswith("ERROR")]
    last = [line.strip() for line in said if line.strip()]
    return (errors or last or ["it said nothing"])[-1], SETTINGS


def _missing(found: re.Match[str], *, offline: bool) -> tuple[str, str]:
    what, by, there = found["what"].strip(), found["by"] or "", found["there"]
    asked = f", which {by.split('->')[-1].strip()} needs" if by and not by.startswith("-") else ""
    if offline and there in {"", "none"}:
        return (
            "the package index cannot be reached",
            f"{SETTINGS}; without a network: `tidegate bundle` elsewhere, --from here",
        )
    versions = ", ".join(there.split(", ")[-5:]) if there not in {"", "none"} else "none"
    hint = TORCH_CPU if what.startswith("torch==") and what.endswith("+cpu") else SETTINGS
    return f"there is no {what}{asked}; there are: {versions}", hint
