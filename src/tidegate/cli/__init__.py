"""The command line: one file a command, and the only place where the parts are put together.

Each module of COMMANDS has a `typer.Typer` named `app`. Only the command asked for is imported, so that
`tidegate status` never pays for the engines.
"""

import difflib
import errno
import importlib
import io
import os
import sys

import typer.main

from tidegate import __version__
from tidegate.errors import OperatorError

COMMANDS = {
    "up": "start everything on this machine",
    "gateway": "a gateway alone, in front of engines that run already",
    "status": "what runs, and how it is",
    "top": "requests, queues, limits and engines, live",
    "scale": "give a pool more or fewer replicas",
    "reload": "show what changed in the settings, and apply it",
    "init": "write a short settings file from what is found here",
    "check-config": "explain the settings, or what is wrong with them",
    "keys": "create, list, revoke and rotate clients' keys",
    "usage": "requests and tokens used, by tenant, class, model and day",
    "report": "load, targets, limits, lengths and costs of the week, with advice",
    "models": "list, pull, verify and remove models",
    "engines": "install, list and remove engines",
    "bundle": "pack wheels and models for a machine without a network",
    "bench": "load against any OpenAI server, and what it shows",
    "tune": "search an engine's settings for the most goodput, and prove what it found",
    "doctor": "look for faults, each with what to do",
    "fake-engine": "an engine without a model, with faults on demand",
}

DISK = "look at the disk (`df -h`, `mount`); `tidegate doctor` looks too"
FILES = "the limit of open files is too low: raise it with `ulimit -n`"
OWNER = "does it belong to another user? TIDEGATE_HOME names a data folder of yours"
HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO), DISK),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), FILES),
    **dict.fromkeys((errno.EACCES, errno.EPERM), OWNER),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "the machine is short of memory or processes"),
}
"""What to do about the ends of a machine, wherever they strike: one message, and no traceback."""

USAGE = (
    "Usage: tidegate COMMAND [OPTIONS]\n\n"
    "Takes a small language model into production on the machines a team already has.\n\nCommands:\n"
    + "".join(f"  {name:<14}{what}\n" for name, what in COMMANDS.items())
    + "\n`tidegate COMMAND --help` tells the options of one."
)


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit. An operator's error is one message and exit code 2, never a traceback."""
    mend_streams()
    arguments = sys.argv[1:] if argv is None else argv
    name = arguments[0] if arguments else "--help"
    if name in {"-h", "--help", "help"}:
        print(USAGE)
        sys.exit(0)
    if name in {"-V", "--version"}:
        print(f"tidegate {__version__}")
        sys.exit(0)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        print(f"tidegate: there is no command {name!r}", file=sys.stderr)
        print(f"  did you mean {near[0]!r}?" if near else "  `tidegate --help` lists them", file=sys.stderr)
        sys.exit(2)
    command = typer.main.get_command(importlib.import_module(f"tidegate.cli.{name.replace('-', '_')}").app)
    try:
        command(arguments[1:], prog_name=f"tidegate {name}")
    except OperatorError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in HINTS:
            raise
        print(f"tidegate: {error.strerror}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        print(f"  {HINTS[error.errno]}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)  # 128 + SIGINT, as shells say it


def mend_streams() -> None:
    """Whatever the three standard streams were given as, they can be written to.

    A closed one becomes /dev/null, so that no socket or database gets its number; what a terminal's encoding lacks is
    written as an escape.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is this one
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
