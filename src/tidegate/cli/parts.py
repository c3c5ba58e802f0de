"""The parts that `tidegate up` is put together from, made from the settings."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tidegate import logs
from tidegate.cli.room import check_room, shared_out
from tidegate.cli.say import say
from tidegate.cli.vllm_parts import VllmParts
from tidegate.config import (
    ExternalOptions,
    FakeOptions,
    LlamaCppOptions,
    ModelSettings,
    RayNeeds,
    Settings,
    VllmOptions,
    hub_environment,
    split_address,
    terminal_language,
)
from tidegate.control.control import Parts
from tidegate.control.plan import Form, Need, ReplicaSpec
from tidegate.control.snapshot import Keys
from tidegate.engines.base import Engine, ModelFiles, Spawn
from tidegate.engines.process import Place
from tidegate.errors import EngineStartError, ModelError, OperatorError, SettingError
from tidegate.fleet import dns
from tidegate.fleet.base import Order
from tidegate.fleet.ray import RayFleet
from tidegate.home import Home, write_private
from tidegate.models.hubs import hubs_for
from tidegate.models.progress import for_terminal
from tidegate.models.resolve import LocalModel, Resolver
from tidegate.store import Database, KeyStore, UsageStore, digest_of, open_database
from tidegate.types import GpuReport, UsageCount

LAN_KEY = "lan"
"""Name of the key that `--lan` makes, and stem of the file in the data folder that keeps it."""

NAME_IT = "give its model a name with [[model]] and [[pool]], and it may come later"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Store:
    """Keys and usage in the database of this data folder."""

    database: Database

    @classmethod
    def open(cls, settings: Settings, home: Home) -> "Store":
        """Raises StoreError, SettingError."""
        password = None
        if settings.store.password_file is not None:
            password = _secret(settings.store.password_file, "store.password_file")
        return cls(open_database(home.database, settings.store.url, password))

    def close(self) -> None:
        self.database.close()

    def keys(self) -> Keys:
        """Every key that opens something now. Blocks; raises StoreError."""
        store = KeyStore(self.database)
        return Keys(store.views(), store.required())

    def add_usage(self, usage: Sequence[UsageCount]) -> None:
        """Add to the table of usage. Blocks; raises StoreError."""
        UsageStore(self.database).add(usage)

    def lan_key(self, home: Home) -> str:
        """The key for this network, the same at every start: only its owner can read the file that keeps it."""
        store, file = KeyStore(self.database), home.path / f"{LAN_KEY}.key"
        held = file.read_text("ascii", "replace").strip() if file.exists() else ""
        if held and digest_of(held) in {view.digest for view in store.views()}:
            return held
        names = (LAN_KEY if number == 1 else f"{LAN_KEY}-{number}" for number in range(1, 1000))
        secret, _ = store.create(next(name for name in names if store.by_name(name) is None))
        write_private(file, secret.encode())
        return secret


def make_parts(
    home: Home,
    read_settings: Callable[[], Settings],
    store: Store,
    gpus: Callable[[], tuple[GpuReport, ...]] | None = None,
) -> Parts:
    """What control is given. Children inherit this process's environment."""
    resolver = Resolver(home, hubs_for(hub_environment()), for_terminal(), terminal_language())

    vllm = VllmParts(home)

    async def resolve(wanted: Mapping[Need, ModelSettings]) -> Mapping[Need, ModelFiles]:
        stage_to = read_settings().engines.stage_to
        found = {}
        for need, model in wanted.items():
            files = await in_thread(partial(model_files, resolver, model, need.form))
            found[need] = await in_thread(partial(fastest, files, home.models, stage_to))
        return found

    async def room(specs: Sequence[ReplicaSpec]) -> None:
        await in_thread(partial(check_room, [spec for spec in specs if spec.fleet == "local"], vllm))

    cluster = RayFleet(home, environ=dict(os.environ), log=logs.get())

    def make(spec: ReplicaSpec, spawn: Spawn) -> Engine:
        return cluster.engine(order_of(spec)) if spec.fleet == "ray" else make_engine(spec, spawn, home, vllm)

    return Parts(
        environ=dict(os.environ),
        gateway=(sys.executable, "-m", "tidegate", "gateway"),
        chat=(sys.executable, "-m", "tidegate.apps.serve"),
        settings=read_settings,
        resolve=resolve,
        served=served,
        make_engine=make,
        room=room,
        released=vllm.released,
        cluster=cluster,
        keys=store.keys,
        add_usage=store.add_usage,
        gpus=gpus,
    )


def make_engine(
    spec: ReplicaSpec, spawn: Spawn, home: Home, vllm: VllmParts, *, host: str = "127.0.0.1", name: str = ""
) -> Engine:
    """The engine of a replica, listening on `host`; `name` is that of its files, where it is not the replica's."""
    name = name or spec.id
    place = Place(name=name, spawn=spawn, folder=home.run, log=home.logs / f"{name}.log", host=host)
    match spec.options:
        case LlamaCppOptions():
            from tidegate.engines.llamacpp import LlamaCppEngine

            return LlamaCppEngine(spec.loaded, spec.options, place, machine=shared_out(spec.starting))
        case VllmOptions():
            return vllm.engine(spec, spec.options, place)
        case FakeOptions():
            from tidegate.engines.fake import FakeEngine

            return FakeEngine(spec.model, spec.options, place)
        case ExternalOptions():
            from tidegate.engines.external import ExternalEngine

            return ExternalEngine(spec.url, spec.options)
        case _:
            raise SettingError("pool.engine", f"{spec.engine!r} is no engine")


def order_of(spec: ReplicaSpec) -> Order:
    """What a cluster is told of a replica."""
    needs = spec.needs or RayNeeds()
    return Order(
        replica=spec.id,
        digest=spec.digest,
        model=spec.model,
        engine=spec.engine,
        options=spec.options.model_dump(mode="json"),
        files=spec.files,
        cpus=needs.cpus,
        gpus=needs.gpus,
        memory_bytes=needs.memory_mib * 1024 * 1024,
        resources=needs.resources,
    )


def fastest(files: ModelFiles, models: Path, stage_to: Path | None) -> ModelFiles:
    """The model's copy on a fast disk, made now where the settings name one; the model itself where there is none.

    Blocks. Whatever is wrong with a copy, the model is served: what is wrong is told.
    """
    from tidegate.models import staging

    try:
        if stage_to is not None:
            copy = staging.stage(models, files.path, stage_to, for_terminal())
        elif (held := staging.staged(models, files.path)) is not None:
            copy = held
        else:
            return files
    except (ModelError, OSError) as error:
        logs.get().warning("weights are loaded from where they are", model=files.name, cause=str(error))
        return files
    logs.get().info("weights staged", model=files.name, file=str(copy.path), copied_mib=copy.copied_bytes // 1024**2)
    return replace(files, path=copy.path)


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work in a thread that does not hold up the end of the program, as a download would."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()

    def settle(value: Result | None, error: BaseException | None) -> None:
        if result.done():  # nobody waits any more
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # without an error there is one

    def run() -> None:
        value, failure = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - carried to whoever waits
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=run, daemon=True).start()
    return await result


async def served(settings: Settings) -> Mapping[str, str]:
    """What models without a name of their own, given only by URLs, call themselves. Raises OperatorError."""
    found: dict[str, str] = {}
    for pool in settings.pool:
        options = pool.engine_options()
        if pool.model == "auto" and isinstance(options, ExternalOptions):
            found[pool.model] = await _own_name(pool.urls[0] if pool.urls else await _first_url(pool.dns.name), options)
    return found


async def _first_url(name: str) -> str:
    """Of the engines behind a name."""
    host, port = split_address(name)
    try:
        addresses = await dns.system(host, port)
    except OSError as error:
        raise OperatorError(f"{name} cannot be looked up: {error.strerror or error}", hint=NAME_IT) from None
    return dns.url_of(next(iter(addresses)), port)


async def _own_name(url: str, options: ExternalOptions) -> str:
    from tidegate.engines.external import ExternalEngine, serving_name

    engine = ExternalEngine(url, options)
    await engine.start()
    try:
        return serving_name((await engine.ready()).served_name)
    except EngineStartError as error:
        raise OperatorError(str(error), hint=f"start it first; or {NAME_IT}") from None


def model_files(resolver: Resolver, model: ModelSettings, form: Form) -> ModelFiles:
    """A model's files, fetched where they are not here. Blocks; raises OperatorError."""
    found: LocalModel = resolver.resolve(model.source, quantisation=model.quantisation, form=form)
    say(found.sentence)
    logs.get().info("model found", model=found.name, file=str(found.path), quantisation=found.quantisation)
    return ModelFiles(
        name=found.name,
        path=found.path,
        quantisation=found.quantisation,
        digest=found.digest,
        context_tokens=found.context_tokens,
        aliases=found.aliases,
    )


def _secret(file: Path, setting: str) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError as error:
        raise SettingError(setting, f"{file} cannot be read: {error.strerror}") from None
