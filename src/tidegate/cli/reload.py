"""`tidegate reload`: shows what changed in the settings, and applies it to what runs."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from tidegate.cli.admin import ask, running
from tidegate.control.reload import Change, Effect, ReloadAnswer
from tidegate.errors import OperatorError, SettingError

app = typer.Typer(add_completion=False)

EFFECTS = {
    Effect.LIVE: "at once",
    Effect.REPLICAS: "replicas are started, stopped or replaced",
    Effect.RESTART: "needs a restart of `tidegate up`",
}


@app.command()
def reload(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the differences and change nothing.")] = False,
    gateways: Annotated[
        bool,
        typer.Option(
            "--gateways",
            help="Replace the gateway processes one by one, no connection lost (new code, new certificate).",
        ),
    ] = False,
) -> None:
    """Read the settings again, with the flags and the environment that `up` was started with."""
    if dry_run and gateways:
        raise SettingError(
            "--gateways", "replaces processes, and --dry-run changes nothing", hint="leave out one of them"
        )
    address = running()
    if address is None:
        raise OperatorError(
            "Tidegate is not running here", hint="`tidegate up` starts it, with the settings as they are"
        )
    if gateways:
        replaced = msgspec.json.decode(ask(address, "POST", "/admin/v1/gateways/replace", {}, timeout_s=None))[
            "replaced"
        ]
        print(f"Replaced: {', '.join(replaced)}. What the old processes have begun, they finish.")
        return
    body = ask(address, "POST", "/admin/v1/reload", {"dry_run": dry_run}, timeout_s=None)
    answer = msgspec.json.decode(body, type=ReloadAnswer)
    print("\n".join(render(answer.changes, applied=answer.applied)))


def render(changes: Sequence[Change], *, applied: bool) -> list[str]:
    """The differences, and what became of them."""
    if not changes:
        return ["Nothing changed."]
    lines = [
        f"{change.setting}: {_show(change.old)} -> {_show(change.new)}   {EFFECTS[change.effect]}" for change in changes
    ]
    waiting = sum(change.effect is Effect.RESTART for change in changes)
    if applied:
        done = len(changes) - waiting
        lines.append(f"Applied {done} of {len(changes)}." if waiting else f"Applied {'it' if done == 1 else 'all'}.")
    if waiting:
        lines.append("The rest needs a restart: end `tidegate up` with Ctrl-C, and start it again.")
    return lines


def _show(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=False)
