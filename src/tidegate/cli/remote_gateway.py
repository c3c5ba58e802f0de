"""A gateway for a control on another host: found at its admin port before anything is served, then followed.

What is used is told to control, whose store has it. What could not be told by the end waits in this data folder for the
next gateway that is started with it.
"""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidegate import __version__, logs
from tidegate.channel import PROTOCOL, RemoteHello
from tidegate.config import Settings, is_loopback, split_address
from tidegate.control import ports
from tidegate.errors import OperatorError, SettingError
from tidegate.fleet.local import process_id
from tidegate.gateway.app import Gateway
from tidegate.gateway.control_client import ControlClient, ControlUrl, read_token, trust
from tidegate.gateway.process import run
from tidegate.gateway.remote_link import UNUSABLE, Here, RemoteLink, for_this_host, unusable
from tidegate.gateway.request_files import RequestFiles
from tidegate.home import Home, find_home, write_private
from tidegate.http.tls import server_context
from tidegate.nvml import Watch
from tidegate.types import FleetSnapshot, Hello, ProcessId, UsageCount

UNSENT: Final = "usage-unsent-"
"""Files in the data folder begin so that keep what could not be told."""


@dataclass(frozen=True)
class Place:
    """Where control is, and how it is known that it is control, and that this may talk to it."""

    url: ControlUrl
    token_file: Path
    ca: Path | None


def serve_remote(settings: Settings, control: Place, open_files: Callable[[Home], RequestFiles | None]) -> int:
    """Serve until told to stop; the exit code. Raises OperatorError if control cannot be talked to at the start."""
    section = settings.gateway
    here = Here(section.listen, section.allow_anonymous)
    home = find_home(settings.store.home)
    tls = None
    if section.tls_cert_file is not None and section.tls_key_file is not None:
        tls = server_context(section.tls_cert_file, section.tls_key_file)
    trusted = trust(control.ca) if control.url.tls else None
    make_client = partial(ControlClient, control.url, partial(read_token, control.token_file), trusted)
    hello = Hello(process_id(os.getpid()), section.listen, __version__)
    remote = RemoteHello(PROTOCOL, secrets.token_hex(16), socket.gethostname(), hello)
    first, same_host = asyncio.run(_look(make_client, remote))
    _refuse_open_door(first, here)
    listening = ports.bind(section.listen, "gateway.listen")
    logs.configure(settings.log, file=None, terminal=True)
    files: RequestFiles | None = None
    try:
        address = ports.address_of(listening)
        remote = msgspec.structs.replace(remote, hello=msgspec.structs.replace(hello, listen=address))
        _say_how_it_is(settings, control, address, first, same_host=same_host, tls=tls is not None)
        first, _ = for_this_host(first, here, same_host=same_host)
        files = open_files(home)
        make = partial(_make, first, split_address(section.listen)[0], hello.process, files)
        beside = partial(_follow, home=home, make_client=make_client, remote=remote, here=here)
        return run(make, listening, tls=tls, beside=beside)
    finally:
        listening.close()
        if files is not None:
            files.close()
        logs.close()


def _make(first: FleetSnapshot, host: str, process: ProcessId, files: RequestFiles | None) -> Gateway:
    """Raises AwayError for a snapshot that makes no sense."""
    try:
        return Gateway(first, listen_host=host, process=process, files=files)
    except UNUSABLE as error:
        raise unusable(error) from error


async def _follow(
    gateway: Gateway, *, home: Home, make_client: Callable[[], ControlClient], remote: RemoteHello, here: Here
) -> None:
    """Beside the gateway, until it has drained."""
    gateway.accounting.give_back(take_unsent(home))
    watch = Watch(lambda trouble: logs.get().warning("gpu trouble", cause=trouble))
    gpus = watch.gpus if watch.begin() else tuple
    gateway.metrics.gpus = gpus
    link = RemoteLink(
        make_client(),
        remote,
        here,
        last=gateway.fleet.snapshot,
        apply=gateway.apply,
        report=lambda: msgspec.structs.replace(gateway.report(), gpus=gpus()),
        unsent=gateway.unsent,
        random=random.SystemRandom().random,
    )
    try:
        await link.run()
    finally:
        watch.end()
        keep_unsent(home, gateway.accounting.take_usage(), remote.instance)


async def _look(make_client: Callable[[], ControlClient], remote: RemoteHello) -> tuple[FleetSnapshot, bool]:
    client = make_client()
    try:
        return await client.look(remote)
    finally:
        client.close()


def _refuse_open_door(snapshot: FleetSnapshot, here: Here) -> None:
    """As a gateway alone: whoever listens to others has keys, or has said that it needs none. Raises SettingError."""
    keys = any(not key.service for key in snapshot.keys)
    if not (keys or is_loopback(here.listen) or here.allow_anonymous):
        raise SettingError(
            "gateway.listen",
            f"{here.listen} can be reached by others, and control knows no key",
            hint="`tidegate keys create` there makes one; or give --allow-anonymous, or listen on 127.0.0.1",
        )


def _say_how_it_is(
    settings: Settings, control: Place, address: str, first: FleetSnapshot, *, same_host: bool, tls: bool
) -> None:
    log = logs.get()
    url = ports.url_of(address, "https" if tls else "http")
    log.info("gateway listening", url=url, control=control.url.text, models=[one.name for one in first.models])
    if settings.pool or settings.model:
        log.warning("models and pools of these settings have no effect; control says what is served")
    if not (control.url.tls or same_host):
        log.warning(
            "the token and the engines' keys cross the network as they are",
            advice="put a proxy with TLS in front of control's admin port, and give its https URL",
        )


def take_unsent(home: Home) -> tuple[UsageCount, ...]:
    """What earlier gateways of this data folder could not tell; it is no longer kept here."""
    found: list[UsageCount] = []
    with suppress(OSError):
        for path in sorted(home.path.glob(f"{UNSENT}*.json")):
            mine = path.with_suffix(f".{os.getpid()}")
            with suppress(FileNotFoundError):  # another gateway took it
                path.rename(mine)
                try:
                    found += msgspec.json.decode(mine.read_bytes(), type=list[UsageCount])
                except msgspec.DecodeError as error:
                    logs.get().error("usage that was kept cannot be read", file=str(mine), cause=str(error))
                else:
                    mine.unlink()
    return tuple(found)


def keep_unsent(home: Home, usage: tuple[UsageCount, ...], instance: str) -> None:
    """Keep for the next gateway what control could not be told."""
    requests = sum(one.requests for one in usage)
    if not requests:
        return
    try:
        home.create()
        write_private(home.path / f"{UNSENT}{instance}.json", msgspec.json.encode(usage))
    except (OSError, OperatorError) as error:
        logs.get().error(
            "control is away; what was used at the end is in no table", requests=requests, cause=str(error)
        )
    else:
        logs.get().warning("control is away; what was used is told by the next gateway started here", requests=requests)
