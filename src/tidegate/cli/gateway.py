"""`tidegate gateway`: one data process; alone in front of engines that run already, for control on another host, or as a
child of control.
"""

import asyncio
import os
import socket
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidegate import __version__, logs
from tidegate.config import Settings, find_file, is_loopback, load, split_address
from tidegate.control import ports
from tidegate.errors import OperatorError, SettingError
from tidegate.fleet.local import process_id
from tidegate.gateway.app import Gateway
from tidegate.gateway.link import Link
from tidegate.gateway.process import run
from tidegate.gateway.request_files import RequestFiles
from tidegate.gateway.shared_metrics import Shares, process_metrics
from tidegate.home import Home, find_home
from tidegate.http.tls import server_context
from tidegate.nvml import Watch
from tidegate.types import FleetSnapshot, Hello

FLEET_WAIT_S = 2.0
"""Longest wait of a data process for control's first word, before it serves without."""

FIRST_LOOK_S = 3.0
"""The same, for the first look at engines: who comes meanwhile waits, and is not told that there is no model."""


app = typer.Typer(add_completion=False)


@app.command()
def gateway(  # noqa: PLR0917 - typer reads flags, which have no position
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the data port.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="URL of an engine that runs already; repeatable.")] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Listen on more than this machine without a key.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file.")] = None,
    control: Annotated[
        str | None, typer.Option(help="URL of control's admin port: serve what it says, on another host than its own.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with control's gateway.token.")] = None,
    control_ca: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) of the authority to believe about control, for https.")
    ] = None,
    listen_fd: Annotated[int | None, typer.Option(hidden=True, help="The listening socket, inherited.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(hidden=True)] = None,
    tls_key: Annotated[Path | None, typer.Option(hidden=True)] = None,
    metrics: Annotated[
        Path | None, typer.Option(hidden=True, help="Where all data processes keep their metrics.")
    ] = None,
    await_fleet: Annotated[
        bool, typer.Option("--await-fleet", hidden=True, help="Serve once there is a fleet.")
    ] = False,
) -> None:
    """Serve the API in front of engines that run already: --engine URL, or the external pools of the settings file.

    With --control URL and --token-file FILE, what a control on another host says is served here.
    """
    if control is not None and listen_fd is not None:
        logs.configure_child()
        tls = server_context(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
        wait_s = FLEET_WAIT_S if await_fleet else 0.0
        raise typer.Exit(_serve_control(Path(control), socket.socket(fileno=listen_fd), tls, metrics, wait_s))
    if control is not None:
        raise typer.Exit(
            _serve_remote(
                control,
                token_file,
                control_ca,
                flags=_flags(listen, allow_anonymous=allow_anonymous),
                engines=engine or [],
                config=config,
            )
        )
    for flag, value in (("--token-file", token_file), ("--control-ca", control_ca)):
        if value is not None:
            raise SettingError(flag, "goes with --control URL")
    raise typer.Exit(_serve_alone(_settings(listen, engine or [], config, allow_anonymous=allow_anonymous)))


def _serve_control(
    path: Path, listening: socket.socket, tls: ssl.SSLContext | None, metrics: Path | None, fleet_wait_s: float
) -> int:
    process = process_id(os.getpid())
    host, _ = split_address(ports.address_of(listening))
    hello = Hello(process=process, listen=ports.address_of(listening), code_version=__version__)
    shares = Shares(metrics, process, aside=process_metrics().collect) if metrics is not None else None

    async def beside(served: Gateway) -> None:
        link = Link(path, hello, listening, apply=served.apply, report=served.report, unsent=served.unsent)
        try:
            async with asyncio.TaskGroup() as both:  # waits for the end of both: the last report has to leave
                both.create_task(link.run())
                if shares is not None:
                    both.create_task(shares.run(served.metrics.collect))
        finally:
            if lost := sum(one.requests for one in served.accounting.take_usage()):
                logs.get().error("control is away; what was used at the end is in no table", requests=lost)

    files = RequestFiles.below(find_home())
    snapshot = FleetSnapshot(number=0)
    make = partial(Gateway, snapshot, listen_host=host, process=process, files=files, shares=shares)
    try:
        return run(make, listening, tls=tls, beside=beside, fleet_wait_s=fleet_wait_s)
    finally:
        files.close()


def _serve_remote(
    control: str,
    token_file: Path | None,
    ca: Path | None,
    *,
    flags: dict[str, Any],
    engines: list[str],
    config: Path | None,
) -> int:
    from tidegate.cli.remote_gateway import Place, serve_remote
    from tidegate.gateway.control_client import ControlUrl

    url = ControlUrl.parse(control)
    if engines:
        raise SettingError("--engine", "control says which engines there are: leave it, or --control")
    if token_file is None:
        hint = "copy gateway.token from the data folder of control, and name the copy"
        raise SettingError("--token-file", "is needed with --control", hint=hint)
    if ca is not None and not url.tls:
        raise SettingError("--control-ca", f"is for https, and {url.text} is not")
    settings = load(find_file(config, find_home().path), {"gateway": flags})
    return serve_remote(settings, Place(url, token_file, ca), _own_files)


def _flags(listen: str | None, *, allow_anonymous: bool) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    if listen is not None:
        flags["listen"] = listen
    if allow_anonymous:
        flags["allow_anonymous"] = True
    return flags


def _settings(listen: str | None, engines: list[str], config: Path | None, *, allow_anonymous: bool) -> Settings:
    flags: dict[str, Any] = {"gateway": _flags(listen, allow_anonymous=allow_anonymous)}
    file = find_file(config, find_home().path)
    if engines:
        base = load(file)
        name = base.model[0].name if base.model else "auto"
        flags["pool"] = [{"name": "default", "model": name, "engine": "external", "urls": engines}]
    settings = load(file, flags)
    own = [pool.name for pool in settings.pool if pool.engine != "external" or pool.fleet == "dns"]
    if own or not settings.pool:
        which = (
            f"the pool {own[0]!r} has engines that only `tidegate up` starts or finds" if own else "there is no engine"
        )
        raise SettingError("--engine", which, hint="name the engines' URLs: tidegate gateway --engine http://HOST:PORT")
    return settings


def _serve_alone(settings: Settings) -> int:
    from tidegate.cli.fixed_fleet import FixedFleet
    from tidegate.cli.own_store import OwnStore
    from tidegate.control.usage import UsageWriter

    section = settings.gateway
    home = find_home(settings.store.home)
    with OwnStore(settings, home) as store:
        if not (is_loopback(section.listen) or section.allow_anonymous or store.keys().required):
            raise SettingError(
                "gateway.listen",
                f"{section.listen} can be reached by others, and there is no key",
                hint="set gateway.allow_anonymous = true (--allow-anonymous), or listen on 127.0.0.1",
            )
        tls = None
        if section.tls_cert_file is not None and section.tls_key_file is not None:
            tls = server_context(section.tls_cert_file, section.tls_key_file)
        listening = ports.bind(section.listen, "gateway.listen")
        logs.configure(settings.log, file=None, terminal=True)
        url = ports.url_of(ports.address_of(listening), "https" if tls else "http")
        logs.get().info("gateway listening", url=url, engines=[url for pool in settings.pool for url in pool.urls])
        files = _own_files(home)
        watch = Watch(lambda trouble: logs.get().warning("gpu trouble", cause=trouble))
        try:
            fleet = FixedFleet(settings, store.keys, store.touched)
            host, _ = split_address(section.listen)

            async def beside(gateway: Gateway) -> None:
                if watch.begin():
                    gateway.metrics.gpus = watch.gpus
                writer = UsageWriter(store.add_usage, log=logs.get(), source=gateway.accounting.take_usage)
                writer.open()
                try:
                    await fleet.watch(gateway)
                finally:
                    await writer.close()

            process = process_id(os.getpid())
            unseen = msgspec.structs.replace(fleet.snapshot(), number=0)
            make = partial(Gateway, unseen, listen_host=host, process=process, files=files)
            return run(make, listening, tls=tls, beside=beside, fleet_wait_s=FIRST_LOOK_S)
        finally:
            watch.end()
            listening.close()
            if files is not None:
                files.close()
            logs.close()
            sys.stdout.flush()


def _own_files(home: Home) -> RequestFiles | None:
    """Those in the data folder; none where there can be no data folder."""
    try:
        home.create()
    except OperatorError as error:
        logs.get().warning("there is no access log, and no trace", cause=str(error))
        return None
    return RequestFiles.below(home)
