"""`tidegate up`: everything on this machine, from one command, until Ctrl-C.

Ctrl-C (or SIGTERM, or the terminal closing) once: answers in progress are finished, everything ends, exit code 0.
Twice: everything is killed at once, exit code 130.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from tidegate import __version__, logs
from tidegate.cli import own_engines
from tidegate.cli.announce import announce, gpu_sentence
from tidegate.cli.own_engines import Own
from tidegate.cli.parts import Store, in_thread, make_parts
from tidegate.cli.say import say
from tidegate.config import Settings, find_file, is_loopback, load, split_address, terminal_language
from tidegate.control.control import Control
from tidegate.control.doctor import faults_settings, gpu
from tidegate.control.keeper import World
from tidegate.control.state import Lock
from tidegate.errors import SettingError
from tidegate.home import Home, find_home
from tidegate.http.tls import server_context
from tidegate.nvml import Watch

KILLED_EXIT = 130
"""128 + SIGINT, as shells say it."""
GPU_WAIT_S = 3.0
"""Longest wait for a slow driver, past the moment when everything else is ready."""

app = typer.Typer(add_completion=False)
Port = Annotated[int | None, typer.Option(min=0, max=65_535)]


@app.command()
def up(  # noqa: PLR0917 - typer reads flags, which have no position
    model: Annotated[str | None, typer.Option(help="auto, demo, a name, ORG/NAME of a hub, or a path.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="vllm (installed where it is not), llamacpp, or the URL of an engine that runs; repeatable."),
    ] = None,
    api_port: Port = None,
    admin_port: Port = None,
    chat_port: Port = None,
    lan: Annotated[bool, typer.Option("--lan", help="Let others on this network in, with a key.")] = False,
    chat: Annotated[bool, typer.Option(help="The chat page.")] = True,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Listen on more than this machine without a key.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option("--from", help="A file of `tidegate bundle`, for a machine without a network.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file.")] = None,
) -> None:
    """Start everything on this machine: the API, the chat page, the engines."""
    home = find_home()
    file = find_file(config, home.path)
    own = asked = own_engines.asked(engine or [])

    def read_settings() -> Settings:
        base = load(file)
        flags = flags_of(
            base,
            model=model,
            own=own,
            engines=[] if asked else engine or [],
            ports={"gateway": api_port, "admin": admin_port, "chat": chat_port},
            lan=lan,
            chat=chat,
            allow_anonymous=allow_anonymous,
        )
        found = load(file, flags)
        faults_settings.refuse(found.pool)
        return found

    settings = read_settings()
    if settings.store.home is not None:
        home = find_home(settings.store.home)
    home.create()
    lock = Lock.acquire(home)
    try:
        logs.configure(settings.log, file=home.logs / "tidegate.log", terminal=True)
        try:
            if bundle is not None:
                own_engines.unpack(bundle, settings, home)
            if asked is not None:
                own_engines.prepare(asked, settings, home, bundle)
            elif not engine:
                own = own_engines.fitting(load(file), model, home)
                settings = read_settings()
            code = _run(settings, home, read_settings, lan=lan)
        finally:
            logs.close()
    finally:
        lock.release()
    raise typer.Exit(code)


def flags_of(
    base: Settings,
    *,
    model: str | None,
    engines: list[str],
    ports: dict[str, int | None],
    own: Own | None = None,
    lan: bool,
    chat: bool,
    allow_anonymous: bool,
) -> dict[str, Any]:
    """What the flags mean as settings, nested like the settings file. `base` is the settings without them.

    `own` is the engine of ours that is to serve, where that is said or follows from the machine; `engines` are URLs.
    """
    flags: dict[str, Any] = {}
    for section, port in ports.items():
        host, held = split_address(getattr(base, section).listen)
        host = "0.0.0.0" if lan and section != "admin" else host  # noqa: S104 - that is what --lan asks for
        address = f"[{host}]" if ":" in host else host
        listen = f"{address}:{held if port is None else port}"
        if port is not None or (lan and section != "admin"):
            flags[section] = {"listen": listen}
    if not chat:
        flags.setdefault("chat", {})["enabled"] = False
    if allow_anonymous:
        flags.setdefault("gateway", {})["allow_anonymous"] = True
    if model is not None and engines:
        raise SettingError("--model", "is for engines of our own, and --engine names one that runs already")
    if model is not None:
        held_options = [pool.options for pool in base.pool if pool.engine == "llamacpp"]
        flags["model"] = [{"name": "auto", "source": model}]
        flags["pool"] = [{"name": "default", "model": "auto", "options": held_options[0] if held_options else {}}]
    if own is not None:
        flags["pool"] = own_engines.pools(own, base, model)
    if engines:
        name = base.model[0].name if base.model else "auto"
        flags["pool"] = [{"name": "default", "model": name, "engine": "external", "urls": engines}]
    return flags


def _run(settings: Settings, home: Home, read_settings: Callable[[], Settings], *, lan: bool) -> int:
    store = Store.open(settings, home)
    try:
        secret = store.lan_key(home) if lan else None
        _refuse_open_doors(settings, keys=store.keys().required)
        _read_certificate(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, home, read_settings, store, secret))
    finally:
        store.close()


def _refuse_open_doors(settings: Settings, *, keys: bool) -> None:
    """Whoever listens to others has keys, or has said that it needs none. Raises SettingError."""
    for section in ("gateway", "chat"):
        listen = getattr(settings, section).listen
        off = section == "chat" and not settings.chat.enabled
        if not (off or keys or is_loopback(listen) or settings.gateway.allow_anonymous):
            raise SettingError(
                f"{section}.listen",
                f"{listen} can be reached by others, and there is no key",
                hint="`tidegate up --lan` makes a key; or set gateway.allow_anonymous = true (--allow-anonymous)",
            )


def _read_certificate(settings: Settings) -> None:
    """The gateway reads it again; here, before anything starts, a wrong one is one message. Raises SettingError."""
    gateway = settings.gateway
    if gateway.tls_cert_file is not None and gateway.tls_key_file is not None:
        server_context(gateway.tls_cert_file, gateway.tls_key_file)


async def _serve(
    settings: Settings, home: Home, read_settings: Callable[[], Settings], store: Store, secret: str | None
) -> int:
    log = logs.get()
    world = World(clock=time.monotonic, wall=time.time, rng=random.SystemRandom(), log=log)
    watch = Watch(lambda trouble: log.warning("gpu trouble", cause=trouble))
    gpus = watch.gpus if watch.begin() else None
    control = Control(settings, home, make_parts(home, read_settings, store, gpus), world)
    stopping = _Stopping(control)
    log.info("tidegate starting", version=__version__, home=str(home.path))
    try:
        if not await stopping.unless(control.open()):
            await control.abandon()
            return stopping.exit_code
    except BaseException:
        await control.close()
        raise
    try:
        await stopping.unless(_start(control, settings, secret))
        await stopping.event.wait()
    finally:
        log.info("stopping", answers_may_take_s=settings.gateway.drain_timeout_s)
        stopping.event.set()
        await control.stop()
        watch.end()
        log.info("stopped")
    return stopping.exit_code


async def _start(control: Control, settings: Settings, secret: str | None) -> None:
    """From bound ports to everything running, told."""
    language = terminal_language()
    looking = asyncio.get_running_loop().create_task(in_thread(gpu.gather))
    await control.start()
    await control.ready()
    status = control.status()
    found = await _within(GPU_WAIT_S, looking)
    if sentence := gpu_sentence(found, [pool.engine for pool in settings.pool], language):
        logs.get().info("gpu found", gpus=[one.name for one in found.usable])
        say(sentence)
    mib = 1024 * 1024
    logs.get().info(
        "ready",
        **status.urls,
        models=[model.name for model in status.models],
        memory_used_mib=status.memory_used_bytes // mib,
        memory_total_mib=status.memory_total_bytes // mib,
        seconds=round(status.up_s, 1),
    )
    say(announce(status, settings, secret, language).removesuffix("\n"))


async def _within(seconds: float, looking: asyncio.Task[gpu.GpuFacts]) -> gpu.GpuFacts:
    try:
        return await asyncio.wait_for(looking, seconds)
    except TimeoutError:
        return gpu.GpuFacts()


class _Stopping:
    """Ctrl-C, SIGTERM, and the terminal's end: the first asks for an end, the second for one at once."""

    def __init__(self, control: Control) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        self._control = control
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                loop.add_signal_handler(number, self._asked)

    async def unless(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`, unless an end is asked for first; whether it was done. Raises what `work` raises."""
        loop = asyncio.get_running_loop()
        working, asked = loop.create_task(work), loop.create_task(self.event.wait())
        await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return False
        working.result()
        return True

    def _asked(self) -> None:
        if self.event.is_set():
            self.exit_code = KILLED_EXIT
            self._control.kill()
        self.event.set()
