"""Which processes have a model open: engines map its file or name it on their command line (Linux)."""

from pathlib import Path

PROC = Path("/proc")


def users_of(path: Path, proc: Path = PROC) -> list[int]:
    """Process ids that have `path` (a file, or anything in a folder) mapped or on their command line."""
    wanted = str(path.resolve()).encode()
    found = []
    for process in proc.glob("[0-9]*"):
        try:
            if wanted in (process / "cmdline").read_bytes() or wanted in (process / "maps").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it ended, or belongs to somebody else
    return sorted(found)
