"""What control finds out about an engine beside its first work, and tells the gateways a moment later."""

import asyncio
import os
import random
import time

import pytest

from tidegate import logs
from tidegate.config import load
from tidegate.control import replicas as module
from tidegate.control.keeper import World
from tidegate.control.launch import Launcher
from tidegate.control.logfollow import LogFollowers
from tidegate.control.plan import make_plan, with_defaults
from tidegate.control.replicas import Replicas
from tidegate.control.snapshot import Keys, build
from tidegate.control.state import Records
from tidegate.engines.base import EngineFacts
from tidegate.engines.fake_server import FakeServer
from tidegate.types import DialectName, ReplicaState


class Engine:
    """An engine in this process."""

    api_key, child = "", None

    def __init__(self, server: FakeServer, dialect: DialectName) -> None:
        self.url, self.dialect = server.url, dialect

    async def start(self) -> None: ...

    async def ready(self) -> EngineFacts:
        return EngineFacts(slots=4, context_tokens=512, started_s=0.0, served_name="fake")

    async def stop(self, grace_s: float) -> None: ...


@pytest.mark.parametrize(
    ("dialect", "equal"),
    [(DialectName.VLLM, True), (DialectName.LLAMACPP, False)],  # the engine speaks as vLLM does
)
async def test_an_engine_serves_before_it_is_known_whether_it_continues_and_gateways_hear_of_it_then(
    home, monkeypatch, dialect, equal
):
    monkeypatch.setattr(module, "CHECK_DELAY_S", 0.05)
    log = logs.get()
    settings = with_defaults(load(None, {"pool": [{"name": "p", "model": "m", "engine": "fake"}]}, environ={}))
    plan = make_plan(settings, {})
    seen: list[tuple[ReplicaState, bool]] = []
    async with FakeServer() as server:
        launcher = Launcher(home, Records.load(home), LogFollowers(log), os.environ)
        world = World(clock=time.monotonic, wall=time.time, rng=random.Random(1), log=log)

        def changed() -> None:
            snapshot = build(1, settings=settings.gateway, plan=plan, status=replicas.status(), keys=Keys())
            seen.extend((one.state, one.continues) for one in snapshot.replicas)

        replicas = Replicas(
            launcher, lambda spec, spawn: Engine(server, dialect), world=world, changed=changed, idle=lambda _: True
        )
        await replicas.apply(plan)
        _, check = await until(lambda: replicas._checks.get("p-0"))
        assert (ReplicaState.READY, False) in seen
        assert (ReplicaState.READY, True) not in seen
        await check
        assert ((ReplicaState.READY, True) in seen) is equal
        await replicas.stop(0.0)


async def until(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    return found
