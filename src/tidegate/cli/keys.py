"""`tidegate keys`: create, list, revoke, rotate. They work on the store; what runs sees a change within a second."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from tidegate.config import Settings
from tidegate.errors import OperatorError
from tidegate.store import KeyStore, StoredKey
from tidegate.types import KeyView

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create, list, revoke and rotate clients' keys.")

Name = Annotated[str, typer.Argument(help="The key's name.")]
Config = Annotated[Path | None, typer.Option(help="Settings file.")]
UNITS_S: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
GIVEN_KEY: Final = re.compile(r"[\x21-\x7e]{16,256}")
"""What a client can send in a header, and nobody guesses."""


@contextmanager
def key_store(config: Path | None) -> Iterator[tuple[KeyStore, Settings]]:
    """The keys of the data folder that the settings or the environment name."""
    from tidegate.cli.parts import Store
    from tidegate.config import find_file, load
    from tidegate.home import find_home

    settings = load(find_file(config, find_home().path))
    home = find_home(settings.store.home)
    home.create()
    store = Store.open(settings, home)
    try:
        yield KeyStore(store.database), settings
    finally:
        store.close()


@app.command()
def create(  # noqa: PLR0917 - typer reads flags, which have no position
    name: Annotated[str, typer.Option(help="What the key is called; free again once the key is revoked.")],
    tenant: Annotated[str, typer.Option(help="Who owns it: usage is counted by tenant.")] = "default",
    stdin: Annotated[bool, typer.Option("--stdin", help="Take the key from standard input.")] = False,
    expires: Annotated[
        str | None, typer.Option(help="30d, 12h …, or the last day it opens anything (2027-12-31, UTC).")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="A model it may ask for; repeatable. Default: all.")] = None,
    klass: Annotated[
        list[str] | None,
        typer.Option("--class", help="A class it may ask for; repeatable. Default: the built-in ones."),
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Most requests a minute.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most tokens a minute, prompt and answer.")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="Most tokens a day (UTC).")] = None,
    streams: Annotated[int | None, typer.Option(help="Most answers at once, streams or not.")] = None,
    service: Annotated[
        bool, typer.Option("--service", help="May speak for other tenants and users, and set their class.")
    ] = False,
    config: Config = None,
) -> None:
    """Make a key. It goes to stdout, once: only its SHA-256 is kept."""
    with key_store(config) as (store, settings):
        _check_classes(klass or [], [one.name for one in settings.policy().classes])
        given = _read_key() if stdin else None
        first = not (service or store.required())
        secret, view = store.create(
            name,
            tenant,
            service=service,
            expires_at_s=None if expires is None else expiry(expires, time.time()),
            secret=given,
            models=model or (),
            classes=klass or (),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            tokens_per_day=tokens_per_day,
            concurrent_streams=streams,
        )
    if given is None:
        print(secret, flush=True)
        print(f"key {view.name!r} of tenant {view.tenant!r}: copy it now, only its SHA-256 is kept", file=sys.stderr)
    else:
        print(f"key {view.name!r} of tenant {view.tenant!r}: only its SHA-256 is kept", file=sys.stderr)
    if first:
        print("from now on every request needs a key, on this machine too", file=sys.stderr)


def _check_classes(names: list[str], known: list[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = f"there are: {', '.join(known)}; another one is made by a [[class]] in the settings"
        raise OperatorError(f"there is no class {unknown[0]!r}", hint=hint)


def _read_key() -> str:
    if sys.stdin.isatty():
        print("the key, then Enter: ", end="", file=sys.stderr, flush=True)
    given = sys.stdin.readline(1024).strip()
    if not GIVEN_KEY.fullmatch(given):
        raise OperatorError(
            f"what came on standard input cannot be a key ({len(given)} characters)",
            hint="16 to 256 printable ASCII characters, without spaces, in one line",
        )
    return given


def expiry(text: str, now_s: float) -> float:
    """When a key expires, Unix seconds: `30d` from now, or the end of a day. Raises OperatorError."""
    span = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    if span:
        return now_s + int(span[1]) * UNITS_S[span[2]]
    try:
        day = datetime.strptime(text.strip(), "%Y-%m-%d").replace(tzinfo=UTC)
        return (day + timedelta(days=1)).timestamp()
    except (ValueError, OverflowError):
        raise OperatorError(
            f"--expires: {text!r} is neither a time from now nor a day", hint="as in 30d, 12h, 8w or 2027-12-31"
        ) from None


@app.command("list")
def list_keys(
    everything: Annotated[bool, typer.Option("--all", help="Those revoked or expired too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list.")] = False,
    config: Config = None,
) -> None:
    """Show the keys: names, tenants, what they allow. Never the keys themselves."""
    with key_store(config) as (store, _):
        stored = store.stored()
    now_s = time.time()
    shown = [one for one in stored if everything or one.state(now_s) == "live"]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode([_row(one, now_s) for one in shown])).decode())
        return
    if not shown:
        print("there are no keys" if not stored else "there are no keys that open anything", file=sys.stderr)
        return
    print(f"{'NAME':<20} {'TENANT':<16} {'STATE':<8} {'EXPIRES':<17} ALLOWS")
    for one in shown:
        view = one.view
        print(f"{view.name:<20} {view.tenant:<16} {one.state(now_s):<8} {_day(view.expires_at_s):<17} {_allows(view)}")


def _row(one: StoredKey, now_s: float) -> dict[str, object]:
    fields = {name: value for name, value in msgspec.structs.asdict(one.view).items() if name != "digest"}
    history = {"created_at_s": one.created_at_s, "revoked_at_s": one.revoked_at_s}
    return {**fields, **history, "state": one.state(now_s)}


def _day(time_s: float | None) -> str:
    return "never" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%MZ")


def _allows(view: KeyView) -> str:
    quotas = (
        (view.requests_per_minute, "requests/min"),
        (view.tokens_per_minute, "tokens/min"),
        (view.tokens_per_day, "tokens/day"),
        (view.concurrent_streams, "at once"),
    )
    parts = ["any tenant and user"] if view.service else []
    parts += [f"models {', '.join(view.models)}"] if view.models else []
    parts += [f"classes {', '.join(view.classes)}"] if view.classes else []
    parts += [f"{limit:,} {unit}" for limit, unit in quotas if limit is not None]
    return "; ".join(parts) or "everything"


@app.command()
def revoke(name: Name, config: Config = None) -> None:
    """End a key for good, within a second everywhere. Its name is free again."""
    with key_store(config) as (store, _):
        view = store.revoke(name)
    print(f"key {view.name!r} of tenant {view.tenant!r} opens nothing any more", file=sys.stderr)


@app.command()
def rotate(name: Name, config: Config = None) -> None:
    """A new key in place of the old one, which dies within a second; it goes to stdout, once."""
    with key_store(config) as (store, _):
        secret, view = store.rotate(name)
    print(secret, flush=True)
    print(f"key {view.name!r} has a new secret: copy it now; the old one opens nothing any more", file=sys.stderr)
