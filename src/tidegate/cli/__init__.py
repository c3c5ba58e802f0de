"""The command line: one file a command, and the only place where the parts are put together.

Commands are imported when they are asked for, so that `tidegate status` never pays for the chat page.
"""

import importlib
import sys

import click
import typer.main

from tidegate import __version__
from tidegate.errors import OperatorError

COMMANDS = {
    "up": "start everything on this machine",
    "gateway": "a gateway alone, in front of engines that run already",
    "status": "what runs, and how it is",
    "reload": "show what changed in the settings, and apply it",
    "init": "write a short settings file from what is found here",
    "check-config": "explain the settings, or what is wrong with them",
    "models": "list, pull, verify and remove models",
    "doctor": "look for faults, each with what to do",
    "fake-engine": "an engine without a model, with faults on demand",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tidegate.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tidegate")
def cli() -> None:
    """Tidegate takes a small language model into production on the machines a team already has."""


def main() -> None:
    """Run a command. An operator's error is one message and exit code 2, never a traceback."""
    try:
        cli(standalone_mode=True)
    except OperatorError as error:
        print(f"tidegate: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
