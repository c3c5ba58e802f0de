"""Control with a small gateway and engines that are plain processes: what it does with processes, and nothing else."""

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from tidegate import logs
from tidegate.config import load
from tidegate.control import plan, state
from tidegate.control.control import Control, Parts
from tidegate.control.keeper import World
from tidegate.control.snapshot import Keys
from tidegate.engines.base import EngineFacts
from tidegate.errors import EngineStartError, ModelError, OperatorError, PortTakenError
from tidegate.fleet import local
from tidegate.types import DialectName, KeyView, ReplicaState

PEER = (sys.executable, str(Path(__file__).with_name("peer.py")))
ENGINE = [
    sys.executable,
    "-c",
    (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "while True: s.accept()[0].close()"
    ),
]
BROKEN = [sys.executable, "-c", "import sys; print('no such tensor'); sys.exit(3)"]


class Engine:
    """A process that can be connected to."""

    dialect = DialectName.LLAMACPP
    api_key = "engine-key"

    def __init__(self, argv, spawn, log, error=None):
        self.argv, self.spawn, self.log, self.error = argv, spawn, log, error
        self.child, self.url = None, ""

    async def start(self):
        if self.error:
            raise self.error
        self.since = self.log.stat().st_size if self.log.exists() else 0
        self.child = await self.spawn(self.argv, env={}, log=self.log)

    async def ready(self):
        while not (told := self.log.read_text()[self.since :].strip()).isdigit():
            if not self.child.alive():
                raise EngineStartError("it ended", log_tail=(told,), cause="the file is damaged")
            await asyncio.sleep(0.005)
        self.url = f"http://127.0.0.1:{told}"
        return EngineFacts(slots=4, context_tokens=512, started_s=0.1)

    async def stop(self, grace_s):
        if self.child is not None:
            await self.child.stop(grace_s)


class Site:
    """Controls of one data folder, one after the other."""

    def __init__(self, home):
        self.home = home
        self.flags = {
            "gateway": {"listen": "127.0.0.1:0"},
            "admin": {"listen": "127.0.0.1:0"},
            "chat": {"enabled": False},
            "pool": [{"name": "p", "model": "m", "engine": "fake", "replicas": 2}],
        }
        self.keys = Keys()
        self.usage = []
        self.argv, self.error = ENGINE, None
        self.log = logs.get()
        self.control = None

    def settings(self):
        return load(None, self.flags, environ={})

    async def open(self):
        async def nothing(_):
            return {}

        parts = Parts(
            environ=os.environ,
            gateway=PEER,
            chat=(),
            settings=self.settings,
            resolve=nothing,
            served=nothing,
            make_engine=lambda spec, spawn: Engine(self.argv, spawn, self.home.logs / f"{spec.id}.log", self.error),
            keys=lambda: self.keys,
            add_usage=self.usage.extend,
        )
        world = World(clock=time.monotonic, wall=time.time, rng=random.Random(1), log=self.log)
        self.control = Control(self.settings(), self.home, parts, world)
        await self.control.open()
        return self.control

    async def up(self):
        await self.open()
        await self.control.start()
        await asyncio.wait_for(self.control.ready(), 20)
        return self.control

    async def abandon(self):
        """What kill -9 of control leaves: every child alive, every descriptor closed, nothing said to anybody."""
        control, self.control = self.control, None
        for keeper in (*control.frontends.keepers, *control.replicas.keepers.values()):
            keeper._task.cancel()
            await asyncio.gather(keeper._task, return_exceptions=True)
        await control.close()

    def pids(self):
        status = self.control.status()
        return {one.name: one.pid for one in status.processes} | {one.id: one.pid for one in status.replicas}

    async def ask(self, path="/"):
        async with httpx.AsyncClient() as client:
            answer = await client.get(self.control.frontends.port.url + path, timeout=10)
            return answer.json()

    async def hold(self):
        """A request that is being answered, until `release`."""
        asking = asyncio.create_task(self.ask(f"/hold?{self.home.path}"))
        await self.until(lambda: asyncio.sleep(0, (self.home.path / "held").exists()))
        return asking

    def release(self):
        (self.home.path / "release").touch()

    async def until(self, condition, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not (found := await condition()):
            assert time.monotonic() < deadline, f"it did not come true; {self.control.status()}"
            await asyncio.sleep(0.01)
        return found


@pytest.fixture
async def site(home):
    logs.set_level("critical")
    site = Site(home)
    yield site
    if site.control is not None:
        await site.control.stop()
    left = local.find_sessions("TIDEGATE_HOME", str(home.path))
    for process in left:
        local.kill(process)
    assert not left
    logs.set_level("warning")


async def test_up_tells_the_gateway_of_every_replica_and_stop_leaves_nothing(site, home):
    await site.up()
    seen = await site.ask()
    assert {name: one[0] for name, one in seen["replicas"].items()} == {"p-0": "ready", "p-1": "ready"}
    status = site.control.status()
    assert status.ready
    assert [model.ready for model in status.models] == [2]
    assert status.replicas[0].memory_bytes > 0
    assert state.read_admin(home).url == status.urls["admin"]
    await site.control.stop()
    site.control = None
    assert [path.name for path in home.run.iterdir()] in ([], ["lock"])
    assert local.find_sessions("TIDEGATE_HOME", str(home.path)) == {}


async def test_a_killed_engine_comes_back_and_the_gateway_is_told_both_times(site):
    await site.up()
    old = await site.ask()
    os.kill(site.pids()["p-0"], signal.SIGKILL)

    async def replaced():
        seen = await site.ask()
        state, url = seen["replicas"]["p-0"]
        return seen if state == "ready" and url != old["replicas"]["p-0"][1] else None

    seen = await site.until(replaced)
    assert seen["snapshot"] > old["snapshot"]
    assert seen["replicas"]["p-1"] == old["replicas"]["p-1"]
    assert site.control.status().replicas[0].restarts == 1


async def test_connections_wait_in_the_backlog_while_a_killed_gateway_is_replaced(site):
    await site.up()
    old = site.pids()["gateway"]
    os.kill(old, signal.SIGKILL)
    seen = await site.ask()
    assert seen["pid"] != old
    assert len(seen["replicas"]) == 2 or seen["snapshot"] == 0


async def test_what_a_killed_control_leaves_is_adopted_with_its_port(site):
    await site.up()
    pids, url, seen = site.pids(), site.control.frontends.port.url, await site.ask()
    await site.abandon()
    await site.up()
    assert site.pids() == pids
    assert site.control.frontends.port.url == url
    again = await site.ask()
    assert again["replicas"] == seen["replicas"]
    assert again["snapshot"] > seen["snapshot"]


async def test_an_adopted_process_that_dies_is_replaced(site):
    await site.up()
    await site.abandon()
    await site.up()
    pids = site.pids()
    for name in ("p-0", "gateway"):
        os.kill(pids[name], signal.SIGKILL)

    async def replaced():
        now = site.pids()
        return site.control.status().ready and all(now[name] not in {pids[name], None} for name in ("p-0", "gateway"))

    await site.until(replaced)
    assert site.pids()["p-1"] == pids["p-1"]
    assert len((await site.ask())["replicas"]) == 2


async def test_what_does_not_fit_the_new_settings_is_ended_and_replaced(site):
    await site.up()
    pids = site.pids()
    await site.abandon()
    site.flags["pool"] = [{"name": "p", "model": "m", "engine": "fake", "options": {"slots": 7}}]
    site.flags["gateway"]["max_headers"] = 50
    await site.up()
    assert set(site.pids()) == {"gateway", "p-0"}
    assert site.pids()["p-0"] != pids["p-0"]
    assert site.pids()["gateway"] == pids["gateway"]
    assert not any(Path(f"/proc/{pids[name]}").exists() for name in ("p-0", "p-1"))


async def test_a_gateway_at_another_address_is_ended_before_the_new_address_is_bound(site):
    await site.up()
    pids, port = site.pids(), int(site.control.frontends.port.url.rpartition(":")[2])
    await site.abandon()
    site.flags["gateway"] = {"listen": f"0.0.0.0:{port}", "allow_anonymous": True}
    await site.up()
    assert site.pids()["gateway"] != pids["gateway"]
    assert (await site.ask())["pid"] == site.pids()["gateway"]


async def test_an_upgrade_replaces_the_gateway_behind_its_port_while_the_old_one_finishes(site, monkeypatch):
    await site.up()
    pids, url = site.pids(), site.control.frontends.port.url
    slow = await site.hold()
    await site.abandon()
    monkeypatch.setattr(plan, "__version__", "9.9.9")
    await site.up()
    assert site.control.frontends.port.url == url
    assert not slow.done()
    site.release()
    assert (await slow)["pid"] == pids["gateway"]
    assert not set(site.pids().values()) & set(pids.values())
    assert (await site.ask())["pid"] == site.pids()["gateway"]

    async def gone():
        stat = local.read_stat(pids["gateway"])
        return stat is None or not stat.alive

    await site.until(gone)


async def test_everything_killed_at_once_is_started_anew(site, home):
    await site.up()
    pids = site.pids()
    await site.abandon()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    await site.up()
    assert not set(site.pids().values()) & set(pids.values())
    assert len((await site.ask())["replicas"]) == 2


async def test_a_child_that_nobody_has_a_record_of_is_ended(site, home):
    env = dict(os.environ) | {"TIDEGATE_HOME": str(home.path), "TIDEGATE_CHILD": "p-9"}
    stray = await local.spawn(ENGINE, env=env, log=home.logs / "p-9.log")
    await site.up()
    assert await stray.wait() == -15


async def test_answers_in_progress_are_finished_before_the_end_and_new_connections_refused(site):
    await site.up()
    slow = await site.hold()
    control, site.control = site.control, None
    host, port = control.frontends.port.url.removeprefix("http://").split(":")
    stopping = asyncio.create_task(control.stop())

    async def refused():
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    site.control = control
    await site.until(refused)
    site.control = None
    assert not slow.done()
    site.release()
    assert (await slow)["pid"]
    await stopping


async def test_a_kill_during_the_end_ends_it_at_once(site):
    await site.up()
    slow = await site.hold()
    control, site.control = site.control, None
    stopping = asyncio.create_task(control.stop())
    await asyncio.sleep(0)
    control.kill()
    await asyncio.wait_for(stopping, 10)  # and not the 30 s that a drain may take
    with pytest.raises(httpx.TransportError):
        await slow


async def test_an_engine_that_cannot_start_is_one_message_with_cause_and_last_words(site):
    site.argv = BROKEN
    with pytest.raises(OperatorError, match="the file is damaged") as refused:
        await site.up()
    assert "no such tensor" in str(refused.value)


async def test_what_the_operator_must_mend_is_told_as_it_is(site):
    site.error = ModelError("the model needs 9 GiB, and 2 GiB are free")
    with pytest.raises(ModelError, match="9 GiB"):
        await site.up()


async def test_a_taken_port_is_told_before_anything_starts(site, home):
    with local_listener() as held:
        for section in ("gateway", "admin"):
            site.flags[section] = {"listen": f"127.0.0.1:{held.getsockname()[1]}"}
            with pytest.raises(PortTakenError) as refused:
                await site.open()
            assert refused.value.setting == f"{section}.listen"
            await site.control.close()
            site.control = None
            site.flags[section] = {"listen": "127.0.0.1:0"}
    assert local.find_sessions("TIDEGATE_HOME", str(home.path)) == {}


async def test_a_new_key_reaches_the_gateway_within_a_second(site):
    await site.up()
    assert (await site.ask())["keys"] == ["chat"]
    site.keys = Keys((KeyView("d" * 64, "ann", "default"),), required=True)

    async def known():
        return "ann" in (await site.ask())["keys"]

    await site.until(known, 1.5)
    assert json.loads((site.home.run / state.SIGN_IN_FILE).read_text()) == ["d" * 64]
    assert site.control.status().keys_required


async def test_reload_starts_and_stops_replicas_and_touches_no_other(site):
    await site.up()
    pids = site.pids()
    site.flags["pool"] = [
        {"name": "p", "model": "m", "engine": "fake", "replicas": 1},
        {"name": "q", "model": "m", "engine": "fake"},
    ]
    site.flags["gateway"] = {"listen": "127.0.0.1:1"}
    told = await site.control.reload(apply=False)
    assert not told.applied
    assert site.pids() == pids
    answer = await site.control.reload(apply=True)
    assert {change.setting: change.effect for change in answer.changes}["gateway.listen"] == "restart"
    await site.until(lambda: asyncio.sleep(0, site.control.status().ready))
    assert set(site.pids()) == {"gateway", "p-0", "q-0"}
    assert site.pids()["p-0"] == pids["p-0"]
    assert not Path(f"/proc/{pids['p-1']}").exists()
    assert (await site.control.reload(apply=True)).changes == tuple(
        change for change in answer.changes if change.effect == "restart"
    )


class Warnings:
    """A log that keeps what it is warned of, and nothing else."""

    def __init__(self):
        self.kept = []

    def warning(self, event, **told):
        self.kept.append((event, told))

    def __getattr__(self, _level):
        return lambda _event, **_told: None


async def test_what_is_odd_about_rules_and_keys_is_logged_at_the_start_and_after_a_reload(site):
    site.log = Warnings()
    site.flags["rule"] = [{"class": "batch", "model": "M"}, {"class": "long", "model": "m", "stream": True}]
    site.keys = Keys((KeyView("d", "anna", "sales", classes=("gone",)),))
    await site.up()
    told = {fields["advice"] for event, fields in site.log.kept if event == "look at the settings"}
    never = "rule.2: can never match: rule.1 takes every request that it would"
    lost = "key 'anna': may ask for the class 'gone', which does not exist"
    assert [any(one.startswith(start) for one in told) for start in (never, lost)] == [True, True]
    assert len(told) == 2
    site.log.kept.clear()
    site.flags["rule"] = [{"class": "batch", "model": "n"}]
    await site.control.reload(apply=True)
    assert site.control.gateways.snapshot.rules[0].model == "n"
    told = {fields["advice"] for event, fields in site.log.kept if event == "look at the settings"}
    assert "rule.1.model: there is no model named 'n', so that it can never match; there are: m" in told
    assert never not in told


async def test_classes_and_limits_reach_the_gateway_and_a_change_of_them_stops_nothing(site):
    site.flags["class"] = [{"name": "premium", "weight": 9}]
    await site.up()
    pids, number = site.pids(), site.control.gateways.snapshot.number
    assert site.control.gateways.snapshot.classes[-1].weight == 9.0
    site.flags["class"] = [{"name": "premium", "weight": 8}]
    site.flags["limits"] = {"kind": "fixed", "sequences": 3}
    answer = await site.control.reload(apply=True)
    assert {change.effect for change in answer.changes} == {"live"}
    snapshot = site.control.gateways.snapshot
    assert (snapshot.classes[-1].weight, snapshot.limits.kind, snapshot.limits.sequences) == (8.0, "fixed", 3)
    assert snapshot.number > number
    assert site.pids() == pids


async def test_a_replica_given_up_is_failed_and_the_rest_serves_on(site):
    await site.up()
    keeper = site.control.replicas.keepers["p-0"]
    site.argv = BROKEN
    keeper._policy = type(keeper._policy)(first_s=0.001, factor=1.0, give_up=2)
    os.kill(site.pids()["p-0"], signal.SIGKILL)
    await site.until(lambda: asyncio.sleep(0, keeper.view.state is ReplicaState.FAILED))
    status = site.control.status()
    assert status.replicas[0].log_tail[-1] == "no such tensor"
    assert "left alone" in status.replicas[0].cause
    assert status.ready


def local_listener():
    import socket

    return socket.create_server(("127.0.0.1", 0))
