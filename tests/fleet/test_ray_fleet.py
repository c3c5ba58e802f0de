"""Control's side of replicas on a cluster, with a bridge that follows a script."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from tidegate.config import RaySettings
from tidegate.errors import EngineStartError, OperatorError
from tidegate.fleet.base import Order
from tidegate.fleet.ray import RayFleet
from tidegate.home import Home

BRIDGE = Path(__file__).with_name("scripted_bridge.py")


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "home")
    home.create()
    return home


@pytest.fixture
def script(tmp_path):
    folder = tmp_path / "script"
    folder.mkdir()
    return folder


def fleet_of(home, script):
    bridge = (sys.executable, str(BRIDGE), str(script))
    return RayFleet(home, environ=os.environ, log=structlog.get_logger(), bridge=bridge)


@pytest.fixture
async def fleet(home, script):
    fleet = fleet_of(home, script)
    await fleet.open(RaySettings())
    yield fleet
    await fleet.close()


def order(model="m", replica="p-0", digest="d"):
    return Order(replica, digest, model, "fake", {}, None, cpus=2.0, gpus=1.0)


def told(script):
    return [json.loads(line) for line in (script / "told").read_text().splitlines()]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_replica_is_placed_asked_for_by_its_url_and_ended(fleet, script):
    engine = fleet.engine(order())
    await engine.start()
    facts = await engine.ready()
    life = engine.child.life
    assert (engine.url, engine.api_key, facts.slots) == (f"http://10.0.0.1/{life}", "k", 4)
    assert engine.child.id is None
    child = engine.child
    await engine.stop(2.0)
    assert not child.alive()
    place, stop = told(script)
    assert (place["cpus"], place["gpus"], place["job"]["cores"], place["digest"]) == (2.0, 1.0, 2, "d")
    assert stop == {"type": "stop", "life": life, "grace_s": 2.0}


async def test_a_lost_node_ends_the_life_and_says_why(fleet, script):
    engine = fleet.engine(order())
    await engine.start()
    await engine.ready()
    child = engine.child
    (script / "lost").write_text(child.life)
    async with asyncio.timeout(20):
        assert await child.wait() is None
    assert child.why == "its node is gone"
    await engine.stop(0.0)


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [("broken", EngineStartError, "out of memory"), ("missing", OperatorError, "no such file")],
)
async def test_what_keeps_an_engine_from_starting_is_told(fleet, model, kind, words):
    engine = fleet.engine(order(model))
    await engine.start()
    with pytest.raises(kind, match=words) as caught:
        await engine.ready()
    if kind is EngineStartError:
        assert caught.value.log_tail == ("last line",)
    else:
        assert caught.value.hint == "copy it"
    await engine.stop(0.0)


async def test_a_replica_without_room_waits_and_says_what_it_wants(fleet, capsys):
    engine = fleet.engine(order("no room"))
    await engine.start()
    waiting = asyncio.ensure_future(engine.ready())
    output = ""

    def said():
        nonlocal output
        output += capsys.readouterr().out
        return "replica waits for room" in output

    await until(said)
    assert "GPU 1" in output
    assert "CPU 3" in output
    assert not waiting.done()
    assert "waits for room" in engine.child.why
    waiting.cancel()
    await engine.stop(0.0)


async def test_the_next_control_goes_on_with_what_is_there(home, script):
    first = fleet_of(home, script)
    await first.open(RaySettings())
    engine = first.engine(order())
    await engine.start()
    await engine.ready()
    await first.close()

    second = fleet_of(home, script)
    await second.open(RaySettings())
    try:
        assert second.adopt("p-0", "another") is None
        assert second.adopt("p-1", "d") is None
        adopted = second.adopt("p-0", "d")
        assert (adopted.url, adopted.facts.slots) == (engine.url, 4)
        second.keep_only({"p-0": "d"})
        await until(lambda: len(told(script)) == 3)
        assert told(script)[1:] == [
            {"type": "watch", "replica": "p-0", "life": engine.child.life},
            {"type": "keep-only", "digests": {"p-0": "d"}},
        ]
        await adopted.child.stop(1.0)  # it is forgotten, too
        assert second.adopt("p-0", "d") is None
    finally:
        await second.close()


async def test_when_the_bridge_ends_replicas_live_on_and_the_next_bridge_hears_of_them(fleet, script):
    ready, waiting = fleet.engine(order()), fleet.engine(order("no room", "p-1"))
    await ready.start()
    await ready.ready()
    await waiting.start()
    await until(lambda: len(told(script)) == 2)
    fleet._process.kill()
    await until(lambda: len(told(script)) == 4)
    assert ready.child.alive()
    again = {one["type"]: one for one in told(script)[2:]}
    assert again["watch"]["life"] == ready.child.life
    assert again["place"]["job"]["life"] == waiting.child.life
    (script / "lost").write_text(ready.child.life)
    async with asyncio.timeout(20):
        await ready.child.wait()
    for engine in (ready, waiting):
        await engine.stop(0.0)


async def test_what_is_ended_while_there_is_no_bridge_is_ended_by_the_next_one(fleet, script):
    engine = fleet.engine(order())
    await engine.start()
    await engine.ready()
    life = engine.child.life
    fleet._process.kill()
    await until(lambda: fleet._process is None)
    async with asyncio.timeout(5):
        await engine.stop(2.0)  # nobody to wait for
    await until(lambda: len(told(script)) == 3)
    assert told(script)[1:] == [
        {"type": "watch", "replica": "", "life": life},
        {"type": "stop", "life": life, "grace_s": 0.0},
    ]


@pytest.mark.parametrize(("what", "words"), [("refuse", "no cluster answers"), ("hang", "did not answer within 0.3 s")])
async def test_a_cluster_that_does_not_answer_is_one_message(home, script, what, words):
    (script / what).touch()
    fleet = fleet_of(home, script)
    with pytest.raises(OperatorError, match=words) as caught:
        await fleet.open(RaySettings(connect_timeout_s=0.3 if what == "hang" else 20))
    assert caught.value.hint
    await fleet.close()


async def test_every_data_folder_has_a_name_of_its_own_on_the_cluster(home, tmp_path, script):
    other = Home(tmp_path / "other")
    other.create()
    names = [fleet_of(one, script)._owner() for one in (home, home, other)]
    assert names[0] == names[1] != names[2]


def test_whoever_has_no_pool_on_ray_never_imports_it():
    check = "import sys, tidegate.cli.up; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
