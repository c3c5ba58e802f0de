"""What runs on a node of the cluster, without the cluster: it starts a replica, tells how it is, and leaves nothing behind."""

import asyncio
import importlib.util
import json
import os
import signal

import pytest

from tidegate import __version__
from tidegate.fleet import local
from tidegate.fleet.ray_actor import ReplicaActor

JOB = {
    "version": __version__,
    "replica": "p-0",
    "life": "abc",
    "model": "m",
    "engine": "fake",
    "options": {},
    "files": None,
    "cores": 1,
}


@pytest.fixture
async def actor(tmp_path, monkeypatch):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'tidegate[ray]'")
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "home"))
    actor = ReplicaActor(json.dumps(JOB), 0.0)
    yield actor
    await actor.stop(0.0)
    for stream in (actor._process.stdin, actor._process.stdout):
        stream.close()


async def hear(actor, count):
    """The first words, as whoever asks for the first time hears them."""
    words = []
    async with asyncio.timeout(60):
        while len(words) < count:
            _, more = await actor.words(len(words), 1.0)
            words += map(json.loads, more)
    return words


async def gone(process):
    async with asyncio.timeout(20):
        while local.is_alive(process):
            await asyncio.sleep(0.01)


async def test_it_is_heard_by_one_bridge_after_the_other_and_stopped(actor):
    started, ready = await hear(actor, 2)
    assert (started["type"], ready["type"]) == ("started", "ready")
    assert await hear(actor, 2) == [started, ready]  # the next bridge hears the same
    engine = local.process_id(started["pid"])
    node, nothing = await actor.words(2, 0.05)
    assert nothing == []
    assert f"//{node}:" in ready["url"]
    await actor.stop(5.0)
    assert not local.is_alive(engine)
    assert (await hear(actor, 3))[2]["cause"] == "it was ended"


async def test_without_the_process_that_looks_after_it_the_engine_is_ended(actor):
    started, _ = await hear(actor, 2)
    engine = local.process_id(started["pid"])
    os.kill(actor._process.pid, signal.SIGKILL)
    ended = (await hear(actor, 3))[2]
    assert ended["type"] == "ended"
    assert ended["cause"].endswith("ended with status -9")
    await gone(engine)
