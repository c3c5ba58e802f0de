"""Engines at the addresses of a name, behind a real gateway: they come and go, and no request notices."""

import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from tidegate import logs
from tidegate.config import load
from tidegate.control.control import Control, Parts
from tidegate.control.keeper import World
from tidegate.control.snapshot import Keys
from tidegate.engines.external import ExternalEngine
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.fleet import local
from tidegate.home import Home
from tidegate.types import ReplicaState

FIRST, SECOND = "127.0.0.2", "127.0.0.3"


class Site:
    """A control, its gateway, and two engines on one port of two addresses."""

    def __init__(self, home):
        self.home = home
        self.zone = [FIRST]
        self.lookups = 0
        self.engines = {}

    async def start(self):
        port = 0
        for host in (FIRST, SECOND):
            engine = self.engines[host] = FakeServer(FakeServerOptions(model="m", tokens=4))
            await engine.start(host, port)
            port = int(engine.url.rpartition(":")[2])
        self.names = {host: f"p-{host.replace('.', '-')}-{port}" for host in self.engines}
        flags = {
            "gateway": {"listen": "127.0.0.1:0", "drain_timeout_s": 20.0},
            "admin": {"listen": "127.0.0.1:0"},
            "chat": {"enabled": False},
            "pool": [
                {
                    "name": "p",
                    "model": "m",
                    "engine": "external",
                    "fleet": "dns",
                    "dns": {"name": f"engines.example:{port}", "interval_s": 0.1},
                }
            ],
        }

        async def nothing(_):
            return {}

        parts = Parts(
            environ={name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")},
            gateway=(sys.executable, "-m", "tidegate", "gateway"),
            chat=(),
            settings=lambda: load(None, flags, {}),
            resolve=nothing,
            served=nothing,
            make_engine=lambda spec, _: ExternalEngine(spec.url, spec.options),
            keys=Keys,
            add_usage=lambda _: None,
            look_up=self._look_up,
        )
        world = World(clock=time.monotonic, wall=time.time, rng=random.Random(1), log=logs.get())
        self.control = Control(load(None, flags, {}), self.home, parts, world)
        await self.control.open()
        await self.control.start()
        await asyncio.wait_for(self.control.ready(), 60)

    async def _look_up(self, name, port):
        assert name == "engines.example"
        self.lookups += 1
        if isinstance(self.zone, OSError):
            raise self.zone
        return list(self.zone)

    async def looked_up(self, times):
        goal = self.lookups + times
        await self.until(lambda: self.lookups >= goal)

    async def until(self, condition, seconds=20.0):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.01)

    def states(self):
        return {one.id: one.state for one in self.control.status().replicas}

    async def told(self):
        """Until the gateway works with what control knows."""
        await self.until(
            lambda: {one.snapshot for one in self.control.status().gateways} == {self.control.status().snapshot}
        )

    async def ask(self, client, words="Hello"):
        body = {"model": "m", "messages": [{"role": "user", "content": words}]}
        answer = await client.post(f"{self.control.frontends.port.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-tidegate-replica"]

    async def close(self):
        await self.control.stop()
        for engine in self.engines.values():
            await engine.close()


@pytest.fixture
async def site():
    home = Home(Path(tempfile.mkdtemp(prefix="tg-")))
    home.create()
    logs.set_level("critical")
    site = Site(home)
    try:
        await site.start()
        yield site
    finally:
        await site.close()
        logs.set_level("warning")
        left = local.find_sessions("TIDEGATE_HOME", str(home.path))
        for process in left:
            local.kill(process)
        shutil.rmtree(home.path)
        assert not left


async def test_addresses_come_and_go_and_a_stream_on_one_that_goes_is_finished(site):
    first, second = site.names[FIRST], site.names[SECOND]
    assert site.states() == {first: ReplicaState.READY}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        assert await site.ask(client) == first

        site.zone = [SECOND, FIRST]
        await site.until(lambda: site.states() == {first: ReplicaState.READY, second: ReplicaState.READY})
        await site.told()
        asked = {await site.ask(client, f"Question {number}") for number in range(40)}
        assert asked == {first, second}

        url = f"{site.control.frontends.port.url}/v1/chat/completions"
        async with contextlib.AsyncExitStack() as streams:
            for number in range(40):
                words = f"[[tokens:150]] [[gap_ms:20]] Long question {number}"
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": words}]}
                answer = await streams.enter_async_context(client.stream("POST", url, json=body))
                if answer.headers["x-tidegate-replica"] == second:
                    break
            assert answer.headers["x-tidegate-replica"] == second

            site.zone = [FIRST]
            await site.until(lambda: site.states()[second] is ReplicaState.DRAINING)
            await site.told()
            assert {await site.ask(client, f"Other {number}") for number in range(20)} == {first}
            assert site.states()[second] is ReplicaState.DRAINING
            text = b"".join([part async for part in answer.aiter_bytes()])
        assert text.endswith(b"data: [DONE]\n\n")
        assert text.count(b'"content"') >= 150
        await site.until(lambda: second not in site.states())

        site.zone = OSError("the name server is away")
        await site.looked_up(5)
        assert site.states() == {first: ReplicaState.READY}
        assert await site.ask(client) == first


async def test_an_address_that_is_new_serves_while_another_one_still_drains(site):
    second = site.names[SECOND]
    url = f"{site.control.frontends.port.url}/v1/chat/completions"
    words = "[[tokens:200]] [[gap_ms:20]] Hello"
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": words}]}
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        async with client.stream("POST", url, json=body) as answer:
            site.zone = [SECOND]
            await site.until(lambda: site.states().get(second) is ReplicaState.READY)
            await site.until(lambda: site.states()[site.names[FIRST]] is ReplicaState.DRAINING)
            await site.told()
            assert await site.ask(client) == second
            text = b"".join([part async for part in answer.aiter_bytes()])
        assert text.endswith(b"data: [DONE]\n\n")
