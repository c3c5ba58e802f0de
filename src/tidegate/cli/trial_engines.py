"""Engines started for a trial: one, for as long as it is measured, and ended to its last process whatever happens."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidegate.cli.parts import in_thread, make_engine, model_files
from tidegate.cli.room import check_room
from tidegate.cli.vllm_parts import VllmParts
from tidegate.config import PoolSettings, Settings, hub_environment, load, terminal_language
from tidegate.control.launch import HOME_VARIABLE, NAME_VARIABLE
from tidegate.control.plan import ReplicaSpec, make_plan, sources, with_defaults
from tidegate.control.state import Lock
from tidegate.engines.base import EngineFacts
from tidegate.engines.known_faults import EngineName, lacks_memory
from tidegate.errors import EngineError, EngineStartError, ModelError, SettingError
from tidegate.fleet import local
from tidegate.home import Home
from tidegate.models.hubs import hubs_for
from tidegate.models.progress import for_terminal
from tidegate.models.resolve import Resolver

GRACE_S: Final = 5.0
KILLED: Final = "for want of memory"
"""How `engines.causes` words a SIGKILL that nobody here has sent."""


@dataclass(frozen=True)
class Running:
    """An engine that answers."""

    url: str
    api_key: str
    served_name: str
    pid: int | None
    facts: EngineFacts


class TrialError(EngineError):
    """An engine that did not come to answer; `no_memory` where its sizes were too large, which is a result."""

    def __init__(self, cause: str, *, no_memory: bool, log_tail: Sequence[str] = ()) -> None:
        super().__init__(cause)
        self.no_memory, self.log_tail = no_memory, tuple(log_tail)


def one_engine(file: Path) -> Settings:
    """The settings of one engine of ours, from a settings file of its own: one [[pool]], and its [[model]].

    The environment does not count: what is compared stands in files. Raises SettingError.
    """
    return _checked(load(file, environ={}), str(file))


def pool_of(engine: str, model: str, options: Mapping[str, Any]) -> Settings:
    """The settings of one engine, given in parts. Raises SettingError."""
    pool = {"name": "default", "engine": engine, "model": model, "options": dict(options)}
    return _checked(load(None, {"pool": [pool]}, environ={}), f"{engine} with {model}")


def _checked(settings: Settings, where: str) -> Settings:
    whole = with_defaults(settings)
    pools: Sequence[PoolSettings] = whole.pool
    if len(pools) != 1 or pools[0].engine == "external" or pools[0].fleet != "local" or pools[0].replicas != 1:
        raise SettingError("pool", f"{where} does not say one engine that is started on this machine")
    return whole


@dataclass(frozen=True)
class TrialEngines:
    """Starts them, with files and logs in a data folder."""

    home: Home

    @classmethod
    @contextmanager
    def held(cls, home: Home) -> "Iterator[TrialEngines]":
        """While nothing else runs with the data folder: `tidegate up` and a trial would each take the other's machine, and
        be measured with it. Raises HomeLockedError, OperatorError.
        """
        home.create()
        lock = Lock.acquire(home)
        try:
            yield cls(home)
        finally:
            lock.release()

    async def spec(self, settings: Settings) -> ReplicaSpec:
        """What is to be started; its model is fetched where it is not here yet. Raises OperatorError."""
        resolver = Resolver(self.home, hubs_for(hub_environment()), for_terminal(), terminal_language())
        files = {
            need: await in_thread(partial(model_files, resolver, model, need.form))
            for need, model in sources(settings).items()
        }
        return make_plan(settings, files).replicas[0]

    @asynccontextmanager
    async def running(self, spec: ReplicaSpec, name: str = "trial") -> AsyncIterator[Running]:
        """An engine that answers, ended at the end of the block. `name` is that of its log. Raises TrialError."""
        vllm = VllmParts(self.home)
        engine = make_engine(spec, self._spawn, self.home, vllm, name=name)
        try:
            try:
                await in_thread(partial(check_room, [spec], vllm))
                await engine.start()
                facts = await engine.ready()
            except ModelError as error:
                raise TrialError(str(error), no_memory="memory" in str(error)) from None
            except EngineStartError as error:
                known: EngineName = "vllm" if spec.engine == "vllm" else "llamacpp"
                no_memory = KILLED in error.cause or lacks_memory("\n".join(error.log_tail), known)
                raise TrialError(error.cause or str(error), no_memory=no_memory, log_tail=error.log_tail) from None
            process = engine.child.id if engine.child is not None else None
            pid = process.pid if process is not None else None
            yield Running(engine.url, engine.api_key, facts.served_name or spec.model, pid, facts)
        finally:
            await engine.stop(GRACE_S)

    async def _spawn(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> local.LocalChild:
        """Marked, so that the next `tidegate up` of this data folder ends what a killed trial left."""
        marked = {**os.environ, **env, HOME_VARIABLE: str(self.home.path), NAME_VARIABLE: "trial"}
        return await local.spawn(argv, env=marked, log=log)
