"""`tidegate top`: what runs, live, with keys to change a replica's limit and to drain it. Exit code 1 when nothing runs."""

import signal
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final, NoReturn
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tidegate.cli import keyboard
from tidegate.cli.admin import ask, running
from tidegate.cli.data_folder import data_folder
from tidegate.cli.top_screen import printed, screen
from tidegate.control.state import AdminAddress, read_admin
from tidegate.control.steering import Top, TopReplica
from tidegate.errors import OperatorError

app = typer.Typer(add_completion=False)
REFRESH_S: Final = 1.0
"""Gateways report once a second."""
PATIENCE_S: Final = 2.0
"""Keys wait no longer than that for a control process that says nothing."""
LEAST_WIDTH: Final = 80


@app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print it once and end, as it also does where it is no terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: what /admin/v1/top answers, once.")] = False,
) -> None:
    """Show requests, queues, limits and engines, live.

    Keys: up and down choose a replica, + and - change its limit, a gives it back to the limiter, d drains it or gives it
    work again, q quits.
    """
    address = running()
    if address is None:
        print('{"running": false}' if as_json else "Tidegate is not running here; `tidegate up` starts it.")
        raise typer.Exit(1)
    if as_json:
        sys.stdout.write(ask(address, "GET", "/admin/v1/top").decode() + "\n")
        return
    console = Console(highlight=False)
    if once or not (sys.stdout.isatty() and sys.stdin.isatty()) or console.is_dumb_terminal:
        console.width = max(console.width, LEAST_WIDTH)
        for line in printed(_read(address), width=console.width):
            console.print(line, soft_wrap=True)
        return
    signal.signal(signal.SIGTERM, _end)  # so that the terminal is left as it was
    Session(address, sys.stdin.fileno()).run(console)


class Session:
    """One live view of a control process, and of the one that takes over when it ends."""

    def __init__(self, address: AdminAddress, terminal: int) -> None:
        self._address, self._terminal = address, terminal
        self._top = _read(address)
        self._selected = self._top.replicas[0].id if self._top.replicas else ""
        self._note = self._trouble = ""
        self._acts: dict[str, Callable[[TopReplica], str]] = {
            "+": lambda one: self._change_limit(one, 1),
            "=": lambda one: self._change_limit(one, 1),
            "-": lambda one: self._change_limit(one, -1),
            "a": self._automatic,
            "d": self._drain,
        }

    def run(self, console: Console) -> None:
        """Until `q`, or the end of the terminal."""
        with (
            keyboard.raw_keys(self._terminal),
            Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            due = time.monotonic() + REFRESH_S
            while True:
                width, height = console.size
                lines = screen(
                    self._top,
                    width=width,
                    height=height,
                    selected=self._selected,
                    note=self._note,
                    trouble=self._trouble,
                )
                live.update(Text("\n").join(lines), refresh=True)
                keys = keyboard.pressed(self._terminal, due - time.monotonic())
                for key in keys:
                    if key in {"q", keyboard.END}:
                        return
                    self._press(key)
                if time.monotonic() >= due:
                    self._refresh()
                    due = time.monotonic() + REFRESH_S

    def _press(self, key: str) -> None:
        names = [one.id for one in self._top.replicas]
        if not names:
            return
        self._note = ""
        position = names.index(self._selected) if self._selected in names else 0
        if key in {"up", "k"}:
            self._selected = names[max(0, position - 1)]
        elif key in {"down", "j"}:
            self._selected = names[min(len(names) - 1, position + 1)]
        elif key in self._acts:
            try:
                self._note = self._acts[key](self._top.replicas[position])
            except OperatorError as error:
                self._note = str(error)
            self._refresh()

    def _refresh(self) -> None:
        try:
            self._top, self._trouble = _read(self._address, PATIENCE_S), ""
        except OperatorError as error:
            self._trouble = str(error)
            self._address = read_admin(data_folder()) or self._address  # a control that took over has another token
        names = [one.id for one in self._top.replicas]
        if self._selected not in names:
            self._selected = names[0] if names else ""

    def _change_limit(self, one: TopReplica, by: int) -> str:
        now = next((known for known in (one.limit_set, one.seen.limit, one.slots) if known), one.seen.in_flight)
        if now + by < 1:
            return f"{one.id}: 1 is the least limit; d drains it"
        self._ask("PUT", f"/limits/{quote(one.id, safe='')}", {"sequences": now + by})
        return f"{one.id}: limit {now + by}, set by hand; a gives it back to the limiter"

    def _automatic(self, one: TopReplica) -> str:
        self._ask("DELETE", f"/limits/{quote(one.id, safe='')}")
        return f"{one.id}: the limiter decides"

    def _drain(self, one: TopReplica) -> str:
        self._ask("DELETE" if one.drained else "POST", f"/replicas/{quote(one.id, safe='')}/drain")
        return f"{one.id}: gets work again" if one.drained else f"{one.id}: finishes what it has, and gets nothing new"

    def _ask(self, method: str, path: str, body: dict[str, int] | None = None) -> None:
        ask(self._address, method, f"/admin/v1{path}", body, timeout_s=PATIENCE_S)


def _read(address: AdminAddress, timeout_s: float = 10.0) -> Top:
    body = ask(address, "GET", "/admin/v1/top", timeout_s=timeout_s)
    try:
        return msgspec.json.decode(body, type=Top)
    except msgspec.DecodeError as error:
        raise OperatorError(
            f"the control process {address.pid} answers what this command cannot read: {error}",
            hint="is it of another version? restart `tidegate up`",
        ) from None


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)
