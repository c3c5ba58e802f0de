"""The fleet of a gateway alone: what is found out about engines that somebody else runs."""

import asyncio
import contextlib
import time

import pytest

from tidegate import logs
from tidegate.cli.fixed_fleet import FixedFleet
from tidegate.config import LogSettings, load
from tidegate.control.snapshot import Keys
from tidegate.engines.fake_server import FakeServer, FakeServerOptions
from tidegate.gateway.app import Gateway
from tidegate.types import ProcessId


@contextlib.asynccontextmanager
async def alone(*urls: str, **flags):
    """A gateway alone before these engines."""
    pool = {"name": "default", "model": "auto", "engine": "external", "urls": list(urls)}
    fleet = FixedFleet(load(None, {"pool": [pool], **flags}, environ={}), Keys)
    gateway = Gateway(fleet.snapshot(), listen_host="127.0.0.1", process=ProcessId(1, 1))
    gateway.observer.look_s = 0.2
    gateway.observer.begin(gateway.fleet.replicas.values())
    watching = asyncio.ensure_future(fleet.watch(gateway))
    try:
        yield gateway
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await gateway.close(0.0)


async def test_a_gateway_alone_tells_what_is_odd_about_its_rules_and_hands_them_on(capfd):
    rules = [{"class": "batch", "tenant": "ops"}, {"class": "long", "tenant": "ops", "stream": True}]
    logs.configure(LogSettings(), file=None, terminal=True)
    try:
        async with alone("http://127.0.0.1:1", rule=rules) as gateway:
            told = ""
            deadline = time.monotonic() + 10.0
            while "rule.2: can never match" not in told:
                assert time.monotonic() < deadline, told
                await asyncio.sleep(0.01)
                told += "".join(capfd.readouterr())
            assert gateway.fleet.models == {}
    finally:
        logs.close()


def test_a_gateway_alone_is_given_classes_rules_and_limits():
    pool = {"name": "default", "model": "auto", "engine": "external", "urls": ["http://127.0.0.1:1"]}
    settings = load(None, {"pool": [pool], "class": [{"name": "premium"}], "limits": {"kv_share": 0.5}}, environ={})
    snapshot, policy = FixedFleet(settings, Keys).snapshot(), settings.policy()
    assert (snapshot.classes, snapshot.rules, snapshot.limits) == (policy.classes, policy.rules, policy.limits)


def proved(gateway) -> bool:
    """Whether the engine is known to continue equally."""
    replica = gateway.fleet.replicas.get("default-0")
    return replica is not None and replica.view.continues


async def until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_engines_are_asked_at_once_and_known_to_continue_a_moment_later():
    options = FakeServerOptions(tokens=30)
    async with FakeServer(options) as one, FakeServer(options) as other, alone(one.url, other.url) as gateway:
        await until(lambda: "fake" in gateway.fleet.models)
        assert gateway.fleet.models["fake"].ready
        await until(lambda: proved(gateway) and gateway.fleet.replicas["default-1"].view.continues)


def checks() -> list[str]:
    """Engines that are being asked whether they continue equally."""
    return sorted(name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("continuation of "))


async def test_an_engine_that_nobody_could_go_on_for_is_not_asked_whether_it_continues():
    """It would be kept busy in its first seconds, beside its users, for nothing."""
    options = FakeServerOptions(tokens=30)
    async with FakeServer(options) as one, alone(one.url) as gateway:
        await until(lambda: "fake" in gateway.fleet.models)  # checks begin in the same turn of the loop
        assert checks() == []
    async with FakeServer(options) as one, FakeServer(options) as other, alone(one.url, other.url) as gateway:
        await until(lambda: "fake" in gateway.fleet.models)
        assert checks() == ["continuation of default-0", "continuation of default-1"]


@pytest.mark.parametrize("second", ["b", "a"])
async def test_what_comes_back_at_the_same_address_is_looked_at_anew(second):
    """It may be another model by now; to the gateway the same one stays the same replica."""
    engine = FakeServer(FakeServerOptions(model="a", tokens=30))
    await engine.start()
    async with alone(engine.url) as gateway:
        await until(lambda: "a" in gateway.fleet.models)
        replica = gateway.fleet.replicas["default-0"]
        engine.crash()
        await until(lambda: replica.rank == 3)
        again = FakeServer(FakeServerOptions(model=second, tokens=30, record=True))
        await again.start(port=int(engine.url.rpartition(":")[2]))
        try:
            await until(lambda: second in gateway.fleet.models and gateway.fleet.models[second].ready)
            await until(lambda: any(request.path == "/v1/models" for request in again.requests))
            assert (gateway.fleet.replicas["default-0"] is replica) == (second == "a")
        finally:
            await again.close()
    await engine.close()
